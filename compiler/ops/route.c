// route.c - shape rules of routing: the best entries, and rows that are sorted by group.
//
//   %i = top_k %scores (E) -> (c)                            expert c of each token
//   %counts = group_counts %i (b, t, c) -> (E)               rows of each expert
//   %order = group_order %i, %counts (b, t, c) -> (n)        row n is the element order[n] of i
//   %inverse = group_inverse %i, %counts over(b, t, c)           and back: order[inverse[e]] = e
//   %x = group_rows %tokens, %order, %inverse (b, t, c) -> (n)
//   %y = grouped_dot %x, %w, %counts over(d)                 a GEMM for each expert
//   %z = ungroup_rows %y, %inverse, %order (n) -> (b, t, c)
//
// The number of rows is static, how they are divided among the groups is data. Both `order` and
// `inverse` are operands of the moves, because the derivative of either move is the other one.
#include "compiler/ops/ops.h"

bool shape_top_k(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  const lm_attr *a = &op->attr;
  if (a->n_axes != 1 || a->n_to != 1)
    return lm_why(why, "needs one axis, and one new axis");
  int at = lm_type_find(x, a->axes[0]);
  if (at < 0 || x.dtype == LM_BOOL)
    return lm_why_type(why, m, "", x, at < 0 ? " lacks the axis" : " cannot be ordered");
  if (lm_axis_size(m, a->to[0]) > lm_axis_size(m, a->axes[0]))
    return lm_why(why, "axis %s has fewer elements than %s", lm_axis_name(m, a->axes[0]),
                  lm_axis_name(m, a->to[0]));
  if (lm_type_find(x, a->to[0]) >= 0)
    return lm_why(why, "the result has axis %s twice", lm_axis_name(m, a->to[0]));
  *out = x;
  out->dtype = LM_INT;
  out->axis[at] = a->to[0];
  return true;
}

static bool is_int(const lm_value *v, int rank) {
  return v->type.dtype == LM_INT && (rank < 0 || v->type.rank == rank);
}

static bool axes_equal(const lm_attr *a, lm_type t) {
  for (int i = 0; i < t.rank; i++)
    if (a->n_axes != t.rank || a->axes[i] != t.axis[i])
      return false;
  return a->n_axes == t.rank;
}

bool shape_group_counts(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (!is_int(op->in[0], -1) || !axes_equal(a, op->in[0]->type))
    return lm_why(why, "needs int ids, and their axes");
  if (a->n_to != 1 || m->axes[a->to[0]].dyn)
    return lm_why(why, "needs one new axis of static size");
  *out = lm_type_make(LM_INT, a->to, 1);
  return true;
}

static bool ids_fit(const lm_op *op, lm_buf *why) {
  if (!is_int(op->in[0], -1) || !is_int(op->in[1], 1))
    return lm_why(why, "needs int ids, and int counts with one axis");
  return axes_equal(&op->attr, op->in[0]->type) || lm_why(why, "the axes are not those of the ids");
}

bool shape_group_order(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (!ids_fit(op, why))
    return false;
  if (a->n_to != 1 || !lm_axis_counts(m, a->to[0], a->axes, a->n_axes))
    return lm_why(why, "the new axis does not have one element for each id");
  *out = lm_type_make(LM_INT, a->to, 1);
  return true;
}

bool shape_group_inverse(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return ids_fit(op, why);
}

// order: int[n], inverse: int[axes].
static bool permutation_fits(const lm_value *order, const lm_value *inverse, const lm_axis *axes,
                             int n_axes, lm_axis n, lm_buf *why) {
  bool fits = is_int(order, 1) && order->type.axis[0] == n && is_int(inverse, n_axes);
  for (int i = 0; fits && i < n_axes; i++)
    fits = inverse->type.axis[i] == axes[i];
  return fits || lm_why(why, "order and inverse do not have the axes of the rows");
}

// The axes `first`, then those of x that are not in `drop`.
static bool moved(const lm_module *m, lm_type x, const lm_axis *first, int n_first,
                  const lm_axis *drop, int n_drop, lm_type *out, lm_buf *why) {
  *out = lm_type_make(x.dtype, first, n_first);
  lm_type dropped = lm_type_make(x.dtype, drop, n_drop);
  for (int i = 0; i < x.rank; i++) {
    if (lm_type_find(dropped, x.axis[i]) >= 0)
      continue;
    if (lm_type_find(*out, x.axis[i]) >= 0 || out->rank == LM_RANK)
      return lm_why(why, "the result has too many axes, or axis %s twice",
                    lm_axis_name(m, x.axis[i]));
    out->axis[out->rank++] = x.axis[i];
  }
  return true;
}

bool shape_group_rows(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (a->n_to != 1)
    return lm_why(why, "needs one new axis");
  return permutation_fits(op->in[1], op->in[2], a->axes, a->n_axes, a->to[0], why) &&
         moved(m, op->in[0]->type, a->to, 1, a->axes, a->n_axes, out, why);
}

bool shape_ungroup_rows(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (a->n_axes != 1 || lm_type_find(op->in[0]->type, a->axes[0]) < 0)
    return lm_why_type(why, m, "", op->in[0]->type, " lacks the axis of the rows");
  return permutation_fits(op->in[2], op->in[1], a->to, a->n_to, a->axes[0], why) &&
         moved(m, op->in[0]->type, a->to, a->n_to, a->axes, 1, out, why);
}

// ---- GEMMs

static bool factors_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  lm_type x = op->in[0]->type;
  lm_type w = op->in[1]->type;
  if (x.dtype != w.dtype || !lm_dtype_is_float(x.dtype)) {
    lm_why_type(why, m, "", x, " with ");
    return lm_why_type(why, m, "", w, ": not of one floating type");
  }
  if (!is_int(op->in[2], 1))
    return lm_why_type(why, m, "counts are ", op->in[2]->type, ", not int with one axis");
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(x, op->attr.axes[i]) < 0 || lm_type_find(w, op->attr.axes[i]) < 0)
      return lm_why(why, "an operand has no axis %s", lm_axis_name(m, op->attr.axes[i]));
  return true;
}

bool shape_grouped_dot(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type x = op->in[0]->type;
  if (!factors_fit(m, op, why))
    return false;
  lm_axis group = op->in[2]->type.axis[0];
  lm_type drop = lm_type_make(x.dtype, op->attr.axes, op->attr.n_axes);
  lm_type rows;
  if (!moved(m, x, NULL, 0, drop.axis, drop.rank, &rows, why))
    return false;
  if (rows.rank != 1 || lm_type_find(op->in[1]->type, group) < 0 || lm_type_find(x, group) >= 0 ||
      drop.rank == LM_RANK)
    return lm_why(why, "the first operand has one axis of rows, and the second the axis of counts");
  drop.axis[drop.rank++] = group;
  return moved(m, op->in[1]->type, rows.axis, 1, drop.axis, drop.rank, out, why);
}

// The result of f16 and bf16 operands may be f32, as that of a dot.
bool shape_grouped_outer(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  lm_type x = op->in[0]->type;
  lm_type first;
  bool wide = lm_dtype_is_half(x.dtype) && out->dtype == LM_F32;
  if (!factors_fit(m, op, why))
    return false;
  if (a->n_axes != 1)
    return lm_why(why, "needs the axis of the rows");
  if (!moved(m, x, op->in[2]->type.axis, 1, a->axes, 1, &first, why) ||
      !moved(m, op->in[1]->type, first.axis, first.rank, a->axes, 1, out, why))
    return false;
  out->dtype = wide ? LM_F32 : x.dtype;
  return true;
}
