// widen.h - copies of operations for operands with more axes.
//
//   %y = mul %x, %w : f32[b, e]        x has axis t too       %y = mul %x, %w : f32[t, b, e]
//
// The copy computes at each position along the further axes what the operation computes without
// them.
#ifndef LM_OPS_WIDEN_H
#define LM_OPS_WIDEN_H
#include "compiler/ir/ir.h"

// True if lm_widen can copy op: elementwise operations, sums, maxima, dots and moves.
bool lm_widens(const lm_op *op);
// Copies op, which has one result, with the operands `in`, which it may change. Each has the axes
// of op's operand, in their order if op depends on it, and further ones.
lm_value *lm_widen(lm_builder *b, const lm_op *op, lm_value **in);
// x expanded to `to`, of which it may have the axes in another order.
lm_value *lm_widen_to(lm_builder *b, lm_value *x, lm_type to);
#endif
