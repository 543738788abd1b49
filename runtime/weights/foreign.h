// foreign.h - weights under another project's names and layouts, both ways, by plain-data mappings.
//
// A mapping ties a part of one native tensor to a part of one foreign tensor: for all (i_0 …
// i_{n-1}) below size,
//   native[offset_native + sum i_k * stride_native[k]] = foreign[offset_foreign + sum i_k *
//   stride_foreign[k]]
// in elements of the dense row-major tensors. A native tensor may have several (one foreign tensor
// for each index of an axis), so may a foreign one (parts side by side). Together they must cover
// every element of every tensor of both sides exactly once.
#ifndef LM_IO_FOREIGN_H
#define LM_IO_FOREIGN_H
#include "runtime/weights/safetensors.h"

enum {
  LM_FOREIGN_AXES = 16
};
typedef struct lm_foreign_map {
  const char *native, *foreign;
  int rank_f;
  int64_t shape_f[LM_ST_RANK];
  int n;
  int64_t size[LM_FOREIGN_AXES], stride_native[LM_FOREIGN_AXES], stride_foreign[LM_FOREIGN_AXES];
  int64_t offset_native, offset_foreign;
} lm_foreign_map;

typedef struct lm_foreign_native {
  const char *name;
  float *data;
  int64_t elements;
} lm_foreign_native; // dense

// Does not own what it is made of; the maps are grouped by foreign name, in the order of those
// names.
typedef struct lm_foreign lm_foreign;

// LM_USER, naming each place, if the mappings do not cover every native and every foreign tensor
// exactly once.
lm_status lm_foreign_create(const lm_foreign_map *maps, size_t n_maps,
                            const lm_foreign_native *natives, size_t n_natives, lm_foreign **out);
void lm_foreign_destroy(lm_foreign *f); // NULL is fine

// Fills every native tensor from `st`, or none: one LM_USER status lists all foreign tensors that
// are missing, of another shape, no floats, or (unless `ignored`, which may be NULL, says so of the
// name) extra.
lm_status lm_foreign_import(const lm_foreign *f, const lm_st *st,
                            bool (*ignored)(void *user, const char *name), void *user);

// The other way: foreign tensor i (name and shape in *t, F32) and its elements.
size_t lm_foreign_count(const lm_foreign *f);
void lm_foreign_describe(const lm_foreign *f, size_t i, lm_st_tensor *t);
void lm_foreign_gather(const lm_foreign *f, size_t i, float *out);
// All of them into one file, rounded to `dtype`.
lm_status lm_foreign_export(const lm_foreign *f, const char *path, lm_st_dtype dtype);
#endif
