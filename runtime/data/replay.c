// replay.c - finished batches from a file.
#include "runtime/data/replay.h"

#include <string.h>

#include "runtime/io/safetensors.h"

enum { TOK, POS, SEG, NEXT, W, COLUMNS };
static const struct { const char *name; lm_st_dtype dtype; int32_t least; } columns[COLUMNS] = {
    {"tok", LM_ST_I32, 0}, {"pos", LM_ST_I32, 0}, {"seg", LM_ST_I32, -1}, {"next", LM_ST_I32, 0}, {"w", LM_ST_F32, 0},
};

struct lm_replay {
  lm_st *file;
  const lm_st_tensor *column[COLUMNS];
  int32_t greatest[COLUMNS];
};

static lm_status column_find(lm_replay *r, const char *path, int c) {
  const lm_st_tensor *t = lm_st_find(r->file, columns[c].name), *first = r->column[0];
  if (!t) return lm_fail(LM_USER, "%s: no tensor %s", path, columns[c].name);
  if (t->dtype != columns[c].dtype)
    return lm_fail(LM_USER, "%s: %s is %s, should be %s", path, t->name, lm_st_dtype_name(t->dtype),
                   lm_st_dtype_name(columns[c].dtype));
  if (t->rank != 3 || !t->elements) return lm_fail(LM_USER, "%s: %s is not [steps, rows, seq]", path, t->name);
  if (c && memcmp(t->shape, first->shape, 3 * sizeof *t->shape))
    return lm_fail(LM_USER, "%s: %s and %s differ in shape", path, t->name, first->name);
  r->column[c] = t;
  return NULL;
}

// Numbers that index something are never taken on trust.
static lm_status column_scan(lm_replay *r, const char *path, int c) {
  const char *p = r->column[c]->data;
  for (int64_t i = 0; i < r->column[c]->elements; i++) {
    int32_t x;
    memcpy(&x, p + 4 * i, sizeof x);
    if (x < columns[c].least) return lm_fail(LM_USER, "%s: %s holds %d", path, columns[c].name, x);
    if (x > r->greatest[c]) r->greatest[c] = x;
  }
  return NULL;
}

static lm_status columns_open(lm_replay *r, const char *path) {
  LM_TRY(lm_st_open(path, &r->file));
  for (int c = 0; c < COLUMNS; c++) LM_TRY(column_find(r, path, c));
  for (int c = 0; c < W; c++) LM_TRY(column_scan(r, path, c));
  return NULL;
}

lm_status lm_replay_open(const char *path, lm_replay **out) {
  lm_replay *r = lm_alloc(sizeof *r);
  lm_status s = columns_open(r, path);
  if (s) lm_replay_close(r);
  *out = s ? NULL : r;
  return s;
}

void lm_replay_close(lm_replay *r) {
  if (!r) return;
  lm_st_close(r->file);
  lm_free(r);
}

void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq) {
  const int64_t *shape = r->column[TOK]->shape;
  *out_steps = shape[0], *out_rows = shape[1], *out_seq = shape[2];
}

uint64_t lm_replay_key(const lm_replay *r, int64_t steps) {
  const int64_t *shape = r->column[TOK]->shape;
  size_t places = (size_t)((steps < shape[0] ? steps : shape[0]) * shape[1] * shape[2]);
  uint64_t key = lm_hash(shape + 1, 2 * sizeof *shape, 0);
  for (int c = 0; c < COLUMNS; c++) key = lm_hash(r->column[c]->data, places * 4, key);
  return key;
}

void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos) {
  *out_max_id = r->greatest[TOK] > r->greatest[NEXT] ? r->greatest[TOK] : r->greatest[NEXT];
  *out_max_pos = r->greatest[POS];
}

void lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b) {
  void *to[COLUMNS] = {b->tok, b->pos, b->seg, b->next, b->w};
  size_t row = 4 * (size_t)r->column[TOK]->shape[2];
  for (int c = 0; c < COLUMNS; c++) memcpy(to[c], (const char *)r->column[c]->data + (size_t)first * row, (size_t)n * row);
}
