// derivative.c - the table of derivative rules that ops.def describes, and the rules of operations
// that no family has.
#include "compiler/ops/interface.h"
#include "compiler/ops/ops.h"

static lm_vjp_rule *const rules[LM_OPS] = {
#define OP(E, NAME, IN, OUT, ATTRS, TRAITS, STAGES, SHAPE, VJP, FACTOR, FLOPS, DOC)                \
  [LM_OP_##E] = VJP,
#include "compiler/ir/ops.def"
#undef OP
};

void vjp_zero(lm_grad *g, lm_op *op) {}

void vjp_none(lm_grad *g, lm_op *op) {
  LM_BUG("'%s' has no derivative", lm_op_info_of(op)->name);
}

void vjp_loop(lm_grad *g, lm_op *op) {
  lm_grad_loop(g, op);
}

void lm_op_differentiate(lm_grad *g, lm_op *op) {
  rules[op->code](g, op);
}

lm_derivative lm_op_derivative(lm_opcode code) {
  if (rules[code] == vjp_none)
    return LM_DERIVATIVE_NONE;
  return rules[code] == vjp_zero ? LM_DERIVATIVE_ZERO : LM_DERIVATIVE_RULE;
}
