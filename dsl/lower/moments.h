// moments.h - how optimizer states are stored (precision.moments).
//
// A moment is a state that has the axes of its parameter and begins at a number. In f32 it is
// stored as it is, in bf16 rounded. In 8 bits its elements, in row-major order, are divided into
// blocks; the state is stored as two tensors: a code for each element, and a scale for each block.
//   dyn8   code = x / scale, scale = max |x| over the block
//   udyn8  the same, of a state that is never negative
//   e4m3   the same with scale = max |x| / 448; of a state that is never negative sqrt(x) is
//          stored, whose range is half that of x in powers of two
// Behind the elements of the last block are zeros.
#ifndef LM_LOWER_MOMENTS_H
#define LM_LOWER_MOMENTS_H
#include "dsl/lower/internal.h"

typedef struct lm_moment {
  lm_dtype dtype; // of the elements: f32, bf16, or a code
  int64_t block;  // elements with a common scale; 0: there are no scales
  bool is_root;   // the codes are of the square root
} lm_moment;

// The form of a state whose parameter has `elements` elements for each index of its stacked axes.
// never_negative: as lm_never_negative shows.
lm_moment lm_moment_of(const lm_recipe *r, const lm_lowered_state *s, int64_t elements,
                       bool never_negative);

// The type of the codes, f32[block, element], of a value of type `own`.
lm_type lm_moment_blocks(lm_elab *e, lm_type own, int64_t block);
// The axes of blocks as an optimizer, of elements or of tensors, sees them.
el_axes lm_moment_axes(lm_elab *e, lm_type blocks, bool of_elements);
// v in blocks, and a value in blocks as a value of type `own`.
lm_value *lm_moment_divide(lm_elab *e, lm_value *v, lm_type blocks);
lm_value *lm_moment_join(lm_elab *e, lm_value *v, lm_type own);

// f32[block, element]
lm_value *lm_moment_decode(lm_elab *e, const lm_moment *m, lm_value *codes, lm_value *scale);
// The scale remains `old` where `good` is false; x, which is then the decoded old value, is encoded
// by the same codes.
void lm_moment_encode(lm_elab *e, const lm_moment *m, lm_value *x, lm_value *good, lm_value *old,
                      lm_value **out_codes, lm_value **out_scale);

// ---- never_negative.c
// Which of n states are never negative: `is` says which ones begin so, and keeps those whose new
// value is not negative if the old values of those are not. It follows from the operations alone:
// such values multiplied, divided or added, squares, |x|, maxima, sqrt, exp.
void lm_never_negative(lm_value *const *old, lm_value *const *new, uint32_t n, bool *is);
#endif
