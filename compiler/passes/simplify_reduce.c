// simplify_reduce.c - rules of simplify.c for reductions and dots.
#include <math.h>
#include "compiler/ir/internal.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/simplify.h"

// A sum or maximum of an expanded value: the expanded axes are not reduced; a sum is multiplied by
// their size.
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
  bool exact = times <= 0x1p24 || x->type.dtype == LM_F64; // as a constant of the type
  if (rest.n_axes == op->attr.n_axes || (op->code == LM_OP_SUM && !exact))
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

// An axis of size 1 is not reduced: its only element is the sum and the maximum.
static lm_value *of_size_one(lm_rewrite *r, lm_op *op) {
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
  lm_value *x = op->in[0];
  lm_value *one;
  double c;
  if (lm_const_of(x, &c))
    return of_const(r, op, c);
  if ((one = of_size_one(r, op)))
    return one;
  if (op->code == LM_OP_SUM && lm_op_is(x, LM_OP_NEG))
    return lm_emit1(
        &r->b, LM_OP_NEG,
        lm_emit_reduce(&r->b, LM_OP_SUM, x->def->in[0], op->attr.axes, op->attr.n_axes));
  return lm_op_is(x, LM_OP_EXPAND) ? of_expand(r, op, x->def->in[0]) : NULL;
}

// True if x is computed elementwise from the taps of a window over one of the axes.
static bool holds_taps(const lm_value *x, const lm_attr *over, int depth) {
  const lm_op *op = x->def;
  if (!op || depth > 8)
    return false;
  if (op->code == LM_OP_WINDOW && lm_attr_has_axis(over, op->attr.to[1]))
    return true;
  bool passes = lm_op_has(op, LM_T_ELEMENTWISE) || op->code == LM_OP_PERMUTE;
  for (uint32_t i = 0; passes && i < op->n_in; i++)
    if (holds_taps(op->in[i], over, depth + 1))
      return true;
  return false;
}

// A depthwise convolution: a dot of x, the taps of a window, with weights w that have only axes of
// x. A GEMM for each channel would compute it; a multiplication and a sum read the taps in place.
static lm_value *channelwise(lm_rewrite *r, lm_op *op, lm_value *x, lm_value *w) {
  if (r->b.m->stage != LM_STAGE_GRAPH || !lm_type_subset(w->type, x->type) ||
      lm_type_same_axes(w->type, x->type) || !holds_taps(x, &op->attr, 0))
    return NULL;
  lm_type to = op->out[0]->type;
  x = lm_emit_cast(&r->b, x, LM_F32);
  w = lm_emit_cast(&r->b, w, LM_F32);
  lm_value *y = lm_emit_reduce(&r->b, LM_OP_SUM, lm_emit2(&r->b, LM_OP_MUL, x, w), op->attr.axes,
                               op->attr.n_axes);
  y = lm_emit_cast(&r->b, y, (lm_dtype)to.dtype);
  return lm_emit_permute(&r->b, y, to.axis, to.rank);
}

// A dot with ones is a sum.
static lm_value *dot(lm_rewrite *r, lm_op *op) {
  double c;
  lm_value *x = op->in[0];
  lm_value *w = op->in[1];
  lm_value *taps = channelwise(r, op, x, w);
  taps = taps ? taps : channelwise(r, op, w, x);
  if (taps)
    return taps;
  if (!lm_const_of(w, &c) || c != 1 || !lm_type_subset(w->type, x->type) || !op->attr.n_axes)
    return NULL;
  lm_value *y = lm_emit_reduce(&r->b, LM_OP_SUM, x, op->attr.axes, op->attr.n_axes);
  return lm_type_equal(y->type, op->out[0]->type) ? y : NULL;
}

// A reduction in an attend's region sums over tiles and stays as it is.
lm_value *lm_simplify_reduce(lm_rewrite *r, lm_op *op) {
  if (op->parent->owner && lm_op_attends(op->parent->owner))
    return NULL;
  lm_value *z = op->code == LM_OP_DOT ? dot(r, op) : reduction(r, op);
  if (!z)
    lm_operands_skip(r, op, LM_OP_PERMUTE);
  return z;
}
