// batches_fuzz.c - files of batches: the input is the JSON of a safetensors file to the first line
// break, and data behind it. The length of the JSON is put before it, and data is added or removed
// until the file has the size that the JSON states. A file that opens must be readable to its last
// batch, with values in the ranges that are reported.
#include <jansson.h>

#include "runtime/data/feed/data.h"
#include "tests/fuzz/fuzz.h"

enum {
  MOST = 1 << 16, // bytes of data, positions of a step, values of a column of a row
  MORE = 2
};

static const lm_data_column columns[MORE] = {{"score", LM_F32, LM_COLUMN_OF_ROWS},
                                             {"rank", LM_INT, LM_COLUMN_OF_ROWS}};

// The end of the last tensor; at most MOST.
static size_t data_bytes(const char *text, size_t n) {
  json_t *all = json_loadb(text, n, 0, NULL), *tensor;
  const char *name;
  size_t most = 0;
  json_object_foreach(all, name, tensor) {
    json_int_t end = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 1));
    if (end > (json_int_t)most && end <= MOST)
      most = (size_t)end;
  }
  json_decref(all);
  return most;
}

static void file_make(const uint8_t *p, size_t n, lm_buf *out) {
  const uint8_t *end = memchr(p, '\n', n);
  uint64_t head = end ? (uint64_t)(end - p) : n;
  size_t left = n - head - (end != NULL), all = data_bytes((const char *)p, head);
  lm_buf_add(out, &head, sizeof head);
  lm_buf_add(out, p, head);
  lm_buf_add(out, p + n - left, left < all ? left : all);
  for (size_t i = left; i < all; i++)
    lm_buf_add(out, "", 1);
}

typedef struct {
  lm_batch b;
  lm_batch_column more[MORE];
} batch;

static bool more_alloc(const lm_data_info *info, int64_t rows, int64_t seq, batch *out) {
  for (int i = 0; i < info->n_columns; i++) {
    int64_t row = 1;
    for (int k = 0; k < info->columns[i].rank; k++) {
      int64_t extent = info->columns[i].extent[k] ? info->columns[i].extent[k] : seq;
      if (extent > MOST / row)
        return false;
      row *= extent;
    }
    out->more[i] =
        (lm_batch_column){info->columns[i].name, lm_calloc((size_t)(rows * row), 4), row};
  }
  out->b.more = out->more;
  out->b.n_more = info->n_columns;
  return true;
}

static void batch_free(batch *x) {
  for (int c = 0; c < LM_COLUMNS; c++)
    lm_free(x->b.column[c]);
  for (int i = 0; i < MORE; i++)
    lm_free(x->more[i].data);
}

static void batch_check(const lm_data_info *info, const batch *x, int64_t positions) {
  for (int64_t i = 0; i < positions; i++)
    LM_ASSERT(x->b.tok[i] >= 0 && x->b.tok[i] <= info->max_id && x->b.next[i] >= 0 &&
              x->b.next[i] <= info->max_id && x->b.pos[i] >= 0 && x->b.pos[i] <= info->max_pos);
}

static void steps_read(const lm_data *d) {
  lm_data_info info = lm_data_info_of(d);
  int64_t rows = info.batch_rows, seq = lm_data_seq(d, 0);
  batch x = {0};
  if (rows > MOST / seq)
    return;
  for (int c = 0; c < LM_COLUMNS; c++)
    x.b.column[c] = lm_calloc((size_t)(rows * seq), LM_COLUMN_BYTES);
  bool fits = more_alloc(&info, rows, seq, &x);
  for (int64_t step = 0; fits && step < info.steps; step++) {
    lm_status s = lm_data_fill(d, step, 0, 1, rows, &x.b);
    if (!s)
      batch_check(&info, &x, rows * seq);
    lm_status_free(s);
  }
  batch_free(&x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  lm_buf file = {0};
  if (!n)
    return 0;
  file_make(data + 1, n - 1, &file);
  lm_data_source source = {LM_SOURCE_BATCHES, "fuzz",
                           fuzz_file("batches", (const uint8_t *)file.p, file.n)};
  lm_data_options o = {.sources = &source,
                       .n_sources = 1,
                       .threads = 1,
                       .columns = columns,
                       .n_columns = data[0] % (MORE + 1)};
  lm_data *d;
  uint64_t key;
  lm_status s = lm_data_open(&o, &d);
  if (!s) {
    steps_read(d);
    s = lm_data_key(d, 1, &key);
    if (!s)
      s = lm_data_unchanged(d);
    LM_ASSERT(!s);
    lm_data_close(d);
  }
  lm_status_free(s);
  lm_buf_free(&file);
  return 0;
}
