// data.c - training data: opens sources, holds parts of them out, and fills the batch of any step.
#include "runtime/data/feed/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/cache.h"
#include "runtime/data/rows/corpus.h"
#include "runtime/data/feed/mix.h"
#include "runtime/data/feed/order.h"
#include "runtime/data/feed/prefetch.h"
#include "runtime/data/feed/replay.h"
#include "runtime/data/rows/rows.h"

// Streams of randomness; keys of lm_philox_key. Epoch e of group g of training draws from ORDER + e
// + g * 2^48.
enum {
  STREAM_ORDER = 1000,
  GROUP_SHIFT = 48
};
enum {
  SOME = 2048
}; // tokens that are read at a time

typedef struct {
  uint64_t set, first, n;
} span; // rows first … first + n - 1 of a set
typedef struct {
  char *name;
  span *spans;
  uint64_t n;
  int64_t docs, tokens;
} part; // spans[groups], n rows in all
typedef struct {
  int64_t seq;
  lm_row_index index;
  part *train;
  uint64_t *windows;
} length; // windows[groups]: rows, 0: all
typedef struct {
  int64_t first_step;
  int length;
} stage;

struct lm_data {
  uint64_t seed, shuffle;
  int64_t seq; // of the last stage
  const lm_tokenizer *tokenizer;
  lm_replay *replay; // NULL: the rest holds
  unsigned unshared; // as lm_data_info
  lm_corpus corpus;
  stage *stages;
  int n_stages; // one from step 0 at the least
  length *lengths;
  int n_lengths; // the first is the last stage's
  int groups;    // 1, or one for each source if they are mixed
  part *parts;
  int n_parts; // of the first length
  lm_mix mix;  // no stages: rows of the one group in turn
  // written by the thread that fills
  lm_mix_cursor *place;
  lm_prefetch *prefetch; // NULL: there is none
};

// ---- stages and their lengths

static int length_of(lm_data *d, int64_t seq) {
  for (int i = 0; i < d->n_lengths; i++)
    if (d->lengths[i].seq == seq)
      return i;
  d->lengths[d->n_lengths] = (length){.seq = seq};
  return d->n_lengths++;
}

static lm_status stages_read(lm_data *d, const lm_data_options *o) {
  const lm_data_stage *from = o->n_stages ? o->stages : &(lm_data_stage){0};
  d->n_stages = o->n_stages ? o->n_stages : 1;
  if (d->n_stages > LM_DATA_STAGES)
    return lm_fail(LM_USER, "%d stages are more than %d", d->n_stages, LM_DATA_STAGES);
  d->stages = lm_calloc((size_t)d->n_stages, sizeof *d->stages);
  d->lengths = lm_calloc((size_t)d->n_stages, sizeof *d->lengths);
  for (int i = d->n_stages; i-- > 0;) {
    if (i ? from[i].first_step < from[i - 1].first_step : from[i].first_step != 0)
      return lm_fail(LM_USER, "stage %d begins at step %lld: stages begin at 0 and stand in order",
                     i + 1, (long long)from[i].first_step);
    if (!from[i].weights != !from[0].weights)
      return lm_fail(LM_USER, "stage %d of a mix has none", i + 1);
    d->stages[i] = (stage){from[i].first_step, length_of(d, from[i].seq ? from[i].seq : o->seq)};
  }
  d->seq = d->lengths[0].seq;
  return NULL;
}

static int stage_of(const lm_data *d, int64_t step) {
  int i = 0;
  while (i + 1 < d->n_stages && step >= d->stages[i + 1].first_step)
    i++;
  return i;
}

// Rows of the stage's length in the stages before it.
static uint64_t rows_before(const lm_data *d, int index, uint64_t rows_per_step) {
  uint64_t steps = 0;
  for (int i = 0; i < index; i++)
    if (d->stages[i].length == d->stages[index].length)
      steps += (uint64_t)(d->stages[i + 1].first_step - d->stages[i].first_step);
  return steps * rows_per_step;
}

int64_t lm_data_seq(const lm_data *d, int64_t step) {
  return d->replay ? d->seq : d->lengths[d->stages[stage_of(d, step)].length].seq;
}

// ---- holding out

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

static void part_take_set(const lm_data *d, const lm_row_index *index, part *p, int sample) {
  p->spans = lm_calloc((size_t)d->groups, sizeof *p->spans);
  for (int g = 0; g < d->groups; g++) {
    uint64_t set = (uint64_t)(sample * d->groups + g);
    const lm_row_set *s = &index->sets[set];
    p->spans[g] = (span){set, 0, s->n_rows};
    p->n += s->n_rows;
    p->docs += (int64_t)s->docs;
    p->tokens += (int64_t)s->tokens;
  }
}

static lm_status span_visit(const length *x, const span *s,
                            lm_status (*visit)(void *user, const lm_piece *p), void *user) {
  return lm_row_index_visit(&x->index, s->set, s->first, s->n, visit, user);
}

static lm_status piece_count(void *user, const lm_piece *p) {
  part *to = user;
  to->docs += p->begins;
  to->tokens += p->len;
  return NULL;
}

// Takes the last rows of what each group of part 0 still has; at least one of those that have any.
static lm_status tail_take(lm_data *d, const lm_data_holdout *h, part *to) {
  part *train = &d->parts[0];
  to->spans = lm_calloc((size_t)d->groups, sizeof *to->spans);
  if (!(h->fraction > 0 && h->fraction < 1))
    return lm_status_about(
        lm_fail(LM_USER, "holdout %s: tail takes more than 0%% and less than 100%%", h->name), h);
  for (int g = 0; g < d->groups; g++) {
    span *from = &train->spans[g];
    uint64_t n = (uint64_t)(h->fraction * (double)d->lengths[0].index.sets[from->set].n_rows + 0.5);
    if (!n)
      n = from->n > 0;
    if (n && n >= from->n)
      return lm_status_about(lm_fail(LM_USER, "holdout %s leaves no row of %llu to train on",
                                     h->name, (unsigned long long)from->n),
                             h);
    from->n -= n;
    train->n -= n;
    to->spans[g] = (span){from->set, from->first + from->n, n};
    to->n += n;
    LM_TRY(span_visit(&d->lengths[0], &to->spans[g], piece_count, to));
  }
  train->docs -= to->docs;
  train->tokens -= to->tokens;
  return NULL;
}

static lm_status parts_make(lm_data *d, const lm_data_options *o, const lm_row_plan *plan) {
  length *x = &d->lengths[0];
  LM_TRY(lm_row_index_open(o, &d->corpus, plan, &x->index));
  x->train = &d->parts[0];
  part_take_set(d, &x->index, x->train, 0);
  for (int i = 0, sample = 0; i < o->n_holdouts; i++) {
    part *p = &d->parts[i + 1];
    if (o->holdouts[i].kind == LM_HOLDOUT_SAMPLE)
      part_take_set(d, &x->index, p, ++sample);
    else
      LM_TRY(tail_take(d, &o->holdouts[i], p));
  }
  return NULL;
}

// ---- rows of further lengths

static uint64_t document_at(const lm_doc *docs, uint64_t n, uint64_t token) {
  uint64_t low = 0, high = n; // the last one that begins at or before it
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

// The documents that have a part in a tail.
static lm_status tails_mark_in(const lm_data *d, const lm_data_options *o, const lm_doc *docs,
                               lm_row_plan *plan, unsigned char *left_out) {
  marking marking = {docs, d->corpus.n_docs, left_out};
  for (int i = 0; i < o->n_holdouts; i++) {
    if (o->holdouts[i].kind != LM_HOLDOUT_TAIL)
      continue;
    for (int g = 0; g < d->groups; g++)
      LM_TRY(span_visit(&d->lengths[0], &d->parts[i + 1].spans[g], document_mark, &marking));
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
                             length *x) {
  lm_row_plan own = *plan;
  own.seq = x->seq;
  LM_TRY(lm_row_index_open(o, &d->corpus, &own, &x->index));
  x->train = lm_alloc(sizeof *x->train);
  part_take_set(d, &x->index, x->train, 0);
  return x->train->n ? NULL
                     : lm_fail(LM_USER,
                               "no document is left to train on in rows of %lld tokens: what is "
                               "held out has a part of each",
                               (long long)x->seq);
}

// How many rows hold the documents among which the order is by chance.
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
  lm_row_plan plan = {.seq = d->seq, .by_source = d->groups > 1, .samples = samples};
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

// Every source that a stage takes rows from must have some.
static lm_status mix_check(const lm_data *d, const lm_data_options *o) {
  for (int i = 0; i < o->n_stages; i++)
    for (int g = 0; g < o->n_sources; g++)
      if (d->mix.stages[i].share[g] && !d->lengths[d->stages[i].length].train->spans[g].n)
        return lm_status_about(lm_fail(LM_USER,
                                       "source %s has a share of the mix and no row to train on",
                                       o->sources[g].name),
                               &o->sources[g]);
  return NULL;
}

static lm_status files_open(lm_data *d, const lm_data_options *o) {
  lm_file_list files;
  LM_TRY(lm_file_list_make(o->sources, o->n_sources, &files));
  d->unshared = files.unshared;
  lm_status s = lm_corpus_open(o, &files, &d->corpus);
  lm_file_list_free(&files);
  return s;
}

static lm_status corpus_open(lm_data *d, const lm_data_options *o) {
  for (int i = 0; i < o->n_sources; i++)
    if (o->sources[i].kind == LM_SOURCE_BATCHES)
      return lm_status_about(
          lm_fail(LM_USER, "source %s: finished batches stand alone, without other sources",
                  o->sources[i].name),
          &o->sources[i]);
  LM_TRY(stages_read(d, o));
  LM_TRY(lm_mix_create(o, &d->mix));
  LM_TRY(files_open(d, o));
  if (!d->corpus.n_docs)
    return lm_fail(LM_USER, "the sources hold no text");
  d->groups = d->mix.n_stages && o->n_sources > 1 ? o->n_sources : 1;
  LM_TRY(rows_make(d, o));
  d->place = d->groups > 1 ? lm_alloc(sizeof *d->place) : NULL;
  return d->groups > 1 ? mix_check(d, o) : NULL;
}

static lm_status replay_open(lm_data *d, const lm_data_options *o) {
  if (o->n_holdouts)
    return lm_status_about(lm_fail(LM_USER,
                                   "holdout %s: nothing can be held out of finished batches",
                                   o->holdouts[0].name),
                           &o->holdouts[0]);
  LM_TRY(lm_status_about(
      lm_annotate(lm_replay_open(o->sources[0].path, &d->replay), "source %s", o->sources[0].name),
      &o->sources[0]));
  int64_t steps, rows;
  lm_replay_shape(d->replay, &steps, &rows, &d->seq);
  d->unshared = lm_replay_unshared(d->replay);
  d->parts[0].n = (uint64_t)(steps * rows);
  d->parts[0].tokens = steps * rows * d->seq;
  return NULL;
}

static lm_status batch_fill(void *user, const lm_batch_id *id, const lm_batch *b);

lm_status lm_data_open(const lm_data_options *o, lm_data **out) {
  lm_data *d = lm_alloc(sizeof *d);
  d->seed = o->seed;
  d->shuffle = o->shuffle > 0 ? (uint64_t)o->shuffle : 0;
  d->tokenizer = o->tokenizer;
  d->n_parts = 1 + o->n_holdouts;
  d->parts = lm_calloc((size_t)d->n_parts, sizeof *d->parts);
  for (int i = 0; i < d->n_parts; i++)
    d->parts[i].name = lm_strdup(i ? o->holdouts[i - 1].name : "train");
  bool replays = o->n_sources == 1 && o->sources[0].kind == LM_SOURCE_BATCHES;
  lm_status s = replays ? replay_open(d, o) : corpus_open(d, o);
  if (!s && o->prefetch)
    d->prefetch = lm_prefetch_create(batch_fill, d);
  if (s)
    lm_data_close(d);
  *out = s ? NULL : d;
  return s;
}

static void length_close(length *x, bool first) {
  lm_row_index_close(&x->index);
  lm_free(x->windows);
  if (first || !x->train)
    return; // the first one's is among the parts
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
  lm_free(d->stages);
  lm_free(d->lengths);
  lm_free(d->place);
  lm_free(d);
}

lm_status lm_data_cache_dir(lm_arena *a, const char **out) {
  const char *dir;
  LM_TRY(lm_cache_dir(a, &dir));
  *out = lm_path_join(a, dir, "data");
  return NULL;
}

// ---- what there is

lm_data_info lm_data_info_of(const lm_data *d) {
  lm_data_info info = {
      .n_parts = d->n_parts, .seq = d->seq, .bad_list = "", .unshared = d->unshared};
  if (d->replay) {
    lm_replay_shape(d->replay, &info.steps, &info.batch_rows, &info.seq);
    lm_replay_limits(d->replay, &info.max_id, &info.max_pos);
  } else {
    info.max_id = d->tokenizer->vocab - 1;
    for (int i = 0; i < d->n_lengths; i++)
      if (d->lengths[i].seq > info.max_pos)
        info.max_pos = (int32_t)d->lengths[i].seq - 1;
    info.read = (int64_t)d->corpus.read;
    info.bad = (int64_t)d->corpus.bad;
    info.bad_list = d->corpus.bad_list;
    info.from_cache = d->corpus.from_cache;
  }
  return info;
}

lm_data_part_info lm_data_part(const lm_data *d, int index) {
  const part *p = &d->parts[index];
  return (lm_data_part_info){p->name, p->docs, p->tokens, (int64_t)p->n};
}

// Beside the documents it matters whose they are where sources are mixed.
static uint64_t corpus_key(const lm_corpus *c, int groups) {
  uint64_t parts[] = {c->tokens->root, lm_store_payload_key(c->docs)};
  uint64_t key = lm_hash(parts, sizeof parts, 0);
  return groups > 1 ? lm_hash(c->source_first, ((size_t)groups + 1) * sizeof *c->source_first, key)
                    : key;
}

lm_status lm_data_key(const lm_data *d, int64_t batches, uint64_t *out) {
  *out = 0;
  if (d->replay)
    LM_TRY(lm_replay_key(d->replay, batches, out));
  else
    *out = corpus_key(&d->corpus, d->groups);
  *out += !*out;
  return NULL;
}

lm_status lm_data_unchanged(const lm_data *d) {
  if (d->replay)
    return lm_replay_unchanged(d->replay);
  for (int i = 0; i < d->n_lengths; i++)
    LM_TRY(lm_store_unchanged(d->lengths[i].index.store));
  return lm_corpus_unchanged(&d->corpus);
}

int lm_data_part_find(const lm_data *d, const char *name) {
  for (int i = 0; i < d->n_parts; i++)
    if (!strcmp(d->parts[i].name, name))
      return i;
  return -1;
}

// What each token stands for in bytes; those that are put around a text for none.
static uint32_t *lengths_make(const lm_tokenizer *t) {
  uint32_t *lengths = lm_calloc((size_t)t->vocab, sizeof *lengths);
  for (int32_t id = 0; id < t->vocab; id++) {
    size_t n;
    lm_tokenizer_piece(t, id, &n);
    lengths[id] = (uint32_t)n;
  }
  if (t->eos >= 0)
    lengths[t->eos] = 0;
  for (int i = 0; i < t->n_prefix; i++)
    lengths[t->prefix[i]] = 0;
  for (int i = 0; i < t->n_suffix; i++)
    lengths[t->suffix[i]] = 0;
  return lengths;
}

typedef struct {
  const lm_corpus *corpus;
  const uint32_t *lengths;
  int64_t total;
} bytes_sum;

static lm_status piece_bytes(void *user, const lm_piece *p) {
  bytes_sum *sum = user;
  int32_t ids[SOME];
  uint64_t end = p->start + p->len + !p->ends, n; // its first token is predicted by nothing
  for (uint64_t at = p->start + 1; at < end; at += n) {
    n = end - at < SOME ? end - at : SOME;
    LM_TRY(lm_corpus_read(sum->corpus, at, n, ids));
    for (uint64_t i = 0; i < n; i++)
      sum->total += sum->lengths[ids[i]];
  }
  return NULL;
}

int64_t lm_data_predicted_bytes(const lm_data *d, int index) {
  if (d->replay)
    return 0; // what its tokens stand for is not known
  uint32_t *lengths = lengths_make(d->tokenizer);
  bytes_sum sum = {&d->corpus, lengths, 0};
  lm_status s = NULL;
  for (int g = 0; g < d->groups && !s; g++)
    s = span_visit(&d->lengths[0], &d->parts[index].spans[g], piece_bytes, &sum);
  lm_free(lengths);
  bool known = !s; // else filling the part says why
  lm_status_free(s);
  return known ? sum.total : 0;
}

// ---- filling

static void place_fill(const lm_batch *b, int64_t at, int32_t tok, int32_t pos, int32_t seg,
                       int32_t next, float w) {
  b->tok[at] = tok;
  b->pos[at] = pos;
  b->seg[at] = seg;
  b->next[at] = next;
  b->w[at] = w;
}

static void padding_fill(const lm_batch *b, int64_t from, int64_t to) {
  for (int64_t at = from; at < to; at++)
    place_fill(b, at, 0, 0, -1, 0, 0);
}

typedef struct {
  const lm_corpus *corpus;
  const lm_batch *b;
  int64_t at;
  int32_t seg;
} filling; // of a row: the place and segment that are next

static lm_status piece_fill(void *user, const lm_piece *p) {
  filling *f = user;
  int32_t ids[SOME + 1];
  for (uint32_t done = 0, n; done < p->len; done += n) {
    n = p->len - done < SOME ? p->len - done : SOME;
    bool ends = p->ends && done + n == p->len; // nothing stands behind it
    LM_TRY(lm_corpus_read(f->corpus, p->start + done, n + !ends, ids));
    for (uint32_t i = 0; i < n; i++) {
      bool last = ends && i + 1 == n;
      place_fill(f->b, f->at++, ids[i], (int32_t)(done + i), f->seg, last ? 0 : ids[i + 1],
                 last ? 0 : 1);
    }
  }
  f->seg++;
  return NULL;
}

static lm_status row_fill(const lm_data *d, const length *x, uint64_t set, uint64_t row, int64_t at,
                          const lm_batch *b) {
  filling f = {&d->corpus, b, at, 0};
  LM_TRY(lm_row_index_visit(&x->index, set, row, 1, piece_fill, &f));
  padding_fill(b, f.at, at + x->seq);
  return NULL;
}

static lm_status replay_fill(const lm_data *d, const lm_batch_id *id, uint64_t first,
                             const lm_batch *b) {
  lm_data_info info = lm_data_info_of(d);
  if (id->n_micro * id->rows != info.batch_rows)
    return lm_fail(LM_USER, "a step of %lld rows cannot replay batches of %lld",
                   (long long)(id->n_micro * id->rows), (long long)info.batch_rows);
  if (id->step >= info.steps)
    return lm_fail(LM_USER, "step %lld: there are only %lld batches", (long long)id->step + 1,
                   (long long)info.steps);
  return lm_replay_fill(d->replay, (int64_t)first, id->rows, b);
}

// Row `row` of a stage.
static lm_status training_row_fill(const lm_data *d, int index, uint64_t row,
                                   uint64_t rows_per_step, int64_t at, const lm_batch *b) {
  const length *x = &d->lengths[d->stages[index].length];
  uint64_t q = rows_before(d, index, rows_per_step) + row;
  int group = 0;
  if (d->groups > 1)
    lm_mix_find(&d->mix, index, row, rows_per_step, d->place, &group, &q);
  const span *s = &x->train->spans[group];
  uint64_t epoch = q / s->n;
  uint64_t stream = STREAM_ORDER + epoch + ((uint64_t)group << GROUP_SHIFT);
  return row_fill(d, x, s->set,
                  s->first + lm_row_order(d->seed, stream, s->n, x->windows[group], q % s->n), at,
                  b);
}

static lm_status batch_fill(void *user, const lm_batch_id *id, const lm_batch *b) {
  const lm_data *d = user;
  uint64_t rows_per_step = (uint64_t)id->n_micro * (uint64_t)id->rows;
  uint64_t in_step = (uint64_t)id->micro * (uint64_t)id->rows;
  if (d->replay)
    return replay_fill(d, id, (uint64_t)id->step * rows_per_step + in_step, b);
  int index = stage_of(d, id->step);
  uint64_t first = (uint64_t)(id->step - d->stages[index].first_step) * rows_per_step + in_step;
  for (int64_t r = 0; r < id->rows; r++)
    LM_TRY(training_row_fill(d, index, first + (uint64_t)r, rows_per_step, r * id->seq, b));
  return NULL;
}

// Steps have the same number of places, whatever their length.
static lm_batch_id id_behind(const lm_data *d, const lm_batch_id *id) {
  bool last = id->micro + 1 >= id->n_micro;
  int64_t step = id->step + last;
  int64_t seq = lm_data_seq(d, step);
  return (lm_batch_id){step, last ? 0 : id->micro + 1, id->n_micro, id->rows * id->seq / seq, seq};
}

lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows,
                       const lm_batch *b) {
  lm_batch_id id = {step, micro, n_micro, rows, lm_data_seq(d, step)}, next = id_behind(d, &id);
  return d->prefetch ? lm_prefetch_take(d->prefetch, &id, &next, b) : batch_fill((void *)d, &id, b);
}

// Row i of a part, counted through its groups.
static lm_status part_row_fill(const lm_data *d, const part *p, uint64_t i, int64_t at,
                               const lm_batch *b) {
  int g = 0;
  while (i >= p->spans[g].n)
    i -= p->spans[g++].n;
  return row_fill(d, &d->lengths[0], p->spans[g].set, p->spans[g].first + i, at, b);
}

lm_status lm_data_fill_part(const lm_data *d, int index, int64_t first, int64_t rows,
                            const lm_batch *b) {
  const part *p = &d->parts[index];
  int64_t there = (int64_t)p->n - first;
  int64_t n = there < 0 ? 0 : there < rows ? there : rows;
  if (d->replay)
    LM_TRY(lm_replay_fill(d->replay, first, n, b));
  else
    for (int64_t r = 0; r < n; r++)
      LM_TRY(part_row_fill(d, p, (uint64_t)(first + r), r * d->seq, b));
  padding_fill(b, n * d->seq, rows * d->seq);
  return NULL;
}
