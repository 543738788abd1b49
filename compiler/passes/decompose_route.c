// decompose_route.c - the part of pass decompose that lowers the operations of routing.
//
// before: %i = top_k %x (v) -> (c)
// after:  %r = sum %x(v.1) is before %x(v) over(v.1)
//         %i = sum select %r == iota(c), iota(v), 0 over(v)
// before: %y = group_rows %x, %order, %inverse (b, t, c) -> (n)             (%x lacks c)
// after:  %z = view %x (b, t) -> (n.1)   %r = idiv %order, size of c   %g = gather %z, %r over(n.1)
//         %y = select %order >= 0, %g, 0
// before: %x = ungroup_rows %y, %inverse, %order (n) -> (b, t, c)
// after:  %g = gather %y, %inverse over(n)   %x = select %inverse >= 0, %g, 0
//
// In decoding, where fewer positions may exist than are read:
// before: %x = select %m, %scores, -1e30   %i = top_k %x (s) -> (c)   %y = gather %x, %i over(s)
// after:  %y = select iota(c) < sum 1 over(s), gather %x, %i over(s), -1e30
//
// top_k takes the square of the axis' size in comparisons, which kernels compute in vectors.
#include <float.h>
#include <string.h>
#include "compiler/ops/interface.h"
#include "compiler/passes/causal/causal.h"
#include "compiler/passes/rewrite.h"

static lm_value *number(lm_rewrite *r, int64_t v) {
  return lm_emit_const(&r->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

static lm_value *iota(lm_rewrite *r, lm_axis a, lm_type wide) {
  lm_type t = lm_type_make(LM_INT, &a, 1);
  wide.dtype = LM_INT;
  return lm_cast_to(r, lm_emit(&r->b, LM_OP_IOTA, NULL, 0, NULL, &t), wide);
}

// ---- top_k

// x with NaN as the lowest number, so that its elements have an order.
static lm_value *ordered(lm_rewrite *r, lm_value *x) {
  if (!lm_dtype_is_float(x->type.dtype))
    return x;
  lm_value *lowest =
      lm_emit_const(&r->b, lm_type_make((lm_dtype)x->type.dtype, NULL, 0), -(double)FLT_MAX);
  return lm_emit_select(&r->b, lm_emit2(&r->b, LM_OP_EQ, x, x), x, lowest);
}

static lm_type with_axis(lm_type t, lm_axis a) {
  t.axis[t.rank++] = a;
  return t;
}

// How many elements along v are before each one: greater, or equal and first. A permutation.
static lm_value *ranks(lm_rewrite *r, lm_value *x, lm_axis v) {
  lm_builder *b = &r->b;
  const lm_axis_info *a = &b->m->axes[v];
  lm_axis other = a->dyn ? lm_axis_add(b->m, a->name, a->size, a->dyn)
                         : lm_axis_shared(b->m, a->name, a->size, x->type);
  lm_attr rename = {.axes = {v}, .n_axes = 1, .to = {other}, .n_to = 1};
  lm_type wide = with_axis(x->type, other);
  lm_value *mine = lm_emit_expand(b, x, wide);
  lm_value *its = lm_cast_to(r, lm_emit(b, LM_OP_RENAME, &x, 1, &rename, NULL), wide);
  lm_value *index = iota(r, v, wide);
  lm_value *first = lm_emit2(b, LM_OP_LT, iota(r, other, wide), index);
  lm_value *tied = lm_emit2(b, LM_OP_AND, lm_emit2(b, LM_OP_EQ, its, mine), first);
  lm_value *before = lm_emit2(b, LM_OP_OR, lm_emit2(b, LM_OP_GT, its, mine), tied);
  return lm_emit_reduce(b, LM_OP_SUM, lm_emit_cast(b, before, LM_INT), &other, 1);
}

static lm_value *top_k(lm_rewrite *r, lm_op *op) {
  lm_axis v = op->attr.axes[0];
  lm_axis c = op->attr.to[0];
  lm_value *rank = ranks(r, ordered(r, op->in[0]), v);
  lm_type wide = with_axis(rank->type, c);
  lm_type to = op->out[0]->type;
  lm_value *wanted = iota(r, c, wide);
  lm_value *here = lm_emit2(&r->b, LM_OP_EQ, lm_emit_expand(&r->b, rank, wide), wanted);
  lm_value *zero = number(r, 0);
  lm_value *index = lm_emit_select(&r->b, here, iota(r, v, wide), zero);
  lm_value *sum = lm_emit_reduce(&r->b, LM_OP_SUM, index, &v, 1);
  return lm_emit_permute(&r->b, sum, to.axis, to.rank);
}

// The constant that replaces the scores of hidden positions; false: there is none.
static bool hidden_score(const lm_value *x, double *out) {
  while (lm_op_is(x, LM_OP_STOP) || (x->def && lm_op_has(x->def, LM_T_MOVE)))
    x = x->def->in[0];
  if (!lm_op_is(x, LM_OP_SELECT))
    return lm_const_of(x, out) && *out <= LM_NEVER;
  return hidden_score(x->def->in[1], out) || hidden_score(x->def->in[2], out);
}

static lm_value *count_along(lm_rewrite *r, lm_axis s) {
  lm_value *one = lm_emit_const(&r->b, lm_type_make(LM_INT, &s, 1), 1);
  return lm_emit_reduce(&r->b, LM_OP_SUM, one, &s, 1);
}

lm_value *lm_decompose_best(lm_rewrite *r, lm_op *op) {
  const lm_op *best = op->code == LM_OP_GATHER ? op->in[1]->def : NULL;
  double hidden;
  if (!best || best->code != LM_OP_TOP_K || best->in[0] != op->in[0])
    return NULL;
  lm_axis s = op->attr.axes[0];
  if (!r->b.m->axes[s].dyn || !hidden_score(op->in[0], &hidden))
    return NULL;
  lm_type to = op->out[0]->type;
  lm_value *values = lm_emit(&r->b, LM_OP_GATHER, op->in, 2, &op->attr, NULL);
  lm_value *rank = iota(r, best->attr.to[0], to);
  lm_value *there = lm_emit2(&r->b, LM_OP_LT, rank, count_along(r, s));
  lm_value *score = lm_emit_const(&r->b, lm_type_make((lm_dtype)to.dtype, NULL, 0), hidden);
  return lm_emit_select(&r->b, there, values, score);
}

// ---- rows

// The row-major index over the axes of the rows that x has, from the one over all of them.
static lm_value *own_index(lm_rewrite *r, const lm_op *op, lm_type own) {
  const lm_attr *a = &op->attr;
  int last = a->n_axes - 1;
  int n = 0;
  int64_t inner = 1;
  int64_t stride = 1;
  for (; lm_type_find(own, a->axes[last]) < 0; last--)
    inner *= lm_axis_size(r->b.m, a->axes[last]);
  for (int i = 0; i <= last; i++)
    n += lm_type_find(own, a->axes[i]) >= 0;
  lm_value *sum = NULL;
  lm_value *order = op->in[1];
  if (inner > 1)
    order = lm_emit2(&r->b, LM_OP_IDIV, order, number(r, inner));
  inner = 1;
  for (int i = last; n <= last && i >= 0; i--) {
    int64_t size = lm_axis_size(r->b.m, a->axes[i]);
    if (lm_type_find(own, a->axes[i]) >= 0) {
      lm_value *at = lm_emit2(&r->b, LM_OP_IDIV, order, number(r, inner));
      at = i ? lm_emit2(&r->b, LM_OP_MOD, at, number(r, size)) : at;
      at = lm_emit2(&r->b, LM_OP_MUL, at, number(r, stride));
      sum = sum ? lm_emit2(&r->b, LM_OP_ADD, sum, at) : at;
      stride *= size;
    }
    inner *= size;
  }
  return sum ? sum : order;
}

// One axis for the leading `n` axes of x.
static lm_value *merged(lm_rewrite *r, lm_value *x, int n, lm_axis rows) {
  lm_module *m = r->b.m;
  lm_attr a = {
      .n_axes = (uint8_t)n,
      .n_to = 1,
  };
  int64_t size = 1;
  for (int i = 0; i < n; i++) {
    a.axes[i] = x->type.axis[i];
    size *= lm_axis_size(m, a.axes[i]);
  }
  int dyn = lm_axes_extent(m, a.axes, n);
  lm_type except = with_axis(x->type, rows);
  a.to[0] = dyn ? lm_axis_add(m, m->axes[rows].name, size, dyn)
                : lm_axis_shared(m, m->axes[rows].name, size, except);
  return n == 1 ? x : lm_emit(&r->b, LM_OP_VIEW, &x, 1, &a, NULL);
}

// x, which was read by index, with 0 where the index is -1.
static lm_value *with_zeros(lm_rewrite *r, lm_value *x, lm_value *index) {
  lm_dtype t = (lm_dtype)x->type.dtype;
  lm_value *zero = lm_emit_const(&r->b, lm_type_make(t, NULL, 0), 0);
  lm_value *is_there = lm_emit2(&r->b, LM_OP_GE, index, number(r, 0));
  return lm_emit_select(&r->b, is_there, x, zero);
}

static lm_value *group_rows(lm_rewrite *r, lm_op *op) {
  lm_value *x = op->in[0];
  const lm_attr *a = &op->attr;
  lm_type own = {.dtype = x->type.dtype};
  for (int i = 0; i < a->n_axes; i++)
    if (lm_type_find(x->type, a->axes[i]) >= 0)
      own = with_axis(own, a->axes[i]);
  if (!own.rank)
    return with_zeros(r, lm_emit_expand(&r->b, x, op->out[0]->type), op->in[1]);
  lm_value *index = own_index(r, op, own);
  int n = own.rank;
  for (int i = 0; i < x->type.rank; i++)
    if (lm_type_find(own, x->type.axis[i]) < 0)
      own = with_axis(own, x->type.axis[i]);
  lm_value *table = merged(r, lm_emit_permute(&r->b, x, own.axis, own.rank), n, a->to[0]);
  lm_attr over = {.axes = {table->type.axis[0]}, .n_axes = 1};
  lm_value *rows = lm_emit(&r->b, LM_OP_GATHER, (lm_value *[]){table, index}, 2, &over, NULL);
  return with_zeros(r, rows, op->in[1]);
}

static lm_value *ungroup_rows(lm_rewrite *r, lm_op *op) {
  lm_attr over = {.axes = {op->attr.axes[0]}, .n_axes = 1};
  lm_value *in[] = {
      op->in[0],
      op->in[1],
  };
  return with_zeros(r, lm_emit(&r->b, LM_OP_GATHER, in, 2, &over, NULL), op->in[1]);
}

lm_value *lm_decompose_route(lm_rewrite *r, lm_op *op) {
  return op->code == LM_OP_TOP_K        ? top_k(r, op)
         : op->code == LM_OP_GROUP_ROWS ? group_rows(r, op)
                                        : ungroup_rows(r, op);
}
