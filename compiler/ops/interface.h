// interface.h - properties of operations that passes, analyses and code generators query.
//
// They follow from the traits in ops.def, so an elementwise operation needs no code. An operation
// without traits gets the conservative answer: it mixes positions, it is not linear, and it is
// computed once.
#ifndef LM_OPS_INTERFACE_H
#define LM_OPS_INTERFACE_H
#include "compiler/ir/ir.h"

static inline bool lm_op_has(const lm_op *op, uint32_t trait) {
  return lm_op_info_of(op)->traits & trait;
}

// The axes along which op reads operand i at other positions than the position of the result.
// Reduction axes are not included, because the result lacks them.
lm_type lm_op_touched_axes(const lm_op *op, uint32_t i);

// The source of one position of the result, along an axis that the attributes do not name.
typedef enum {
  LM_ROW_EACH,     // from the same position of each operand that has the axis
  LM_ROW_BY_INDEX, // from the same position of the operand that holds indices
  LM_ROW_NUMBERED, // from the index of the position
  LM_ROW_MIXED,    // from several positions
} lm_row_class;
lm_row_class lm_op_row_class(const lm_op *op);

// The derivative of op reads no operand for which `active` is true.
typedef bool lm_value_test(const void *user, const lm_value *v);
bool lm_op_is_linear(const lm_op *op, lm_value_test *active, const void *user);

typedef enum {
  LM_DERIVATIVE_NONE, // never differentiated
  LM_DERIVATIVE_ZERO, // no cotangent reaches the operands
  LM_DERIVATIVE_RULE, // lm_op_differentiate (grad.h)
} lm_derivative;
lm_derivative lm_op_derivative(lm_opcode code);

typedef enum {
  LM_RECOMPUTE_FREE,    // recomputed by each kernel that reads the result
  LM_RECOMPUTE_CHEAP,   // recomputed if that is cheaper than storing and loading it
  LM_RECOMPUTE_FUSED,   // computed once, in a kernel
  LM_RECOMPUTE_UNFUSED, // computed once, outside of kernels
} lm_recompute_class;
lm_recompute_class lm_op_recompute_class(const lm_op *op);

// True if an element of the result may depend on many elements of the operands, or on an arbitrary
// one.
static inline bool lm_op_accumulates(const lm_op *op) {
  return lm_op_has(op, LM_T_REDUCE | LM_T_DOT | LM_T_INDEXED);
}
#endif
