// simplify_reduce.c - rules of simplify.c for reductions and products.
#include <math.h>
#include "compiler/ir/internal.h"
#include "compiler/passes/simplify.h"

// sum or max of what is the same along some axes: those are not reduced over; a sum is so many
// times as large.
static lm_value *of_expand(lm_rewrite *r, lm_op *op, lm_value *x) {
  const lm_module *m = r->b.m;
  lm_attr rest = {0};
  double times = 1;
  for (int i = 0; i < op->attr.n_axes; i++) {
    lm_axis a = op->attr.axes[i];
    if (lm_type_find(x->type, a) >= 0)
      rest.axes[rest.n_axes++] = a;
    else if (m->axes[a].dyn)
      return NULL;
    else
      times *= (double)lm_axis_size(m, a);
  }
  if (rest.n_axes == op->attr.n_axes || (op->code == LM_OP_SUM && times > 0x1p24))
    return NULL;
  lm_value *y = lm_emit_reduce(&r->b, op->code, x, rest.axes, rest.n_axes);
  if (op->code == LM_OP_SUM) {
    lm_value *n = lm_emit_const(&r->b, lm_type_make(y->type.dtype, NULL, 0), times);
    y = lm_emit2(&r->b, LM_OP_MUL, y, n);
  }
  return lm_cast_to(r, y, op->out[0]->type);
}

static lm_value *of_const(lm_rewrite *r, lm_op *op, double c) {
  double times = 1;
  for (int i = 0; i < op->attr.n_axes; i++) {
    if (r->b.m->axes[op->attr.axes[i]].dyn)
      return NULL;
    times *= (double)lm_axis_size(r->b.m, op->attr.axes[i]);
  }
  if (op->code == LM_OP_SUM && op->in[0]->type.dtype == LM_INT && fabs(c * times) > INT32_MAX)
    return NULL;
  return lm_emit_const(&r->b, op->out[0]->type, op->code == LM_OP_SUM ? c * times : c);
}

// Of an axis with one place that place is the sum, and the greatest.
static lm_value *of_one_place(lm_rewrite *r, lm_op *op) {
  lm_attr rest = {0};
  lm_value *x = op->in[0];
  for (int i = 0; i < op->attr.n_axes; i++) {
    const lm_axis_info *info = &r->b.m->axes[op->attr.axes[i]];
    lm_attr a = {.axes = {op->attr.axes[i]}, .n_axes = 1, .imm = {0, 1}, .n_imm = 2};
    if (info->size != 1 || info->dyn)
      rest.axes[rest.n_axes++] = op->attr.axes[i];
    else
      x = lm_emit(&r->b, LM_OP_SLICE, &x, 1, &a, NULL);
  }
  return x == op->in[0] ? NULL : lm_emit_reduce(&r->b, op->code, x, rest.axes, rest.n_axes);
}

static lm_value *reduction(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0], *one;
  double c;
  if (lm_const_of(x, &c))
    return of_const(r, op, c);
  if ((one = of_one_place(r, op)))
    return one;
  if (op->code == LM_OP_SUM && lm_op_is(x, LM_OP_NEG))
    return lm_emit1(
        &r->b, LM_OP_NEG,
        lm_emit_reduce(&r->b, LM_OP_SUM, x->def->in[0], op->attr.axes, op->attr.n_axes));
  return lm_op_is(x, LM_OP_EXPAND) ? of_expand(r, op, x->def->in[0]) : NULL;
}

// A product with ones is a sum.
static lm_value *product(lm_rewrite *r, lm_op *op) {
  double c;
  lm_value *x = op->in[0];
  lm_value *w = op->in[1];
  if (!lm_const_of(w, &c) || c != 1 || !lm_type_subset(w->type, x->type) || !op->attr.n_axes)
    return NULL;
  lm_value *y = lm_emit_reduce(&r->b, LM_OP_SUM, x, op->attr.axes, op->attr.n_axes);
  return lm_type_equal(y->type, op->out[0]->type) ? y : NULL;
}

// An operand need not be permuted if the result has the same axes without.
static void unpermuted(lm_rewrite *r, lm_op *op) {
  lm_buf why = {0};
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value *x = op->in[i];
    lm_type t = op->out[0]->type;
    if (!lm_op_is(x, LM_OP_PERMUTE))
      continue;
    op->in[i] = x->def->in[0];
    if (lm_op_infer(r->b.m, op, &t, &why) && lm_type_equal(t, op->out[0]->type))
      r->changes++;
    else
      op->in[i] = x;
  }
  lm_buf_free(&why);
}

// What an attend's region sums over tiles stays a sum of its own.
lm_value *lm_simplify_reduce(lm_rewrite *r, lm_op *op) {
  if (op->parent->owner && lm_op_attends(op->parent->owner))
    return NULL;
  lm_value *z = op->code == LM_OP_DOT ? product(r, op) : reduction(r, op);
  if (!z)
    unpermuted(r, op);
  return z;
}
