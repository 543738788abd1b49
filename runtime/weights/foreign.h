// foreign.h - imports and exports weights under the names and layouts of another project. The
// correspondence is a table of mappings.
//
// A mapping relates a part of one native tensor to a part of one foreign tensor: for all indexes
// 0 <= i_k < size[k],
//   native [offset_native  + sum over k of i_k * stride_native[k]]
//     = foreign[offset_foreign + sum over k of i_k * stride_foreign[k]]
// in elements of dense row-major tensors. A native tensor may have several mappings (one foreign
// tensor for each index of an axis), and so may a foreign tensor (concatenated parts). The mappings
// must cover every element of every native and foreign tensor exactly once.
#ifndef LM_WEIGHTS_FOREIGN_H
#define LM_WEIGHTS_FOREIGN_H
#include "runtime/weights/safetensors.h"

enum {
  LM_FOREIGN_AXES = 16
};
typedef struct lm_foreign_map {
  const char *native, *foreign; // names
  int rank_f;
  int64_t shape_f[LM_ST_RANK]; // [rank_f]: shape of the foreign tensor
  int n;                       // axes of the mapped part
  int64_t size[LM_FOREIGN_AXES], stride_native[LM_FOREIGN_AXES], stride_foreign[LM_FOREIGN_AXES];
  int64_t offset_native, offset_foreign;
} lm_foreign_map;

typedef struct lm_foreign_native {
  const char *name;
  void *data; // dense
  int64_t elements;
  lm_st_dtype dtype; // F32 or BF16
} lm_foreign_native;

// How often the mappings cover the elements of foreign tensors.
typedef enum lm_foreign_cover {
  LM_FOREIGN_ONCE,
  LM_FOREIGN_PART,  // at most once; other elements are 0
  LM_FOREIGN_SHARED // at least once; for import only
} lm_foreign_cover;

// Borrows the mappings and the native tensors. Foreign tensors are sorted by name.
typedef struct lm_foreign lm_foreign;

// LM_USER: the mappings do not cover every element exactly once, or foreign
// ones as `cover` says; the message lists the elements.
lm_status lm_foreign_create(const lm_foreign_map *maps, size_t n_maps,
                            const lm_foreign_native *natives, size_t n_natives,
                            lm_foreign_cover cover, lm_foreign **out);
void lm_foreign_destroy(lm_foreign *f); // f may be NULL

// Fills all native tensors from `st`, or none. LM_USER: lists all foreign tensors that are missing,
// have another shape, are not floating point, or are unexpected. `ignored`, which may be NULL,
// returns whether a tensor of that name is expected to be unused.
lm_status lm_foreign_import(const lm_foreign *f, const lm_st *st,
                            bool (*ignored)(void *user, const char *name), void *user);

// Export: the number of foreign tensors; name and shape of tensor i (F32); its elements.
size_t lm_foreign_count(const lm_foreign *f);
void lm_foreign_describe(const lm_foreign *f, size_t i, lm_st_tensor *t);
void lm_foreign_gather(const lm_foreign *f, size_t i, float *out);
// Writes all foreign tensors to one file, rounded to `dtype`.
lm_status lm_foreign_export(const lm_foreign *f, const char *path, lm_st_dtype dtype);
#endif
