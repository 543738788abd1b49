// binary_vjp.c - derivatives of elementwise operations of two and three operands. g is the result's
// cotangent, z the result; lm_grad_add sums over broadcast axes.
#include "compiler/ops/ops.h"

static lm_value *cotangent(lm_grad *g, lm_op *op) {
  return lm_grad_of(g, op->out[0]);
}
static lm_value *value(lm_grad *g, lm_op *op, int i) {
  return lm_grad_value(g, op->in[i]);
}
static lm_value *mul(lm_grad *g, lm_value *x, lm_value *y) {
  return lm_emit2(g->b, LM_OP_MUL, x, y);
}
static lm_value *neg(lm_grad *g, lm_value *x) {
  return lm_emit1(g->b, LM_OP_NEG, x);
}
static lm_value *scalar(lm_grad *g, lm_dtype t, double v) {
  return lm_emit_const(g->b, lm_type_make(t, NULL, 0), v);
}

void vjp_add(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], cotangent(g, op));
  lm_grad_add(g, op->in[1], cotangent(g, op));
}

void vjp_sub(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], cotangent(g, op));
  if (lm_grad_needs(g, op->in[1]))
    lm_grad_add(g, op->in[1], neg(g, cotangent(g, op)));
}

// x: g y; y: g x; of x * x: 2 g x
void vjp_mul(lm_grad *g, lm_op *op) {
  if (op->in[0] == op->in[1]) {
    lm_value *gz = cotangent(g, op);
    lm_value *x = value(g, op, 0);
    lm_grad_add(g, op->in[0], mul(g, mul(g, gz, scalar(g, gz->type.dtype, 2)), x));
    return;
  }
  for (int i = 0; i < 2; i++) {
    if (!lm_grad_needs(g, op->in[i]))
      continue;
    lm_value *other = value(g, op, 1 - i);
    lm_grad_add(g, op->in[i], mul(g, cotangent(g, op), other));
  }
}

// x: g / y; y: -g z / y
void vjp_div(lm_grad *g, lm_op *op) {
  lm_value *y = value(g, op, 1);
  lm_value *q = lm_emit2(g->b, LM_OP_DIV, cotangent(g, op), y);
  lm_grad_add(g, op->in[0], q);
  if (lm_grad_needs(g, op->in[1]))
    lm_grad_add(g, op->in[1], neg(g, mul(g, q, lm_grad_value(g, op->out[0]))));
}

// x: g y x^(y - 1); for a constant y the exponent is folded, so that y = 1 and 2 leave no power
static void pow_base(lm_grad *g, lm_op *op) {
  lm_value *x = value(g, op, 0);
  lm_value *y = value(g, op, 1);
  lm_dtype t = x->type.dtype;
  bool known = y->def && y->def->code == LM_OP_CONST;
  double n = known ? y->def->attr.num : 0;
  if (known && n == 0)
    return;
  lm_value *slope = NULL;
  if (!known)
    slope = mul(g, lm_emit2(g->b, LM_OP_POW, x, lm_emit2(g->b, LM_OP_SUB, y, scalar(g, t, 1))), y);
  else if (n == 2)
    slope = mul(g, x, scalar(g, t, 2));
  else if (n != 1) {
    lm_value *factor = scalar(g, t, n);
    slope = mul(g, lm_emit2(g->b, LM_OP_POW, x, scalar(g, t, n - 1)), factor);
  }
  lm_grad_add(g, op->in[0], slope ? mul(g, cotangent(g, op), slope) : cotangent(g, op));
}

// y: g z log x
void vjp_pow(lm_grad *g, lm_op *op) {
  if (lm_grad_needs(g, op->in[0]))
    pow_base(g, op);
  if (!lm_grad_needs(g, op->in[1]))
    return;
  lm_value *ln = lm_emit1(g->b, LM_OP_LOG, value(g, op, 0));
  lm_value *slope = mul(g, lm_grad_value(g, op->out[0]), ln);
  lm_grad_add(g, op->in[1], mul(g, cotangent(g, op), slope));
}

// x: g; y: -g floor(x / y)
void vjp_mod(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], cotangent(g, op));
  if (!lm_grad_needs(g, op->in[1]))
    return;
  lm_value *y = value(g, op, 1);
  lm_value *times = lm_emit2(g->b, LM_OP_DIV, value(g, op, 0), y);
  lm_value *whole = lm_emit1(g->b, LM_OP_FLOOR, times);
  lm_grad_add(g, op->in[1], neg(g, mul(g, cotangent(g, op), whole)));
}

// x: select(c, g, 0); y: select(c, 0, g)
void vjp_select(lm_grad *g, lm_op *op) {
  lm_value *c = value(g, op, 0);
  lm_value *gz = cotangent(g, op);
  lm_value *zero = scalar(g, gz->type.dtype, 0);
  if (lm_grad_needs(g, op->in[1]))
    lm_grad_add(g, op->in[1], lm_emit_select(g->b, c, gz, zero));
  if (lm_grad_needs(g, op->in[2]))
    lm_grad_add(g, op->in[2], lm_emit_select(g->b, c, zero, gz));
}
