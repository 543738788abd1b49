// fp8.h - operations that round values to 8-bit floats (e4m3, e5m2) with a scale.
//
// x becomes code(x * s) / s. s is the greatest power of 2 for which the greatest magnitude of x,
// times s, is at most the greatest number of the format; 1 if x is zero, and within 2^-100 … 2^100.
// Multiplications by a power of 2 are exact, and f32 and bf16 represent each result. So each term
// of a GEMM of two results is exact in f32, and the GEMM is that of the codes, divided by both
// scales.
//
// An x of bf16 is the number that memory would have, also in a kernel that stores only its code
// (reduce_precision). Otherwise the code would depend on which values are stashed.
//
// A history is a `state` global of no parameter, f32[…, LM_FP8_HISTORY + 1]: first the greatest
// magnitude of the present step so far, then those of the last steps, the newest first.
#ifndef LM_OPS_FP8_H
#define LM_OPS_FP8_H
#include "compiler/ir/ir.h"

enum {
  LM_FP8_HISTORY = 16, // steps
  LM_FP8_BLOCK = 128,  // elements along an axis that share a scale
  LM_FP8_MX_BLOCK = 32 // the same of OCP's MX formats
};

// Whether so many elements are whole blocks of `block`: fewer are one.
static inline bool lm_fp8_blocks_fit(int64_t size, int64_t block) {
  return size <= block || size % block == 0;
}

// |x|, f32.
lm_value *lm_emit_absolute(lm_builder *b, lm_value *x);
// The greatest magnitude of the elements of x, f32; of the ranks' parts along the axes `over` of
// the mesh.
lm_value *lm_emit_magnitude(lm_builder *b, lm_value *x, lm_mesh_set over);
// The maximum over the ranks along these axes of the mesh, elementwise.
lm_value *lm_emit_all_max(lm_builder *b, lm_value *v, lm_mesh_set over);
// All axes of the mesh but those in `without`.
lm_mesh_set lm_mesh_axes(const lm_module *m, lm_mesh_set without);
// The scale of values up to `magnitude`, elementwise.
lm_value *lm_emit_fp8_scale(lm_builder *b, lm_value *magnitude, lm_dtype format);
// The codes of x * scale; the axes of `scale` are a subset of x's.
lm_value *lm_emit_fp8_code(lm_builder *b, lm_value *x, lm_value *scale, lm_dtype format);
// The numbers of codes, divided by the scale, in type t.
lm_value *lm_emit_fp8_number(lm_builder *b, lm_value *code, lm_value *scale, lm_dtype t);
// x rounded; the axes of `scale` are a subset of x's. The result has x's type.
lm_value *lm_emit_fp8(lm_builder *b, lm_value *x, lm_value *scale, lm_dtype format);
// Adjacent axes, whose elements are divided into blocks in the order of memory.
typedef struct lm_fp8_axes {
  lm_axis v[LM_RANK];
  int n;
} lm_fp8_axes;
// How many elements the axes have together.
int64_t lm_fp8_axes_size(const lm_module *m, const lm_fp8_axes *a);
// Those in the attributes of a round_cotangent.
lm_fp8_axes lm_fp8_axes_of(const lm_attr *a);
// True if t has them side by side in this order.
bool lm_fp8_axes_adjacent(lm_type t, const lm_fp8_axes *a);

// Blocks of `size` elements along each of the n runs of axes; the other axes have a block for each
// element.
typedef struct lm_fp8_blocks {
  int64_t size;
  lm_fp8_axes along[2];
  int n;
} lm_fp8_blocks;

// x rounded with a scale for each block.
lm_value *lm_emit_fp8_blocks(lm_builder *b, lm_value *x, const lm_fp8_blocks *of, lm_dtype format);
// The same of a weight that `gather`, an all_gather or a collect, makes of the ranks' parts: each
// rank rounds its own, and they gather codes and magnitudes of blocks.
lm_value *lm_emit_fp8_blocks_gathered(lm_builder *b, const lm_op *gather, const lm_fp8_blocks *of,
                                      lm_dtype format);
// Whether ranks can round their parts: the blocks are whole in each part, or one along the axis
// that is divided, and this axis is not joined with others.
bool lm_fp8_blocks_fit_parts(const lm_module *m, const lm_op *gather, const lm_fp8_blocks *of);

// How the cotangent of a value is rounded.
typedef struct lm_fp8_rounding {
  lm_dtype format;
  lm_value *scale;    // NULL: that of the cotangent itself
  lm_mesh_set others; // without a scale: along these axes of the mesh, ranks have other tensors
  lm_fp8_axes along;  // the axes of blocks that have a scale each; none: x has one
  int64_t size;       // elements of a block
} lm_fp8_rounding;

// The format in the attributes of a round_cotangent; LM_DTYPES: there is none.
lm_dtype lm_fp8_format_of(const lm_op *op);
// x, whose cotangent is rounded.
lm_value *lm_emit_round_cotangent(lm_builder *b, lm_value *x, const lm_fp8_rounding *how);

// The axis of the last steps in a history.
lm_axis lm_fp8_history_axis(lm_module *m);
// A mask along the history: true for element 0, which holds the magnitude of the current step.
lm_value *lm_emit_history_first(lm_builder *b, lm_value *history);
// The history at the n indices of `at`, and the greatest magnitude of the last steps in it.
lm_value *lm_emit_history(lm_builder *b, const lm_attr *at, lm_value *const *index, uint32_t n);
lm_value *lm_emit_history_magnitude(lm_builder *b, lm_value *history);
// Enters the magnitude of x in a history; not where `valid` (NULL: true), a scalar bool, is false.
void lm_emit_observation(lm_builder *b, const lm_attr *at, lm_value *const *index, uint32_t n,
                         lm_value *x, lm_value *valid);
#endif
