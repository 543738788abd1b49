// data.c - see data.h. Opens sources, packs rows and splits off the holdouts; fill.c fills batches,
// state.c answers questions about the opened data.
#include "runtime/data/feed/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/cache.h"
#include "runtime/data/feed/state.h"

// ---- stages and their sequence lengths

static int length_of(lm_data *d, int64_t seq) {
  for (int i = 0; i < d->n_lengths; i++)
    if (d->lengths[i].seq == seq)
      return i;
  d->lengths[d->n_lengths] = (lm_data_length){.seq = seq};
  return d->n_lengths++;
}

static lm_status stages_read(lm_data *d, const lm_data_options *o) {
  const lm_data_stage *from = o->n_stages ? o->stages : &(lm_data_stage){0};
  d->n_stages = o->n_stages ? o->n_stages : 1;
  if (d->n_stages > LM_DATA_STAGES)
    return lm_fail(LM_USER, "%d stages exceed the maximum of %d", d->n_stages, LM_DATA_STAGES);
  d->stages = lm_calloc((size_t)d->n_stages, sizeof *d->stages);
  d->lengths = lm_calloc((size_t)d->n_stages, sizeof *d->lengths);
  for (int i = d->n_stages; i-- > 0;) {
    if (i ? from[i].first_step < from[i - 1].first_step : from[i].first_step != 0)
      return lm_fail(LM_USER,
                     "stage %d begins at step %lld: the first stage must begin at 0, and stages "
                     "must be in order",
                     i + 1, (long long)from[i].first_step);
    if (!from[i].weights != !from[0].weights)
      return lm_fail(LM_USER, "stage %d has no mix, but the first stage has one, or vice versa",
                     i + 1);
    d->stages[i] =
        (lm_data_stage_start){from[i].first_step, length_of(d, from[i].seq ? from[i].seq : o->seq)};
  }
  d->seq = d->lengths[0].seq;
  return NULL;
}

// ---- holdouts

static lm_status samples_check(const lm_data *d, const lm_data_options *o, int64_t *samples,
                               int *out_n) {
  uint64_t taken = 0;
  *out_n = 0;
  for (int i = 0; i < o->n_holdouts; i++) {
    const lm_data_holdout *h = &o->holdouts[i];
    if (h->kind != LM_HOLDOUT_SAMPLE)
      continue;
    if (h->docs < 1)
      return lm_status_about(
          lm_fail(LM_USER, "holdout %s: a sample of %lld documents", h->name, (long long)h->docs),
          h);
    if ((uint64_t)h->docs >= d->corpus.n_docs - taken)
      return lm_status_about(
          lm_fail(LM_USER,
                  "holdout %s: a sample of %lld documents leaves none of the %llu to train on",
                  h->name, (long long)h->docs, (unsigned long long)d->corpus.n_docs),
          h);
    taken += (uint64_t)h->docs;
    samples[(*out_n)++] = h->docs;
  }
  return NULL;
}

static void part_take_set(const lm_data *d, const lm_row_index *index, lm_data_rows *p,
                          int sample) {
  p->spans = lm_calloc((size_t)d->groups, sizeof *p->spans);
  for (int g = 0; g < d->groups; g++) {
    uint64_t set = (uint64_t)(sample * d->groups + g);
    const lm_row_set *s = &index->sets[set];
    p->spans[g] = (lm_data_span){set, 0, s->n_rows};
    p->n += s->n_rows;
    p->docs += (int64_t)s->docs;
    p->tokens += (int64_t)s->tokens;
  }
}

static lm_status piece_count(void *user, const lm_piece *p) {
  lm_data_rows *to = user;
  to->docs += p->begins;
  to->tokens += p->len;
  return NULL;
}

// Moves the last rows of each group of part 0 to a holdout, at least one of each group with rows.
static lm_status tail_take(lm_data *d, const lm_data_holdout *h, lm_data_rows *to) {
  lm_data_rows *train = &d->parts[0];
  to->spans = lm_calloc((size_t)d->groups, sizeof *to->spans);
  if (!(h->fraction > 0 && h->fraction < 1))
    return lm_status_about(
        lm_fail(LM_USER, "holdout %s: tail takes more than 0%% and less than 100%%", h->name), h);
  for (int g = 0; g < d->groups; g++) {
    lm_data_span *from = &train->spans[g];
    uint64_t n = (uint64_t)(h->fraction * (double)d->lengths[0].index.sets[from->set].n_rows + 0.5);
    if (!n)
      n = from->n > 0;
    if (n && n >= from->n)
      return lm_status_about(lm_fail(LM_USER, "holdout %s leaves no row of %llu to train on",
                                     h->name, (unsigned long long)from->n),
                             h);
    from->n -= n;
    train->n -= n;
    to->spans[g] = (lm_data_span){from->set, from->first + from->n, n};
    to->n += n;
    LM_TRY(lm_data_span_visit(&d->lengths[0], &to->spans[g], piece_count, to));
  }
  train->docs -= to->docs;
  train->tokens -= to->tokens;
  return NULL;
}

static lm_status parts_make(lm_data *d, const lm_data_options *o, const lm_row_plan *plan) {
  lm_data_length *x = &d->lengths[0];
  LM_TRY(lm_row_index_open(o, &d->corpus, plan, &x->index));
  x->train = &d->parts[0];
  part_take_set(d, &x->index, x->train, 0);
  for (int i = 0, sample = 0; i < o->n_holdouts; i++) {
    lm_data_rows *p = &d->parts[i + 1];
    if (o->holdouts[i].kind == LM_HOLDOUT_SAMPLE)
      part_take_set(d, &x->index, p, ++sample);
    else
      LM_TRY(tail_take(d, &o->holdouts[i], p));
  }
  return NULL;
}

// ---- rows of the other sequence lengths

static uint64_t document_at(const lm_doc *docs, uint64_t n, uint64_t token) {
  uint64_t low = 0, high = n; // search for the last document that begins at or before the token
  while (high - low > 1) {
    uint64_t middle = low + (high - low) / 2;
    if (docs[middle].start <= token)
      low = middle;
    else
      high = middle;
  }
  return low;
}

typedef struct {
  const lm_doc *docs;
  uint64_t n;
  unsigned char *left_out;
} marking;

static lm_status document_mark(void *user, const lm_piece *p) {
  const marking *m = user;
  m->left_out[document_at(m->docs, m->n, p->start)] = 1;
  return NULL;
}

// Marks the documents that are partly in a holdout of kind tail.
static lm_status tails_mark_in(const lm_data *d, const lm_data_options *o, const lm_doc *docs,
                               lm_row_plan *plan, unsigned char *left_out) {
  marking marking = {docs, d->corpus.n_docs, left_out};
  for (int i = 0; i < o->n_holdouts; i++) {
    if (o->holdouts[i].kind != LM_HOLDOUT_TAIL)
      continue;
    for (int g = 0; g < d->groups; g++)
      LM_TRY(
          lm_data_span_visit(&d->lengths[0], &d->parts[i + 1].spans[g], document_mark, &marking));
    plan->left_out_key = lm_hash(&o->holdouts[i].fraction, sizeof o->holdouts[i].fraction,
                                 plan->left_out_key + d->lengths[0].index.store->root);
    plan->left_out = left_out;
  }
  return NULL;
}

static lm_status tails_mark(const lm_data *d, const lm_data_options *o, lm_row_plan *plan,
                            unsigned char *left_out) {
  lm_doc *docs = lm_calloc(d->corpus.n_docs, sizeof *docs);
  lm_status s = lm_corpus_docs(&d->corpus, 0, d->corpus.n_docs, docs);
  if (!s)
    s = tails_mark_in(d, o, docs, plan, left_out);
  lm_free(docs);
  return s;
}

static lm_status length_make(lm_data *d, const lm_data_options *o, const lm_row_plan *plan,
                             lm_data_length *x) {
  lm_row_plan own = *plan;
  own.seq = x->seq;
  LM_TRY(lm_row_index_open(o, &d->corpus, &own, &x->index));
  x->train = lm_alloc(sizeof *x->train);
  part_take_set(d, &x->index, x->train, 0);
  return x->train->n ? NULL
                     : lm_fail(LM_USER,
                               "no document is left to train on in rows of %lld tokens: each one "
                               "is partly held out",
                               (long long)x->seq);
}

// Converts the shuffle window from documents to rows.
static void windows_make(lm_data *d) {
  for (int i = 0; i < d->n_lengths; i++) {
    d->lengths[i].windows = lm_calloc((size_t)d->groups, sizeof(uint64_t));
    for (int g = 0; g < d->groups && d->shuffle; g++) {
      const lm_row_set *set = &d->lengths[i].index.sets[d->lengths[i].train->spans[g].set];
      if (d->shuffle < set->docs)
        d->lengths[i].windows[g] =
            (uint64_t)ceil((double)d->shuffle * (double)set->n_rows / (double)set->docs);
    }
  }
}

static lm_status rows_make(lm_data *d, const lm_data_options *o) {
  int64_t samples[d->n_parts];
  lm_row_plan plan = {.seq = d->seq,
                      .long_documents = o->long_documents,
                      .docs = o->docs,
                      .source = o->source,
                      .by_source = d->groups > 1,
                      .samples = samples};
  LM_TRY(samples_check(d, o, samples, &plan.n_samples));
  LM_TRY(parts_make(d, o, &plan));
  if (d->n_lengths == 1) {
    windows_make(d);
    return NULL;
  }
  unsigned char *left_out = lm_alloc(d->corpus.n_docs);
  lm_status s = tails_mark(d, o, &plan, left_out);
  for (int i = 1; i < d->n_lengths && !s; i++)
    s = length_make(d, o, &plan, &d->lengths[i]);
  lm_free(left_out);
  if (!s)
    windows_make(d);
  return s;
}

// ---- opening

static lm_status rowless(const lm_data *d, const lm_data_options *o, int source, int length) {
  const char *name = o->sources[source].name;
  long long seq = d->lengths[length].seq;
  bool left_out = length > 0 && d->lengths[0].train->spans[source].n;
  const lm_row_index *index = &d->lengths[length].index;
  unsigned long long dropped = d->groups > 1 ? index->sets[source].dropped : 0;
  if (left_out)
    return lm_fail(LM_USER,
                   "source %s has no row of %lld tokens: a document that is partly in a `tail` "
                   "holdout is left out of stages with another sequence length than the last; hold "
                   "out whole documents, as in sample(3 docs)",
                   name, seq);
  if (dropped)
    return lm_fail(LM_USER,
                   "source %s has a weight in the mix but no row to train on: `long` leaves out "
                   "its %llu documents of more than %lld tokens; long = split divides such "
                   "documents",
                   name, dropped, seq);
  return lm_fail(LM_USER, "source %s has a weight in the mix but no row to train on", name);
}

// Checks that each source with a positive weight has rows.
static lm_status mix_check(const lm_data *d, const lm_data_options *o) {
  for (int i = 0; i < o->n_stages; i++)
    for (int g = 0; g < o->n_sources; g++) {
      int length = d->stages[i].length;
      if (d->mix.stages[i].share[g] && !d->lengths[length].train->spans[g].n)
        return lm_status_about(rowless(d, o, g, length), &o->sources[g]);
    }
  return NULL;
}

static lm_status files_open(lm_data *d, const lm_data_options *o) {
  lm_file_list files;
  LM_TRY(lm_file_list_make(o->sources, o->n_sources, &files));
  d->umask = files.umask;
  lm_status s = lm_corpus_open(o, &files, &d->corpus);
  lm_file_list_free(&files);
  return s;
}

static lm_status corpus_open(lm_data *d, const lm_data_options *o) {
  for (int i = 0; i < o->n_sources; i++)
    if (o->sources[i].kind == LM_SOURCE_BATCHES)
      return lm_status_about(
          lm_fail(LM_USER, "source %s: a file of batches cannot be combined with other sources",
                  o->sources[i].name),
          &o->sources[i]);
  LM_TRY(stages_read(d, o));
  LM_TRY(lm_mix_create(o, &d->mix));
  LM_TRY(files_open(d, o));
  lm_data_columns_begin(d, o);
  if (!d->corpus.n_docs)
    return lm_fail(LM_USER, "the sources contain no text");
  d->groups = d->mix.n_stages && o->n_sources > 1 ? o->n_sources : 1;
  LM_TRY(rows_make(d, o));
  for (int i = 0; i < d->n_lengths; i++)
    if (d->groups == 1 && !d->lengths[i].train->n)
      return lm_fail(LM_USER, "no document fits into a row of %lld tokens",
                     (long long)d->lengths[i].seq);
  d->cursor = d->groups > 1 ? lm_alloc(sizeof *d->cursor) : NULL;
  return d->groups > 1 ? mix_check(d, o) : NULL;
}

static lm_status replay_open(lm_data *d, const lm_data_options *o) {
  if (o->n_holdouts)
    return lm_status_about(
        lm_fail(LM_USER, "holdout %s: a file of batches cannot have holdouts", o->holdouts[0].name),
        &o->holdouts[0]);
  LM_TRY(lm_source_status(lm_replay_open(o->sources[0].path, o->columns, o->n_columns, &d->replay),
                          &o->sources[0]));
  int64_t steps, rows;
  lm_replay_shape(d->replay, &steps, &rows, &d->seq);
  d->umask = lm_replay_umask(d->replay);
  d->parts[0].n = (uint64_t)(steps * rows);
  d->parts[0].tokens = steps * rows * d->seq;
  for (int i = 0; i < d->n_columns; i++)
    d->columns[i] = lm_replay_column(d->replay, i);
  return NULL;
}

lm_status lm_data_open(const lm_data_options *o, lm_data **out) {
  lm_data *d = lm_alloc(sizeof *d);
  d->seed = o->seed;
  d->shuffle = o->shuffle > 0 ? (uint64_t)o->shuffle : 0;
  d->tokenizer = o->tokenizer;
  d->n_columns = o->n_columns;
  d->columns = lm_calloc((size_t)d->n_columns + 1, sizeof *d->columns);
  d->n_parts = 1 + o->n_holdouts;
  d->parts = lm_calloc((size_t)d->n_parts, sizeof *d->parts);
  for (int i = 0; i < d->n_parts; i++)
    d->parts[i].name = lm_strdup(i ? o->holdouts[i - 1].name : "train");
  bool replays = o->n_sources == 1 && o->sources[0].kind == LM_SOURCE_BATCHES;
  lm_status s = replays ? replay_open(d, o) : corpus_open(d, o);
  if (!s && o->prefetch)
    d->prefetch = lm_prefetch_create(lm_data_batch_fill, d);
  if (s)
    lm_data_close(d);
  *out = s ? NULL : d;
  return s;
}

static void length_close(lm_data_length *x, bool first) {
  lm_row_index_close(&x->index);
  lm_free(x->windows);
  if (first || !x->train)
    return; // the training part of the first length is in parts
  lm_free(x->train->spans);
  lm_free(x->train);
}

void lm_data_close(lm_data *d) {
  if (!d)
    return;
  lm_prefetch_destroy(d->prefetch);
  lm_replay_close(d->replay);
  for (int i = 0; i < d->n_lengths; i++)
    length_close(&d->lengths[i], i == 0);
  lm_corpus_close(&d->corpus);
  lm_mix_free(&d->mix);
  for (int i = 0; i < d->n_parts; i++) {
    lm_free(d->parts[i].spans);
    lm_free(d->parts[i].name);
  }
  lm_free(d->parts);
  lm_free(d->columns);
  lm_free(d->fields);
  lm_free(d->stages);
  lm_free(d->lengths);
  lm_free(d->cursor);
  lm_free(d);
}

lm_status lm_data_cache_dir(lm_arena *a, const char **out) {
  const char *dir;
  LM_TRY(lm_cache_dir(a, &dir));
  *out = lm_path_join(a, dir, "data");
  return NULL;
}
