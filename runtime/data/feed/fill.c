// fill.c - fills batches and counts the bytes of text of a part.
#include <string.h>

#include "runtime/data/feed/state.h"

// Random streams of lm_philox_key: epoch e of group g uses STREAM_ORDER + e + g * 2^48.
enum {
  STREAM_ORDER = 1000,
  GROUP_SHIFT = 48
};
enum {
  SOME = 2048 // tokens that are read at a time
};

// ---- bytes of text

// The number of bytes of text of each token; 0 for the tokens that frame a text.
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
  float weights[SOME];
  uint64_t end = p->start + p->len + !p->ends, n; // the first token is not predicted
  for (uint64_t at = p->start + 1; at < end; at += n) {
    n = end - at < SOME ? end - at : SOME;
    LM_TRY(lm_corpus_read(sum->corpus, at, n, ids, weights));
    for (uint64_t i = 0; i < n; i++)
      sum->total += weights[i] != 0 ? sum->lengths[ids[i]] : 0;
  }
  return NULL;
}

int64_t lm_data_predicted_bytes(const lm_data *d, int index) {
  if (d->replay)
    return 0; // the text of the tokens is unknown
  uint32_t *lengths = lengths_make(d->tokenizer);
  bytes_sum sum = {&d->corpus, lengths, 0};
  lm_status s = NULL;
  for (int g = 0; g < d->groups && !s; g++)
    s = lm_data_span_visit(&d->lengths[0], &d->parts[index].spans[g], piece_bytes, &sum);
  lm_free(lengths);
  bool known = !s; // an error is reported when the part is filled
  lm_status_free(s);
  return known ? sum.total : 0;
}

// ---- filling

static void position_fill(const lm_batch *b, int64_t at, int32_t tok, int32_t pos, int32_t seg,
                          int32_t next, float w) {
  b->tok[at] = tok;
  b->pos[at] = pos;
  b->seg[at] = seg;
  b->next[at] = next;
  b->w[at] = w;
}

static void padding_fill(const lm_batch *b, int64_t from, int64_t to) {
  for (int64_t at = from; at < to; at++)
    position_fill(b, at, lm_column_table[LM_COLUMN_TOK].min, lm_column_table[LM_COLUMN_POS].min,
                  lm_column_table[LM_COLUMN_SEG].min, lm_column_table[LM_COLUMN_NEXT].min, 0);
}

typedef struct {
  const lm_data *d;
  const lm_batch *b;
  int64_t row, first, at;
  int32_t seg;
  int64_t source_at;
} filling; // first: the row's first position; at, seg: its next position and segment

static lm_status piece_fill(void *user, const lm_piece *p) {
  filling *f = user;
  int32_t ids[SOME + 1];
  float weights[SOME + 1];
  lm_data_document x = {f->row, f->seg, f->at - f->first, p->len, p->start};
  LM_TRY(lm_data_columns_fill(f->d, f->b, &x));
  LM_TRY(lm_data_source_fill(f->d, f->b, &x, &f->source_at));
  for (uint32_t done = 0, n; done < p->len; done += n) {
    n = p->len - done < SOME ? p->len - done : SOME;
    bool ends = p->ends && done + n == p->len; // the document ends here
    LM_TRY(lm_corpus_read(&f->d->corpus, p->start + done, n + !ends, ids, weights));
    for (uint32_t i = 0; i < n; i++) {
      bool last = ends && i + 1 == n;
      position_fill(f->b, f->at++, ids[i], (int32_t)(done + i), f->seg, last ? 0 : ids[i + 1],
                    last ? 0 : weights[i + 1]);
    }
  }
  lm_data_prompt_fill(f->b, f->at - p->len, p->len);
  f->seg++;
  return NULL;
}

static lm_status row_fill(const lm_data *d, const lm_data_length *x, uint64_t set, uint64_t row,
                          int64_t at, const lm_batch *b) {
  filling f = {d, b, at / x->seq, at, at, 0, 0};
  lm_data_columns_clear(b, f.row);
  LM_TRY(lm_row_index_visit(&x->index, set, row, 1, piece_fill, &f));
  padding_fill(b, f.at, at + x->seq);
  return NULL;
}

static lm_status replay_fill(const lm_data *d, const lm_batch_id *id, uint64_t first,
                             const lm_batch *b) {
  lm_data_info info = lm_data_info_of(d);
  if (id->n_micro * id->rows != info.batch_rows)
    return lm_fail(LM_USER, "a step of %lld rows cannot replay batches of %lld rows",
                   (long long)(id->n_micro * id->rows), (long long)info.batch_rows);
  if (id->step >= info.steps)
    return lm_fail(LM_USER, "step %lld: there are only %lld batches", (long long)id->step + 1,
                   (long long)info.steps);
  return lm_replay_fill(d->replay, (int64_t)first, id->own, b);
}

// The number of rows in earlier stages of equal sequence length.
static uint64_t rows_before(const lm_data *d, int index, uint64_t rows_per_step) {
  uint64_t steps = 0;
  for (int i = 0; i < index; i++)
    if (d->stages[i].length == d->stages[index].length)
      steps += (uint64_t)(d->stages[i + 1].first_step - d->stages[i].first_step);
  return steps * rows_per_step;
}

// Fills row `row` of a stage.
static lm_status training_row_fill(const lm_data *d, int index, uint64_t row,
                                   uint64_t rows_per_step, int64_t at, const lm_batch *b) {
  const lm_data_length *x = &d->lengths[d->stages[index].length];
  uint64_t q = rows_before(d, index, rows_per_step) + row;
  int group = 0;
  if (d->groups > 1)
    lm_mix_find(&d->mix, index, row, rows_per_step, d->cursor, &group, &q);
  const lm_data_span *s = &x->train->spans[group];
  uint64_t epoch = q / s->n;
  uint64_t stream = STREAM_ORDER + epoch + ((uint64_t)group << GROUP_SHIFT);
  return row_fill(d, x, s->set,
                  s->first + lm_row_order(d->seed, stream, s->n, x->windows[group], q % s->n), at,
                  b);
}

lm_status lm_data_batch_fill(void *user, const lm_batch_id *id, const lm_batch *b) {
  const lm_data *d = user;
  uint64_t rows_per_step = (uint64_t)id->n_micro * (uint64_t)id->rows;
  uint64_t in_step = (uint64_t)id->micro * (uint64_t)id->rows + (uint64_t)id->first;
  if (d->replay)
    return replay_fill(d, id, (uint64_t)id->step * rows_per_step + in_step, b);
  int index = lm_data_stage_of(d, id->step);
  uint64_t first = (uint64_t)(id->step - d->stages[index].first_step) * rows_per_step + in_step;
  for (int64_t r = 0; r < id->own; r++)
    LM_TRY(training_row_fill(d, index, first + (uint64_t)r, rows_per_step, r * id->seq, b));
  return NULL;
}

// The batch after `id`. All steps have the same number of positions, whatever their length.
static lm_batch_id id_after(const lm_data *d, const lm_batch_id *id) {
  bool last = id->micro + 1 >= id->n_micro;
  int64_t step = id->step + last;
  int64_t seq = lm_data_seq(d, step);
  int64_t micro = last ? 0 : id->micro + 1;
  return (lm_batch_id){.step = step,
                       .micro = micro,
                       .n_micro = id->n_micro,
                       .rows = id->rows * id->seq / seq,
                       .seq = seq,
                       .first = id->first * id->seq / seq,
                       .own = id->own * id->seq / seq};
}

lm_status lm_data_fill_rows(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro,
                            int64_t rows, int64_t first, int64_t n, const lm_batch *b) {
  lm_batch_id id = {step, micro, n_micro, rows, lm_data_seq(d, step), first, n};
  lm_batch_id next = id_after(d, &id);
  return d->prefetch ? lm_prefetch_take(d->prefetch, &id, &next, b)
                     : lm_data_batch_fill((void *)d, &id, b);
}

lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows,
                       const lm_batch *b) {
  return lm_data_fill_rows(d, step, micro, n_micro, rows, 0, rows, b);
}

// Fills row i of a part, counted over its groups.
static lm_status part_row_fill(const lm_data *d, const lm_data_rows *p, uint64_t i, int64_t at,
                               const lm_batch *b) {
  int g = 0;
  while (i >= p->spans[g].n)
    i -= p->spans[g++].n;
  return row_fill(d, &d->lengths[0], p->spans[g].set, p->spans[g].first + i, at, b);
}

lm_status lm_data_fill_part(const lm_data *d, int index, int64_t first, int64_t rows,
                            const lm_batch *b) {
  const lm_data_rows *p = &d->parts[index];
  int64_t rest = (int64_t)p->n - first;
  int64_t n = rest < 0 ? 0 : rest < rows ? rest : rows;
  if (d->replay)
    LM_TRY(lm_replay_fill(d->replay, first, n, b));
  else
    for (int64_t r = 0; r < n; r++)
      LM_TRY(part_row_fill(d, p, (uint64_t)(first + r), r * d->seq, b));
  padding_fill(b, n * d->seq, rows * d->seq);
  for (int64_t r = n; r < rows; r++)
    lm_data_columns_clear(b, r);
  return NULL;
}
