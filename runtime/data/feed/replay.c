// replay.c - see replay.h.
#include "runtime/data/feed/replay.h"

#include <string.h>
#include <sys/stat.h>

#include "runtime/base/file.h"
#include "runtime/data/read/input.h"
#include "runtime/weights/safetensors.h"

typedef struct {
  const char *name;
  lm_dtype dtype;
  bool own;    // one of columns.def
  int32_t min; // the smallest valid value of an int column
  int32_t seen_min, max;
  const lm_st_tensor *t;
} column;

struct lm_replay {
  lm_st *file;
  char *path;
  struct stat opened; // the result of stat when the file was opened
  uint64_t all;       // hash of all data, which detects changes if the times differ
  column *columns;    // those of columns.def, then further ones
  int n_columns;
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

// A further column: [steps, rows, …], of int or of any floating-point type.
static lm_status further_check(const char *path, const column *c, const lm_st_tensor *first) {
  const lm_st_tensor *t = c->t;
  bool fits = c->dtype == LM_INT ? t->dtype == LM_ST_I32 : lm_st_dtype_is_float(t->dtype);
  if (!fits)
    return lm_fail(LM_USER, "%s: %s is %s, and a column of `loss` of type %s", path, t->name,
                   lm_st_dtype_name(t->dtype), c->dtype == LM_INT ? "int" : "f32");
  if (t->rank < 2 || memcmp(t->shape, first->shape, 2 * sizeof *t->shape))
    return lm_fail(LM_USER, "%s: %s is not [steps, rows, ...], as %s is", path, t->name,
                   first->name);
  for (int i = 2; i < (int)t->rank; i++)
    if (!t->shape[i])
      return lm_fail(LM_USER, "%s: %s has an axis of size 0", path, t->name);
  return NULL;
}

static lm_status column_find(lm_replay *r, const char *path, column *c) {
  const lm_st_tensor *first = r->columns[0].t;
  const lm_st_tensor *t = c->t = lm_st_find(r->file, c->name);
  if (!t)
    return lm_fail(LM_USER, "%s: no tensor %s%s", path, c->name,
                   c->own ? "" : ", which is a column of the model's `loss`");
  if (!c->own)
    return further_check(path, c, first);
  if (t->dtype != lm_dtype_table[c->dtype].stored)
    return dtype_refuse(path, t);
  if (t->rank != 3 || !t->elements)
    return lm_fail(LM_USER, "%s: %s is not [steps, rows, seq]", path, t->name);
  if (c != r->columns && memcmp(t->shape, first->shape, 3 * sizeof *t->shape))
    return lm_fail(LM_USER, "%s: %s and %s differ in shape", path, t->name, first->name);
  return NULL;
}

static int64_t row_elements(const column *c) {
  int64_t n = 1;
  for (int k = 2; k < c->t->rank; k++)
    n *= c->t->shape[k];
  return n;
}

static lm_status elements_read(const column *c, int64_t from, int64_t n, void *out) {
  return c->dtype == LM_INT ? lm_st_read(c->t, from, n, out) : lm_st_read_f32(c->t, from, n, out);
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
static lm_status piece_scan(const lm_replay *r, column *c, const char *p, size_t n) {
  if (c->dtype != LM_INT)
    return NULL;
  extent e = extent_of(p, n, (extent){c->seen_min, c->max});
  if (e.min < c->min)
    return lm_fail(LM_USER, "%s: %s holds %d", r->path, c->name, e.min);
  c->seen_min = e.min;
  c->max = e.max;
  return NULL;
}

// Hashes the first `rows` rows of a column in pieces, and checks them if `scan`.
static lm_status column_visit(const lm_replay *r, column *c, int64_t rows, bool scan,
                              uint64_t *key) {
  enum {
    ELEMENTS = 1 << 14
  };
  char *piece = lm_alloc(LM_COLUMN_BYTES * ELEMENTS);
  lm_hasher h = lm_hash_begin(*key);
  lm_status s = NULL;
  int64_t all = rows * row_elements(c);
  for (int64_t at = 0; at < all && !s; at += ELEMENTS) {
    int64_t n = all - at < ELEMENTS ? all - at : ELEMENTS;
    s = elements_read(c, at, n, piece);
    if (!s)
      lm_hash_add(&h, piece, LM_COLUMN_BYTES * (size_t)n);
    if (!s && scan)
      s = piece_scan(r, c, piece, (size_t)n);
  }
  *key = lm_hash_end(&h);
  lm_free(piece);
  return s;
}

static lm_status columns_visit(const lm_replay *r, int64_t rows, bool scan, uint64_t *key) {
  for (int c = 0; c < r->n_columns; c++)
    LM_TRY(column_visit(r, &r->columns[c], rows, scan, key));
  return NULL;
}

static const int64_t *shape_of(const lm_replay *r) { // [steps, rows, seq]
  return r->columns[LM_COLUMN_TOK].t->shape;
}

static int64_t rows_of(const lm_replay *r, int64_t steps) {
  const int64_t *shape = shape_of(r);
  return (steps < shape[0] ? steps : shape[0]) * shape[1];
}

static void columns_list(lm_replay *r, const lm_data_column *more, int n_more) {
  r->n_columns = LM_COLUMNS + n_more;
  r->columns = lm_calloc((size_t)r->n_columns, sizeof *r->columns);
  for (int i = 0; i < LM_COLUMNS; i++)
    r->columns[i] = (column){.name = lm_column_table[i].name,
                             .dtype = lm_column_table[i].dtype,
                             .own = true,
                             .min = lm_column_table[i].min,
                             .seen_min = lm_column_table[i].min};
  for (int i = 0; i < n_more; i++)
    r->columns[LM_COLUMNS + i] = (column){.name = more[i].name,
                                          .dtype = more[i].dtype,
                                          .min = INT32_MIN,
                                          .seen_min = INT32_MAX,
                                          .max = INT32_MIN};
}

static lm_status columns_open(lm_replay *r, const char *path) {
  r->path = lm_strdup(path);
  LM_TRY(lm_st_open(path, &r->file));
  for (int c = 0; c < r->n_columns; c++)
    LM_TRY(column_find(r, path, &r->columns[c]));
  if (fstat(r->columns[0].t->fd, &r->opened))
    return lm_fail_errno("cannot read %s", path);
  return columns_visit(r, rows_of(r, INT64_MAX), true, &r->all);
}

lm_status lm_replay_open(const char *path, const lm_data_column *more, int n_more,
                         lm_replay **out) {
  lm_replay *r = lm_alloc(sizeof *r);
  columns_list(r, more, n_more);
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
  lm_free(r->columns);
  lm_free(r->path);
  lm_free(r);
}

unsigned lm_replay_umask(const lm_replay *r) {
  return lm_input_umask(&r->opened);
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
  if (fstat(r->columns[LM_COLUMN_TOK].t->fd, &now))
    return lm_fail_errno("cannot read %s", r->path);
  if (lm_file_is_same(&r->opened, &now))
    return NULL;
  if (now.st_size != r->opened.st_size)
    return changed(r);
  LM_TRY(columns_visit(r, rows_of(r, INT64_MAX), false, &all));
  if (all != r->all)
    return changed(r);
  r->opened = now; // only the name, the mode or the times changed
  return NULL;
}

void lm_replay_shape(const lm_replay *r, int64_t *out_steps, int64_t *out_rows, int64_t *out_seq) {
  *out_steps = shape_of(r)[0];
  *out_rows = shape_of(r)[1];
  *out_seq = shape_of(r)[2];
}

lm_status lm_replay_key(const lm_replay *r, int64_t steps, uint64_t *out) {
  *out = lm_hash(shape_of(r) + 1, 2 * sizeof(int64_t), 0);
  return columns_visit(r, rows_of(r, steps), false, out);
}

void lm_replay_limits(const lm_replay *r, int32_t *out_max_id, int32_t *out_max_pos) {
  int32_t tok = r->columns[LM_COLUMN_TOK].max, next = r->columns[LM_COLUMN_NEXT].max;
  *out_max_id = tok > next ? tok : next;
  *out_max_pos = r->columns[LM_COLUMN_POS].max;
}

lm_data_column_info lm_replay_column(const lm_replay *r, int i) {
  const column *c = &r->columns[LM_COLUMNS + i];
  lm_data_column_info x = {
      .name = c->name, .rank = c->t->rank - 2, .min = c->seen_min, .max = c->max};
  memcpy(x.extent, c->t->shape + 2, sizeof *x.extent * (size_t)x.rank);
  return x;
}

// The data may have changed since it was checked.
static lm_status filled_check(const lm_replay *r, const column *c, const void *p, size_t n) {
  extent e = extent_of(p, n, (extent){c->seen_min, c->max});
  if (e.min == c->seen_min && e.max == c->max)
    return NULL;
  return lm_fail(
      LM_ENV,
      "%s: %s holds %d, and did not when this run began: the file was changed while it was in use",
      r->path, c->name, e.min < c->seen_min ? e.min : e.max);
}

static lm_status column_fill(const lm_replay *r, const column *c, int64_t first, int64_t n,
                             void *out) {
  int64_t row = row_elements(c);
  LM_TRY(elements_read(c, first * row, n * row, out));
  return c->dtype == LM_INT ? filled_check(r, c, out, (size_t)(n * row)) : NULL;
}

static const column *further_find(const lm_replay *r, const lm_batch_column *x) {
  for (int c = LM_COLUMNS; c < r->n_columns; c++)
    if (!strcmp(r->columns[c].name, x->name) && row_elements(&r->columns[c]) == x->row)
      return &r->columns[c];
  LM_BUG("the data was opened without column %s of %lld values a row", x->name, (long long)x->row);
}

// first: the number of the first row.
static lm_status prompt_check(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b) {
  const int64_t *shape = shape_of(r);
  int64_t at = lm_data_prompt_check(b, n * shape[2]);
  if (at < 0)
    return NULL;
  int64_t row = first + at / shape[2];
  return lm_fail(
      LM_USER,
      "%s: prompt is not 1 at the first positions of each document and 0 behind them, or "
      "w is not 0 within it: step %lld, row %lld, position %lld",
      r->path, (long long)(row / shape[1]), (long long)(row % shape[1]),
      (long long)(at % shape[2]));
}

lm_status lm_replay_fill(const lm_replay *r, int64_t first, int64_t n, const lm_batch *b) {
  for (int c = 0; c < LM_COLUMNS; c++)
    LM_TRY(column_fill(r, &r->columns[c], first, n, b->column[c]));
  for (int i = 0; i < b->n_more; i++)
    LM_TRY(column_fill(r, further_find(r, &b->more[i]), first, n, b->more[i].data));
  return prompt_check(r, first, n, b);
}
