// data.c - training data: opens sources, holds parts of them out, and fills the batch of any step.
#include "runtime/data/data.h"

#include <string.h>

#include "runtime/data/corpus.h"
#include "runtime/data/pack.h"
#include "runtime/data/permute.h"
#include "runtime/data/replay.h"

// Streams of randomness; keys of lm_philox_key. Epoch e of training draws from ORDER + e.
enum { STREAM_SAMPLE = 1, STREAM_ORDER = 1000 };

typedef struct { char *name; const lm_rows *rows; uint64_t first, n; } part;   // rows first … first + n - 1

struct lm_data {
  uint64_t seed;
  int64_t seq;
  const lm_tokenizer *tokenizer;
  lm_replay *replay;                   // NULL: the rest holds
  lm_corpus corpus;
  lm_rows *rows;                       // [n_parts]; those of tail holdouts are empty, their part lies in rows[0]
  part *parts; int n_parts;
  uint16_t *part_of;                   // [document]; NULL: all are in part 0
};

// ---- holding out

static lm_status docs_sample(lm_data *d, const lm_data_holdout *h, int index, uint64_t *taken) {
  if (h->docs < 1) return lm_fail(LM_USER, "holdout %s: a sample of %lld documents", h->name, (long long)h->docs);
  if ((uint64_t)h->docs >= d->corpus.n_docs - *taken)
    return lm_fail(LM_USER, "holdout %s: a sample of %lld documents leaves none of the %zu to train on", h->name,
                   (long long)h->docs, d->corpus.n_docs);
  lm_philox_key2 key = lm_philox_key(0, STREAM_SAMPLE);
  for (int64_t i = 0; i < h->docs; i++)
    d->part_of[lm_permute(key, d->corpus.n_docs, (*taken)++)] = (uint16_t)index;
  return NULL;
}

// Takes the last rows of what part 0 still has; at least one.
static lm_status rows_tail(lm_data *d, const lm_data_holdout *h, int index) {
  part *train = &d->parts[0];
  if (!(h->fraction > 0 && h->fraction < 1))
    return lm_fail(LM_USER, "holdout %s: tail takes more than 0%% and less than 100%%", h->name);
  uint64_t n = (uint64_t)(h->fraction * (double)d->rows[0].n_rows + 0.5);
  if (!n) n = 1;
  if (n >= train->n)
    return lm_fail(LM_USER, "holdout %s leaves no row of %llu to train on", h->name, (unsigned long long)train->n);
  train->n -= n;
  d->parts[index].rows = &d->rows[0];
  d->parts[index].first = train->first + train->n;
  d->parts[index].n = n;
  return NULL;
}

typedef struct { const uint16_t *part_of; int part; } chosen;

static bool is_chosen(void *user, uint64_t doc) {
  const chosen *c = user;
  return (c->part_of ? c->part_of[doc] : 0) == c->part;
}

static lm_status rows_make(lm_data *d, int index) {
  chosen c = {d->part_of, index};
  LM_TRY(lm_rows_pack(d->corpus.starts, d->corpus.n_docs, is_chosen, &c, d->seq, &d->rows[index]));
  d->parts[index].rows = &d->rows[index];
  d->parts[index].n = d->rows[index].n_rows;
  return NULL;
}

static lm_status parts_make(lm_data *d, const lm_data_options *o) {
  uint64_t taken = 0;
  for (int i = 0; i < o->n_holdouts; i++)
    if (o->holdouts[i].kind == LM_HOLDOUT_SAMPLE) {
      if (!d->part_of) d->part_of = lm_calloc(d->corpus.n_docs, sizeof *d->part_of);
      LM_TRY(docs_sample(d, &o->holdouts[i], i + 1, &taken));
    }
  LM_TRY(rows_make(d, 0));
  for (int i = 0; i < o->n_holdouts; i++)
    LM_TRY(o->holdouts[i].kind == LM_HOLDOUT_TAIL ? rows_tail(d, &o->holdouts[i], i + 1) : rows_make(d, i + 1));
  return NULL;
}

// ---- opening

static lm_status corpus_open(lm_data *d, const lm_data_options *o) {
  for (int i = 0; i < o->n_sources; i++) {
    if (o->sources[i].kind == LM_SOURCE_BATCHES)
      return lm_fail(LM_USER, "source %s: finished batches stand alone, without other sources", o->sources[i].name);
    LM_TRY(lm_corpus_read(&d->corpus, &o->sources[i], o->tokenizer));
  }
  if (!d->corpus.n_docs) return lm_fail(LM_USER, "the sources hold no text");
  return parts_make(d, o);
}

static lm_status replay_open(lm_data *d, const lm_data_options *o) {
  if (o->n_holdouts) return lm_fail(LM_USER, "holdout %s: nothing can be held out of finished batches", o->holdouts[0].name);
  LM_TRY(lm_annotate(lm_replay_open(o->sources[0].path, &d->replay), "source %s", o->sources[0].name));
  int64_t steps, rows;
  lm_replay_shape(d->replay, &steps, &rows, &d->seq);
  d->parts[0].n = (uint64_t)(steps * rows);
  return NULL;
}

lm_status lm_data_open(const lm_data_options *o, lm_data **out) {
  lm_data *d = lm_alloc(sizeof *d);
  d->seed = o->seed;
  d->seq = o->seq;
  d->tokenizer = o->tokenizer;
  d->n_parts = 1 + o->n_holdouts;
  d->rows = lm_calloc((size_t)d->n_parts, sizeof *d->rows);
  d->parts = lm_calloc((size_t)d->n_parts, sizeof *d->parts);
  for (int i = 0; i < d->n_parts; i++) d->parts[i].name = lm_strdup(i ? o->holdouts[i - 1].name : "train");
  bool replays = o->n_sources == 1 && o->sources[0].kind == LM_SOURCE_BATCHES;
  lm_status s = replays ? replay_open(d, o) : corpus_open(d, o);
  if (s) lm_data_close(d);
  *out = s ? NULL : d;
  return s;
}

void lm_data_close(lm_data *d) {
  if (!d) return;
  lm_replay_close(d->replay);
  lm_corpus_free(&d->corpus);
  for (int i = 0; i < d->n_parts; i++) {
    lm_rows_free(&d->rows[i]);
    lm_free(d->parts[i].name);
  }
  lm_free(d->rows);
  lm_free(d->parts);
  lm_free(d->part_of);
  lm_free(d);
}

// ---- what there is

lm_data_info lm_data_info_of(const lm_data *d) {
  lm_data_info info = {.n_parts = d->n_parts, .seq = d->seq};
  if (d->replay) {
    lm_replay_shape(d->replay, &info.steps, &info.batch_rows, &info.seq);
    lm_replay_limits(d->replay, &info.max_id, &info.max_pos);
  } else {
    info.max_id = d->tokenizer->vocab - 1;
    info.max_pos = (int32_t)d->seq - 1;
  }
  return info;
}

lm_data_part_info lm_data_part(const lm_data *d, int index) {
  const part *p = &d->parts[index];
  lm_data_part_info info = {.name = p->name, .rows = (int64_t)p->n};
  if (d->replay) info.tokens = (int64_t)p->n * d->seq;
  else
    for (uint64_t k = p->rows->first[p->first]; k < p->rows->first[p->first + p->n]; k++) {
      info.docs += p->rows->pieces[k].begins;
      info.tokens += p->rows->pieces[k].len;
    }
  return info;
}

int lm_data_part_find(const lm_data *d, const char *name) {
  for (int i = 0; i < d->n_parts; i++)
    if (!strcmp(d->parts[i].name, name)) return i;
  return -1;
}

// Bytes of the tokens that a piece's tokens predict.
static int64_t piece_bytes(const lm_data *d, const lm_piece *p) {
  int64_t total = 0;
  for (uint64_t i = p->start + 1; i < p->start + p->len + !p->ends; i++) {
    size_t n;
    lm_tokenizer_piece(d->tokenizer, lm_corpus_token(&d->corpus, i), &n);
    total += (int64_t)n;
  }
  return total;
}

int64_t lm_data_predicted_bytes(const lm_data *d, int index) {
  if (d->replay) return 0;             // what its tokens stand for is not known
  const part *p = &d->parts[index];
  int64_t total = 0;
  for (uint64_t k = p->rows->first[p->first], end = p->rows->first[p->first + p->n]; k < end; k++)
    total += piece_bytes(d, &p->rows->pieces[k]);
  return total;
}

// ---- filling

static void place_fill(const lm_batch *b, int64_t at, int32_t tok, int32_t pos, int32_t seg, int32_t next, float w) {
  b->tok[at] = tok, b->pos[at] = pos, b->seg[at] = seg, b->next[at] = next, b->w[at] = w;
}

static void padding_fill(const lm_batch *b, int64_t from, int64_t to) {
  for (int64_t at = from; at < to; at++) place_fill(b, at, 0, 0, -1, 0, 0);
}

static void row_fill(const lm_data *d, const lm_rows *rows, uint64_t row, int64_t at, const lm_batch *b) {
  int64_t end = at + d->seq;
  int32_t seg = 0;
  for (uint64_t k = rows->first[row]; k < rows->first[row + 1]; k++, seg++) {
    const lm_piece *p = &rows->pieces[k];
    for (uint32_t i = 0; i < p->len; i++, at++) {
      bool last = p->ends && i + 1 == p->len;
      int32_t next = last ? 0 : lm_corpus_token(&d->corpus, p->start + i + 1);
      place_fill(b, at, lm_corpus_token(&d->corpus, p->start + i), (int32_t)i, seg, next, last ? 0 : 1);
    }
  }
  padding_fill(b, at, end);
}

lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows, const lm_batch *b) {
  uint64_t first = ((uint64_t)step * (uint64_t)n_micro + (uint64_t)micro) * (uint64_t)rows;
  const part *train = &d->parts[0];
  if (d->replay) {
    lm_data_info info = lm_data_info_of(d);
    if (n_micro * rows != info.batch_rows)
      return lm_fail(LM_USER, "a step of %lld rows cannot replay batches of %lld", (long long)(n_micro * rows),
                     (long long)info.batch_rows);
    if (step >= info.steps)
      return lm_fail(LM_USER, "step %lld: there are only %lld batches", (long long)step + 1, (long long)info.steps);
    lm_replay_fill(d->replay, (int64_t)first, rows, b);
    return NULL;
  }
  for (uint64_t r = 0; r < (uint64_t)rows; r++) {
    uint64_t epoch = (first + r) / train->n, i = (first + r) % train->n;
    uint64_t row = train->first + lm_permute(lm_philox_key(d->seed, STREAM_ORDER + epoch), train->n, i);
    row_fill(d, train->rows, row, (int64_t)r * d->seq, b);
  }
  return NULL;
}

void lm_data_fill_part(const lm_data *d, int index, int64_t first, int64_t rows, const lm_batch *b) {
  const part *p = &d->parts[index];
  int64_t there = (int64_t)p->n - first;
  int64_t n = there < 0 ? 0 : there < rows ? there : rows;
  if (d->replay) lm_replay_fill(d->replay, first, n, b);
  else
    for (int64_t r = 0; r < n; r++) row_fill(d, p->rows, p->first + (uint64_t)(first + r), r * d->seq, b);
  padding_fill(b, n * d->seq, rows * d->seq);
}
