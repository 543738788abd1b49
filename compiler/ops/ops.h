// ops.h - shape rules and derivatives of the operations of ops.def: FAMILY.c has the shape rules of
// a family of operations, FAMILY_vjp.c their derivatives. The tables are in shape.c and
// derivative.c.
//
// A shape rule computes the result types of an operation whose number of operands and attributes
// has been checked; it returns false and appends the reason if the operation is invalid. A
// derivative rule adds to the cotangents of the operands (grad.h).
#ifndef LM_OPS_H
#define LM_OPS_H
#include "compiler/ir/ir.h"
#include "compiler/ops/grad.h"

typedef bool lm_shape_rule(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);
typedef void lm_vjp_rule(lm_grad *g, lm_op *op);

#define OP(E, NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FACTOR, FLOPS, DOC)                \
  lm_shape_rule SHAPE;                                                                             \
  lm_vjp_rule VJP;
#include "compiler/ir/ops.def"
#undef OP

// Applies the shape rule of op. out[0] holds the given type, which LM_T_TYPED operations check.
bool lm_op_shape(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);

// Appends a reason. Always false, so that a rule can `return lm_why(why, …)`.
bool lm_why(lm_buf *why, const char *fmt, ...) LM_PRINTF(2, 3);
// "<before><type><after>"
bool lm_why_type(lm_buf *why, const lm_module *m, const char *before, lm_type t, const char *after);
const char *lm_axis_name(const lm_module *m, lm_axis a);
// False for a code, which operations do not compute with.
bool lm_computes(const lm_module *m, lm_type t, lm_buf *why);
// True if axis n has an element for each point of the axes, also at run time.
bool lm_axis_counts(const lm_module *m, lm_axis n, const lm_axis *axes, int n_axes);
// The type of an elementwise operation's result without its dtype: the type of the operand with the
// most axes, the first of equals. Every other operand must have a subset of its axes.
bool lm_broadcast(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why);
#endif
