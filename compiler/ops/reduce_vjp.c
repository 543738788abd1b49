// reduce_vjp.c - derivatives of sums, maxima and dots over axes.
#include "compiler/ir/dot.h"
#include "compiler/ops/ops.h"

void vjp_sum(lm_grad *g, lm_op *op) {
  lm_grad_add(g, op->in[0], lm_emit_expand(g->b, lm_grad_of(g, op->out[0]), op->in[0]->type));
}

// The row-major index over the axes `over` of every element of a tensor of type t; int, with t's
// axes.
static lm_value *flat_index(lm_grad *g, lm_type t, const lm_attr *over) {
  lm_builder *b = g->b;
  lm_value *sum = NULL;
  t.dtype = LM_INT;
  for (int i = 0; i < over->n_axes; i++) {
    lm_type line = lm_type_make(LM_INT, &over->axes[i], 1);
    lm_value *at = lm_emit_expand(b, lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &line), t);
    lm_value *size =
        lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)lm_axis_size(b->m, over->axes[i]));
    sum = sum ? lm_emit2(b, LM_OP_ADD, lm_emit2(b, LM_OP_MUL, sum, size), at) : at;
  }
  return sum;
}

// The first maximum receives the whole cotangent.
void vjp_max(lm_grad *g, lm_op *op) {
  lm_builder *b = g->b;
  lm_value *x = lm_grad_value(g, op->in[0]);
  lm_value *gz = lm_grad_of(g, op->out[0]);
  lm_value *best = lm_emit(b, LM_OP_ARGMAX, &x, 1, &op->attr, NULL);
  lm_value *here = lm_emit2(b, LM_OP_EQ, flat_index(g, x->type, &op->attr), best);
  lm_value *zero = lm_emit_const(b, lm_type_make(gz->type.dtype, NULL, 0), 0);
  lm_grad_add(g, op->in[0], lm_emit_select(b, here, gz, zero));
}

// gz * other if no axis is reduced: one element of `of` per element.
static lm_value *outer_product(lm_grad *g, lm_type of, lm_value *gz, lm_value *other) {
  lm_type t = {
      .dtype = of.dtype,
  };
  for (int i = 0; i < of.rank; i++)
    if (lm_type_find(gz->type, of.axis[i]) >= 0)
      t.axis[t.rank++] = of.axis[i];
  lm_value *x = lm_emit_cast(g->b, gz, (lm_dtype)of.dtype);
  x = lm_emit_expand(g->b, lm_emit_permute(g->b, x, t.axis, t.rank), of);
  return lm_emit2(g->b, LM_OP_MUL, x, lm_emit_cast(g->b, other, (lm_dtype)of.dtype));
}

// How well the axis order of dot(x, w) matches the wanted order: 2 equal, 1 the same last axis, 0
// neither.
static int dot_fit(lm_builder *b, lm_value *x, lm_value *w, const lm_attr *over, lm_type want) {
  lm_op probe = {
      .code = LM_OP_DOT,
      .in = (lm_value *[]){x, w},
      .n_in = 2,
      .attr = *over,
  };
  lm_buf why = {0};
  lm_type t = want;
  bool ok = shape_dot(b->m, &probe, &t, &why);
  lm_buf_free(&why);
  if (!ok || !t.rank)
    return 0;
  return lm_type_equal(t, want) ? 2 : t.axis[t.rank - 1] == want.axis[want.rank - 1];
}

// The sum of gz * other over the axes that only `other` has, with the operand order that needs the
// least permutation.
static lm_value *dot_back(lm_grad *g, lm_type of, lm_value *gz, lm_value *other) {
  lm_attr only = {0};
  for (int i = 0; i < other->type.rank; i++)
    if (lm_type_find(of, other->type.axis[i]) < 0)
      only.axes[only.n_axes++] = other->type.axis[i];
  if (!only.n_axes)
    return outer_product(g, of, gz, other);
  bool flip = dot_fit(g->b, other, gz, &only, of) > dot_fit(g->b, gz, other, &only, of);
  lm_value *in[] = {flip ? other : gz, flip ? gz : other};
  lm_type result = {.dtype = of.dtype};
  return lm_emit(g->b, LM_OP_DOT, in, 2, &only, &result);
}

// The value whose cotangent operand i of a dot gets: where the result is not rounded, neither is
// the cotangent of a value that was rounded for the dot.
static lm_value *unrounded(const lm_op *dot, int i) {
  lm_value *v = dot->in[i];
  const lm_op *cast = v->def;
  bool wide = dot->out[0]->type.dtype == LM_F32 && lm_dtype_is_half(v->type.dtype);
  bool rounds = wide && cast && cast->code == LM_OP_CAST && cast->parent == dot->parent;
  return rounds && cast->in[0]->type.dtype == LM_F32 ? cast->in[0] : v;
}

// x: dot(g, w) over the axes that only w has; w: dot(g, x) over the axes that only x has
void vjp_dot(lm_grad *g, lm_op *op) {
  lm_value *gz = lm_emit_cast(g->b, lm_grad_of(g, op->out[0]), op->in[0]->type.dtype);
  for (int i = 0; i < 2; i++) {
    lm_value *of = unrounded(op, i);
    lm_value *other = op->in[1 - i];
    if (lm_grad_needs(g, of))
      lm_grad_add(g, of, dot_back(g, of->type, gz, lm_grad_value(g, other)));
  }
}
