// mesh.c - collectives: operations between the ranks along one axis of the mesh.
//
// Every rank runs the same module on tensors of the same types. An axis g that the ranks along mesh
// axis tp divide is another axis, g@tp, of size g / tp: rank r has the elements from r * size on
// (lm_axis_part). What the types do not say, whether a value without divided axes is equal on all
// ranks or a term of a sum, compiler/passes/shard/mesh_state.h derives.
//
//   %f = fan %x over(tp)                                    equal; the cotangents are added
//   %h = first %x over(tp)                                  x on rank 0, else 0
//   %y = all_reduce %p over(tp)                             the sum; all_max: the maximum
//   %w = all_gather %s over(tp) (g@tp) -> (g)               collect: the same, see mesh_vjp.c
//   %s = reduce_scatter %p over(tp) (g) -> (g@tp)           a part of the sum
//   %s = part %x over(tp) (g) -> (g@tp)                     a part of an equal value
//   %c = all_to_all %s over(tp) (g@tp, h) -> (g, h@tp)      parts along another axis
//   %n = ring_shift %x over(cp) [1]                         of the previous rank
//   %c = exchange_counts %s over(ep)                        an int of each rank, for this one
//   %y = exchange_rows %x, %s, %c over(ep) (n@ep) -> (r@ep) rows by counts
//   %r = rank over(tp)                                      0, 1, …
//   %c = cycle %i over(pp) [0, 1, 1, 4, 2]                  ((0 + %i + rank) mod 4) / 2
#include "compiler/ops/ops.h"

bool shape_mesh_float(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return lm_dtype_is_float(out->dtype) || lm_why_type(why, m, "", *out, " is not floating");
}

bool shape_mesh_number(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return out->dtype != LM_BOOL || lm_why(why, "the operand is bool");
}

bool shape_ring_shift(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return (op->attr.n_imm == 1 && op->attr.imm[0] > INT32_MIN && op->attr.imm[0] < INT32_MAX) ||
         lm_why(why, "needs [distance]");
}

bool shape_rank(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = lm_type_make(LM_INT, NULL, 0);
  return true;
}

bool shape_cycle(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  *out = lm_type_make(LM_INT, NULL, 0);
  if (!lm_type_equal(op->in[0]->type, *out))
    return lm_why(why, "the operand is not a scalar int");
  for (int i = 0; i < a->n_imm; i++)
    if (a->imm[i] < 0 || a->imm[i] > INT32_MAX)
      return lm_why(why, "%lld is not from 0 to 2^31 - 1", (long long)a->imm[i]);
  return (a->n_imm == 5 && a->imm[3] && a->imm[4] && a->imm[3] % a->imm[4] == 0) ||
         lm_why(why, "needs [first, factor, factor of the rank, period, a divisor of it]");
}

// Axis `from` of t becomes `to`, where one of them is the part of the other.
static bool exchange(const lm_module *m, const lm_op *op, lm_axis from, lm_axis to, bool divide,
                     lm_type *t, lm_buf *why) {
  lm_axis part = divide ? to : from;
  lm_axis whole = divide ? from : to;
  const lm_axis_info *p = &m->axes[part];
  int at = lm_type_find(*t, from);
  if (p->whole != whole || p->mesh != op->attr.mesh)
    return lm_why(why, "%s is not axis %s divided by %s", p->name, lm_axis_name(m, whole),
                  m->mesh.axis[op->attr.mesh - 1].name);
  if (at < 0) {
    lm_why_type(why, m, "", *t, "");
    return lm_why(why, " has no axis %s", lm_axis_name(m, from));
  }
  if (lm_type_find(*t, to) >= 0)
    return lm_why(why, "the operand already has axis %s", lm_axis_name(m, to));
  t->axis[at] = to;
  return true;
}

static bool axes_paired(const lm_op *op, int n, lm_buf *why) {
  return (op->attr.n_axes == n && op->attr.n_to == n) ||
         lm_why(why, n == 1 ? "needs one axis and its counterpart"
                            : "needs two axes and their counterparts");
}

bool shape_all_gather(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return axes_paired(op, 1, why) &&
         exchange(m, op, op->attr.axes[0], op->attr.to[0], false, out, why);
}

bool shape_part(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return axes_paired(op, 1, why) &&
         exchange(m, op, op->attr.axes[0], op->attr.to[0], true, out, why);
}

bool shape_all_to_all(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  *out = op->in[0]->type;
  return axes_paired(op, 2, why) && exchange(m, op, a->axes[0], a->to[0], false, out, why) &&
         exchange(m, op, a->axes[1], a->to[1], true, out, why);
}

// int, with one element for each rank.
static bool counts_ranks(const lm_module *m, const lm_op *op, lm_type t) {
  return t.dtype == LM_INT && t.rank == 1 && !m->axes[t.axis[0]].dyn &&
         lm_axis_size(m, t.axis[0]) == m->mesh.axis[op->attr.mesh - 1].size;
}

bool shape_exchange_counts(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return counts_ranks(m, op, *out) || lm_why(why, "needs one int for each rank");
}

bool shape_exchange_rows(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  *out = op->in[0]->type;
  if (a->n_axes != 1 || a->n_to != 1 || m->axes[a->axes[0]].mesh != a->mesh ||
      m->axes[a->to[0]].mesh != a->mesh)
    return lm_why(why, "needs two axes that %s divides", m->mesh.axis[a->mesh - 1].name);
  if (!out->rank || out->axis[0] != a->axes[0] || lm_type_find(*out, a->to[0]) >= 0)
    return lm_why(why, "%s is not the first axis, or the result has an axis twice",
                  lm_axis_name(m, a->axes[0]));
  if (!counts_ranks(m, op, op->in[1]->type) || !counts_ranks(m, op, op->in[2]->type))
    return lm_why(why, "needs one int for each rank, twice");
  out->axis[0] = a->to[0];
  return true;
}
