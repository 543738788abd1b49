// replay.c - see replay.h.
#include "runtime/data/feed/replay.h"

#include <string.h>
#include <sys/stat.h>

#include "runtime/data/read/input.h"
#include "runtime/weights/safetensors.h"

struct lm_replay {
  lm_st *file;
  char *path;
  struct stat opened; // the result of stat when the file was opened
  uint64_t all;       // hash of all data, which detects changes if the times differ
  const lm_st_tensor *column[LM_COLUMNS];
  int32_t max_of[LM_COLUMNS];
};

// "tok I32, pos I32, …, w F32"
static lm_status dtype_refuse(const char *path, const lm_st_tensor *t) {
  lm_buf list = {0};
  for (int c = 0; c < LM_COLUMNS; c++)
    lm_buf_printf(&list, "%s%s %s", c ? ", " : "", lm_column_table[c].name,
                  lm_st_dtype_name(lm_dtype_table[lm_column_table[c].dtype].stored));
  lm_status s = lm_fail(LM_USER, "%s: %s is %s; a file of batches holds %s", path, t->name,
                        lm_st_dtype_name(t->dtype), list.p);
  lm_buf_free(&list);
  return s;
}

static lm_status column_find(lm_replay *r, const char *path, int c) {
  const lm_st_tensor *t = lm_st_find(r->file, lm_column_table[c].name);
  const lm_st_tensor *first = r->column[0];
  if (!t)
    return lm_fail(LM_USER, "%s: no tensor %s", path, lm_column_table[c].name);
  lm_st_dtype dtype = lm_dtype_table[lm_column_table[c].dtype].stored;
  if (t->dtype != dtype)
    return dtype_refuse(path, t);
  if (t->rank != 3 || !t->elements)
    return lm_fail(LM_USER, "%s: %s is not [steps, rows, seq]", path, t->name);
  if (c && memcmp(t->shape, first->shape, 3 * sizeof *t->shape))
    return lm_fail(LM_USER, "%s: %s and %s differ in shape", path, t->name, first->name);
  r->column[c] = t;
  return NULL;
}

typedef struct {
  int32_t min, max;
} extent;

static extent extent_of(const void *p, size_t n, extent e) {
  for (size_t i = 0; i < n; i++) {
    int32_t x;
    memcpy(&x, (const char *)p + 4 * i, sizeof x);
    e.min = x < e.min ? x : e.min;
    e.max = x > e.max ? x : e.max;
  }
  return e;
}

// Checks the range of values that are used as indexes.
static lm_status piece_scan(lm_replay *r, int c, const char *p, size_t n) {
  if (lm_column_table[c].dtype != LM_INT)
    return NULL;
  extent e = extent_of(p, n, (extent){lm_column_table[c].min, r->max_of[c]});
  if (e.min < lm_column_table[c].min)
    return lm_fail(LM_USER, "%s: %s holds %d", r->path, lm_column_table[c].name, e.min);
  r->max_of[c] = e.max;
  return NULL;
}

// Hashes the first `positions` elements of a column in pieces, and checks them if `scanned` is not
// NULL.
static lm_status column_visit(const lm_replay *r, int c, size_t positions, lm_replay *scanned,
                              uint64_t *key) {
  enum {
    POSITIONS = 1 << 18
  };
  char *piece = lm_alloc(LM_COLUMN_BYTES * POSITIONS);
  lm_hasher h = lm_hash_begin(*key);
  lm_status s = NULL;
  for (size_t at = 0; at < positions && !s; at += POSITIONS) {
    size_t n = positions - at < POSITIONS ? positions - at : POSITIONS;
    s = lm_st_read(r->column[c], (int64_t)at, (int64_t)n, piece);
    if (!s)
      lm_hash_add(&h, piece, LM_COLUMN_BYTES * n);
    if (!s && scanned)
      s = piece_scan(scanned, c, piece, n);
  }
  *key = lm_hash_end(&h);
  lm_free(piece);
  return s;
}

static lm_status columns_visit(const lm_replay *r, size_t positions, lm_replay *scanned,
                               uint64_t *key) {
  for (int c = 0; c < LM_COLUMNS; c++)
    LM_TRY(column_visit(r, c, positions, scanned, key));
  return NULL;
}

static size_t positions_of(const lm_replay *r, int64_t steps) {
  const int64_t *shape = r->column[LM_COLUMN_TOK]->shape;
  return (size_t)((steps < shape[0] ? steps : shape[0]) * shape[1] * shape[2]);
}

static lm_status columns_open(lm_replay *r, const char *path) {
  r->path = lm_strdup(path);
  LM_TRY(lm_st_open(path, &r->file));
  for (int c = 0; c < LM_COLUMNS; c++)
    LM_TRY(column_find(r, path, c));
  if (fstat(r->column[0]->fd, &r->opened))
    return lm_fail_errno("cannot read %s", path);
  return columns_visit(r, positions_of(r, INT64_MAX), r, &r->all);
}

lm_status lm_replay_open(const char *path, lm_replay **out) {
  lm_replay *r = lm_alloc(sizeof *r);
  lm_status s = columns_open(r, path);
  if (s)
    lm_replay_close(r);
  *out = s ? NULL : r;
  return s;
}

void lm_replay_close(lm_replay *r) {
  if (!r)
    return;
  lm_st_close(r->file);
  lm_free(r->path);
  lm_free(r);
}

unsigned lm_replay_umask(const lm_replay *r) {
  return lm_input_umask(&r->opened);
}

static bool is_same_time(const struct timespec *a, const struct timespec *b) {
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static lm_status changed(const lm_replay *r) {
  return lm_fail(LM_ENV,
                 "%s was changed while this run used it; steps since the last checkpoint may have "
                 "seen other data",
                 r->path);
}

lm_status lm_replay_unchanged(lm_replay *r) {
  struct stat now;
  uint64_t all = 0;
  if (fstat(r->column[LM_COLUMN_TOK]->fd, &now))
    return lm_fail_errno("cannot read %s", r->path);
  bool same = now.st_size == r->opened.st_size && is_same_time(&now.st_mtim, &r->opened.st_mtim) &&
              is_same_time(&now.st_ctim, &r->opened.st_ctim);
  if (same)
    return NULL;
  if (now.st_size != r->opened.st_size)
    return changed(r);
  LM_TRY(columns_visit(r, positions_of(r, INT64_MAX), NULL, &all));
  if (all != r->all)
    return changed(r);
  r->opened = now; // only the name, the mode or the times changed
  return NULL;
}

void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq) {
  const int64_t *shape = r->column[LM_COLUMN_TOK]->shape;
  *out_steps = shape[0];
  *out_rows = shape[1];
  *out_seq = shape[2];
}

lm_status lm_replay_key(const lm_replay *r, int64_t steps, uint64_t *out) {
  *out = lm_hash(r->column[LM_COLUMN_TOK]->shape + 1, 2 * sizeof(int64_t), 0);
  return columns_visit(r, positions_of(r, steps), NULL, out);
}

void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos) {
  *out_max_id = r->max_of[LM_COLUMN_TOK] > r->max_of[LM_COLUMN_NEXT] ? r->max_of[LM_COLUMN_TOK]
                                                                     : r->max_of[LM_COLUMN_NEXT];
  *out_max_pos = r->max_of[LM_COLUMN_POS];
}

// The data may have changed since it was checked.
static lm_status filled_check(const lm_replay *r, int c, const void *p, size_t n) {
  extent e = extent_of(p, n, (extent){lm_column_table[c].min, r->max_of[c]});
  bool below = e.min < lm_column_table[c].min;
  if (!below && e.max == r->max_of[c])
    return NULL;
  return lm_fail(
      LM_ENV,
      "%s: %s holds %d, and did not when this run began: the file was changed while it was in use",
      r->path, lm_column_table[c].name, below ? e.min : e.max);
}

lm_status lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b) {
  int64_t seq = r->column[LM_COLUMN_TOK]->shape[2];
  for (int c = 0; c < LM_COLUMNS; c++) {
    LM_TRY(lm_st_read(r->column[c], first * seq, n * seq, b->column[c]));
    if (lm_column_table[c].dtype == LM_INT)
      LM_TRY(filled_check(r, c, b->column[c], (size_t)(n * seq)));
  }
  return NULL;
}
