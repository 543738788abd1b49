// block_scales.h - operands of a GEMM that were rounded with a scale for each block along the axes
// that are summed (compiler/ops/fp8.h), for pass dot_scaled.
#ifndef LM_PASSES_FP8_BLOCK_SCALES_H
#define LM_PASSES_FP8_BLOCK_SCALES_H
#include "compiler/ir/ir.h"

// A value that is the numbers of codes, times a scale: a scalar, or for each block.
typedef struct lm_coded {
  lm_value *codes, *scale;
} lm_coded;

// Sets out to the codes of v, with v's axes, and to the scales of their blocks in the layout of
// compiler/ir/dot.h, both of which are emitted; false if v was not rounded so. over: the axes that
// are summed.
bool lm_coded_in_blocks(lm_builder *b, lm_value *v, const lm_attr *over, lm_coded *out);
// v through casts between floats.
lm_value *lm_uncast(lm_value *v);
// True if v is the number of a code in e4m3 or e5m2.
bool lm_is_number_of_code(const lm_value *v);
#endif
