// safetensors.h - reads and writes https://github.com/huggingface/safetensors
//
// A file has a length N (8 bytes, little-endian), N bytes of JSON
//   {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …,
//    "__metadata__": {string: string}}
// and the row-major data, without gaps or overlaps. Opening reads the header only; data is read as
// it is needed and never mapped, since another process may truncate the file.
#ifndef LM_WEIGHTS_SAFETENSORS_H
#define LM_WEIGHTS_SAFETENSORS_H
#include "contract/dtype.h"
#include "runtime/base/base.h"

enum {
  LM_ST_RANK = 8,
  LM_ST_CHUNK = 16 << 20 // bytes that are written at a time
};
const char *lm_st_dtype_name(lm_st_dtype t); // "F32"
int lm_st_dtype_bytes(lm_st_dtype t);
bool lm_st_dtype_is_float(lm_st_dtype t);

typedef struct lm_st_tensor {
  const char *name;
  lm_st_dtype dtype;
  int rank;
  int64_t shape[LM_ST_RANK];
  int64_t elements; // product of the shape
  const void *data; // to write: elements * lm_st_dtype_bytes(dtype) bytes
  const char *file; // of a tensor that was read: path and descriptor of its file, until close
  int fd;
  int64_t offset; // of the data in that file
} lm_st_tensor;

// Converts n elements, the first at index `from`; the type must be floating point. Conversion to
// bf16 and f16 rounds to nearest even.
void lm_st_to_f32(lm_st_dtype t, const void *data, int64_t from, int64_t n, float *out);
void lm_st_from_f32(lm_st_dtype t, const float *x, int64_t n, void *out);
void lm_st_shape_print(lm_buf *b, const int64_t *shape, int rank); // "[2, 3]"

// ---- reading. `path` is a file, NAME of tensors in several files, which NAME.index.json names, or
// a folder. In a folder, model.safetensors.index.json names the files; without it, the file is
// model.safetensors; without either, every *.safetensors file is read. LM_USER: malformed content.
// LM_ENV: a system call failed.
typedef struct lm_st lm_st;
lm_status lm_st_open(const char *path, lm_st **out);
void lm_st_close(lm_st *st); // st may be NULL
size_t lm_st_count(const lm_st *st);
const lm_st_tensor *lm_st_at(const lm_st *st, size_t i);           // sorted by name
const lm_st_tensor *lm_st_find(const lm_st *st, const char *name); // NULL: no such tensor
// Reads n elements of a tensor, the first at index `from`, in its type, or converted from a
// floating point type. LM_ENV if the file cannot be read or was truncated.
lm_status lm_st_read(const lm_st_tensor *t, int64_t from, int64_t n, void *out);
lm_status lm_st_read_f32(const lm_st_tensor *t, int64_t from, int64_t n, float *out);

// ---- writing. `create` writes the header from name, dtype, rank and shape of all tensors; the
// data is then appended in the same order, in pieces of any size. The file has a temporary name
// next to `path` until `finish` syncs and renames it. Equal input gives equal bytes.
typedef struct lm_st_writer lm_st_writer;
lm_status lm_st_writer_create(const char *path, const lm_st_tensor *tensors, size_t n,
                              lm_st_writer **out);
lm_status lm_st_writer_append(lm_st_writer *w, const void *data, size_t bytes);
// Frees w, also on failure. *out_sum: checksum of the file.
lm_status lm_st_writer_finish(lm_st_writer *w, lm_sum *out_sum);
void lm_st_writer_abort(lm_st_writer *w); // removes the temporary file, frees w; w may be NULL
// Writes all tensors from their `data`.
lm_status lm_st_write(const char *path, const lm_st_tensor *tensors, size_t n);
// True if the file was written by these functions, in any program: its metadata says so.
bool lm_st_is_own(const char *path);
#endif
