// unary_vjp.c - derivatives of elementwise operations of one operand. g is the result's cotangent,
// x the operand, y the result.
#include "compiler/ops/ops.h"

static lm_value *cotangent(lm_grad *g, lm_op *op) {
  return lm_grad_of(g, op->out[0]);
}
static lm_value *operand(lm_grad *g, lm_op *op) {
  return lm_grad_value(g, op->in[0]);
}
static lm_value *result(lm_grad *g, lm_op *op) {
  return lm_grad_value(g, op->out[0]);
}
static lm_value *scalar(lm_grad *g, lm_op *op, double v) {
  return lm_emit_const(g->b, lm_type_make(op->in[0]->type.dtype, NULL, 0), v);
}
static lm_value *mul(lm_grad *g, lm_value *x, lm_value *y) {
  return lm_emit2(g->b, LM_OP_MUL, x, y);
}
static lm_value *neg(lm_grad *g, lm_value *x) {
  return lm_emit1(g->b, LM_OP_NEG, x);
}
static void add(lm_grad *g, lm_op *op, lm_value *v) {
  lm_grad_add(g, op->in[0], v);
}
// Adds g times the slope of the operation, which is computed first.
static void add_slope(lm_grad *g, lm_op *op, lm_value *slope) {
  add(g, op, mul(g, cotangent(g, op), slope));
}

// -g
void vjp_neg(lm_grad *g, lm_op *op) {
  add(g, op, neg(g, cotangent(g, op)));
}

// g y
void vjp_exp(lm_grad *g, lm_op *op) {
  add_slope(g, op, result(g, op));
}

// g / x
void vjp_log(lm_grad *g, lm_op *op) {
  lm_value *x = operand(g, op);
  add(g, op, lm_emit2(g->b, LM_OP_DIV, cotangent(g, op), x));
}

// g / (1 + x)
void vjp_log1p(lm_grad *g, lm_op *op) {
  lm_value *one = scalar(g, op, 1);
  lm_value *more = lm_emit2(g->b, LM_OP_ADD, operand(g, op), one);
  add(g, op, lm_emit2(g->b, LM_OP_DIV, cotangent(g, op), more));
}

// g / (2 y), 0 where y = 0
void vjp_sqrt(lm_grad *g, lm_op *op) {
  lm_value *y = result(g, op);
  lm_value *zero = scalar(g, op, 0);
  lm_value *twice = mul(g, y, scalar(g, op, 2));
  lm_value *q = lm_emit2(g->b, LM_OP_DIV, cotangent(g, op), twice);
  add(g, op, lm_emit_select(g->b, lm_emit2(g->b, LM_OP_EQ, y, zero), zero, q));
}

// -g y^3 / 2
void vjp_rsqrt(lm_grad *g, lm_op *op) {
  lm_value *y = result(g, op);
  lm_value *cube = mul(g, mul(g, y, y), y);
  add_slope(g, op, mul(g, cube, scalar(g, op, -0.5)));
}

// g cos x
void vjp_sin(lm_grad *g, lm_op *op) {
  add_slope(g, op, lm_emit1(g->b, LM_OP_COS, operand(g, op)));
}

// -g sin x
void vjp_cos(lm_grad *g, lm_op *op) {
  lm_value *sine = lm_emit1(g->b, LM_OP_SIN, operand(g, op));
  add(g, op, neg(g, mul(g, cotangent(g, op), sine)));
}

// g y (1 - y)
void vjp_logistic(lm_grad *g, lm_op *op) {
  lm_value *y = result(g, op);
  lm_value *slope = mul(g, y, lm_emit2(g->b, LM_OP_SUB, scalar(g, op, 1), y));
  add_slope(g, op, slope);
}

// g (1 - y^2)
void vjp_tanh(lm_grad *g, lm_op *op) {
  lm_value *y = result(g, op);
  lm_value *square = mul(g, y, y);
  add_slope(g, op, lm_emit2(g->b, LM_OP_SUB, scalar(g, op, 1), square));
}

// 2 g e^(-x^2) / sqrt(pi)
void vjp_erf(lm_grad *g, lm_op *op) {
  lm_value *x = operand(g, op);
  lm_value *bell = lm_emit1(g->b, LM_OP_EXP, neg(g, mul(g, x, x)));
  add_slope(g, op, mul(g, bell, scalar(g, op, 1.1283791670955126)));
}

void vjp_reduce_precision(lm_grad *g, lm_op *op) {
  add(g, op, cotangent(g, op));
}

void vjp_edited(lm_grad *g, lm_op *op) {
  add(g, op, cotangent(g, op));
}

void vjp_cast(lm_grad *g, lm_op *op) {
  add(g, op, lm_emit_cast(g->b, cotangent(g, op), op->in[0]->type.dtype));
}
