// safetensors.h - reading and writing https://github.com/huggingface/safetensors
//
// A file: 8 bytes N, little-endian; N bytes of JSON {"name": {"dtype", "shape", "data_offsets":
// [begin, end]}, …,
// "__metadata__": {string: string}}; the data, row-major, without holes or overlaps. Files are
// mapped, not read: a tensor's `data` points into the mapping, has no alignment, and lives until
// close.
#ifndef LM_IO_SAFETENSORS_H
#define LM_IO_SAFETENSORS_H
#include "runtime/base/base.h"

enum {
  LM_ST_RANK = 8
};
typedef enum {
  LM_ST_F32,
  LM_ST_BF16,
  LM_ST_F16,
  LM_ST_F64,
  LM_ST_I64,
  LM_ST_I32,
  LM_ST_I16,
  LM_ST_I8,
  LM_ST_U64,
  LM_ST_U32,
  LM_ST_U16,
  LM_ST_U8,
  LM_ST_BOOL,
  LM_ST_DTYPES
} lm_st_dtype;
const char *lm_st_dtype_name(lm_st_dtype t); // "F32"
int lm_st_dtype_bytes(lm_st_dtype t);
bool lm_st_dtype_is_float(lm_st_dtype t);

typedef struct lm_st_tensor {
  const char *name;
  lm_st_dtype dtype;
  int rank;
  int64_t shape[LM_ST_RANK];
  int64_t elements; // product of the shape
  const void *data; // elements * lm_st_dtype_bytes(dtype) bytes
  const char *file; // where it came from
  int64_t offset;   // of the data in that file
} lm_st_tensor;

// Conversion of n elements from `from` on; the type must be a float. bf16 and f16 round to nearest
// even.
void lm_st_to_f32(lm_st_dtype t, const void *data, int64_t from, int64_t n, float *out);
void lm_st_from_f32(lm_st_dtype t, const float *x, int64_t n, void *out);
void lm_st_shape_print(lm_buf *b, const int64_t *shape, int rank); // "[2, 3]"

// ---- reading. `path` is a file, or a folder: with model.safetensors.index.json the files that it
// names, else model.safetensors, else every *.safetensors in it. Malformed content is LM_USER, a
// failing system LM_ENV.
typedef struct lm_st lm_st;
lm_status lm_st_open(const char *path, lm_st **out);
void lm_st_close(lm_st *st); // NULL is fine
size_t lm_st_count(const lm_st *st);
const lm_st_tensor *lm_st_at(const lm_st *st, size_t i);           // sorted by name
const lm_st_tensor *lm_st_find(const lm_st *st, const char *name); // NULL if there is none

// ---- writing. The header is made from all tensors first (name, dtype, rank, shape; the rest is
// ignored), then their data is appended in that order, in pieces of any size. What is written is a
// temporary file beside `path` until finish, which syncs and renames. The same input gives the same
// bytes.
typedef struct lm_st_writer lm_st_writer;
lm_status lm_st_writer_create(const char *path, const lm_st_tensor *tensors, size_t n,
                              lm_st_writer **out);
lm_status lm_st_writer_append(lm_st_writer *w, const void *data, size_t bytes);
lm_status lm_st_writer_finish(lm_st_writer *w); // frees w, whatever comes of it
void lm_st_writer_abort(lm_st_writer *w);       // removes the temporary file, frees w; NULL is fine
// All at once, from each tensor's `data`.
lm_status lm_st_write(const char *path, const lm_st_tensor *tensors, size_t n);
lm_status lm_st_write_summed(const char *path, const lm_st_tensor *tensors, size_t n,
                             lm_sum *out_sum); // of the file
#endif
