// shard_experts.c - the operations of routing on one rank; shard_route.c has chosen how they are
// divided, and shows the IR before and after.
#include "compiler/passes/shard.h"
#include <string.h>

static lm_shard_value *of(const lm_shard *s, const lm_value *v) {
  return lm_shard_of(s, v);
}

// ---- operations, by points

static void axis_replace(const lm_shard *s, lm_axis *axes, int n, lm_axis a) {
  for (int i = 0; a && i < n; i++)
    if (axes[i] == a)
      axes[i] = lm_shard_part(s, a);
}

// The counts of the rank's own ids: the value whose sum over the ranks is `counts`.
static void need_counts(lm_shard *s, lm_op *op, uint32_t i) {
  op->in[i] = of(s, op->in[i])->now;
}

static void need_factor(lm_shard *s, lm_op *op, uint32_t i, lm_axis a) {
  bool has = lm_type_find(of(s, op->in[i])->type, a) >= 0;
  lm_shard_need(s, op, i, has ? LM_FORM_PARTS : LM_FORM_TERMS, has ? a : 0);
}

static void by_points(lm_shard *s, lm_op *op, lm_axis a) {
  lm_axis n = lm_shard_rows_of(op);
  lm_axis along = lm_shard_along(s, op, a, 0);
  bool own = op->code == LM_OP_GROUPED_DOT ? a == n : lm_shard_has_point(op, a);
  bool sorts = op->code == LM_OP_GROUP_ORDER || op->code == LM_OP_GROUP_INVERSE;
  bool moves = op->code == LM_OP_GROUP_ROWS || op->code == LM_OP_UNGROUP_ROWS;
  uint32_t by_rows = op->code == LM_OP_UNGROUP_ROWS ? 0 : 3;
  uint32_t order = op->code == LM_OP_UNGROUP_ROWS ? 2 : 1;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (own && ((sorts && i == 1) || (op->code == LM_OP_GROUPED_DOT && i == 2)))
      need_counts(s, op, i);
    else if (own && moves && (i == order || i == by_rows))
      need_factor(s, op, i, n);
    else
      need_factor(s, op, i, a);
  axis_replace(s, op->attr.axes, op->attr.n_axes, a);
  axis_replace(s, op->attr.to, op->attr.n_to, a);
  if (own && n) {
    axis_replace(s, op->attr.axes, op->attr.n_axes, n);
    axis_replace(s, op->attr.to, op->attr.n_to, n);
  }
  op->out[0]->type = lm_shard_divided(s, op->out[0]->type, along);
}

// ---- operations, by experts

static lm_value *number(lm_shard *s, int64_t v) {
  return lm_emit_const(&s->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

// The ids among the rank's own experts; of the others their number.
static lm_value *own_ids(lm_shard *s, lm_value *id, lm_axis e) {
  lm_builder *b = &s->b;
  lm_value *own = number(s, lm_axis_size(s->m, lm_shard_part(s, e)));
  lm_value *i = lm_emit2(b, LM_OP_SUB, id, lm_shard_first(s, e));
  lm_value *low = lm_emit2(b, LM_OP_GE, i, number(s, 0));
  lm_value *inside = lm_emit2(b, LM_OP_AND, low, lm_emit2(b, LM_OP_LT, i, own));
  return lm_emit_select(b, inside, i, own);
}

static lm_value *route_emit(lm_shard *s, lm_opcode code, lm_value *x, lm_value *y, lm_value *z,
                            lm_attr a, lm_axis to) {
  lm_value *in[] = {
      x,
      y,
      z,
  };
  if (to)
    a.to[a.n_to++] = to;
  return lm_emit(&s->b, code, in, z ? 3 : y ? 2 : 1, &a, NULL);
}

// Sorts the rows of the rank's own experts; `op` is the group_order of all rows.
static void sort_own(lm_shard *s, lm_op *op) {
  lm_axis n = op->attr.to[0];
  lm_axis e = op->in[1]->type.axis[0];
  lm_axis part = lm_shard_part(s, e);
  int64_t size = lm_axis_size(s->m, part);
  lm_axis with_others = lm_axis_shared(s->m, LM_SYM(s->m->ctx, "own"), size + 1, (lm_type){0});
  lm_shard_own *own = LM_NEW(s->m->arena, lm_shard_own);
  lm_shard_need(s, op, 0, LM_FORM_WHOLE, 0);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  lm_attr points = {.n_axes = op->attr.n_axes};
  memcpy(points.axes, op->attr.axes, sizeof points.axes);
  lm_value *id = own_ids(s, op->in[0], e);
  lm_value *counts = route_emit(s, LM_OP_GROUP_COUNTS, id, NULL, NULL, points, with_others);
  lm_value *inverse = route_emit(s, LM_OP_GROUP_INVERSE, id, counts, NULL, points, 0);
  op->in[0] = id;
  op->in[1] = counts;
  op->attr.to[0] = lm_shard_part(s, n);
  op->out[0]->type = lm_shard_divided(s, op->out[0]->type, n);
  s->b.before = op->next;
  lm_attr first = {.axes = {with_others}, .n_axes = 1, .to = {part}, .n_to = 1, .imm = {0, 1}};
  first.n_imm = 2;
  lm_value *sorted =
      route_emit(s, LM_OP_GROUP_ROWS, id, op->out[0], inverse, points, lm_shard_part(s, n));
  *own = (lm_shard_own){
      .inverse = inverse,
      .counts = lm_emit(&s->b, LM_OP_SLICE, &counts, 1, &first, NULL),
      .valid = lm_emit2(&s->b, LM_OP_LT, sorted, number(s, size)),
  };
  of(s, op->out[0])->own = own;
}

// x, with zeros in the rows behind those of the rank's own experts.
static lm_value *cleared(lm_shard *s, const lm_shard_own *own, lm_value *x) {
  lm_value *zero = lm_emit_const(&s->b, lm_type_make((lm_dtype)x->type.dtype, NULL, 0), 0);
  return x->type.dtype == LM_BOOL ? x : lm_emit_select(&s->b, own->valid, x, zero);
}

static void by_experts_divide(lm_shard *s, lm_op *op, lm_axis n) {
  if (op->code == LM_OP_GROUP_ORDER) {
    sort_own(s, op);
    return;
  }
  bool back = op->code == LM_OP_UNGROUP_ROWS;
  const lm_value *order = op->code == LM_OP_GROUP_ROWS ? op->in[1]
                          : back                       ? op->in[2]
                                                       : of(s, op->in[0])->sorted;
  const lm_shard_own *own = order ? of(s, order)->own : NULL;
  if (!own)
    return; // an error was reported
  lm_axis e = op->code == LM_OP_GROUPED_DOT ? op->in[2]->type.axis[0] : 0;
  if (op->code == LM_OP_GROUP_ROWS)
    lm_shard_need(s, op, 0, LM_FORM_TERMS, 0);
  else
    lm_shard_need(s, op, 0, LM_FORM_PARTS, n);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  if (op->code != LM_OP_GROUP_ROWS)
    op->in[0] = cleared(s, own, op->in[0]);
  if (e) {
    lm_shard_need(s, op, 1, LM_FORM_PARTS, e);
    op->in[2] = own->counts;
  } else {
    op->in[back ? 2 : 1] = of(s, order)->now;
    op->in[back ? 1 : 2] = own->inverse;
    (back ? op->attr.axes : op->attr.to)[0] = lm_shard_part(s, n);
  }
  op->out[0]->type = lm_shard_divided(s, op->out[0]->type, back ? 0 : n);
  if (e) {
    s->b = (lm_builder){s->m, op->parent, op->next, op->loc, 0};
    lm_value *y = cleared(s, own, op->out[0]);
    y->name = op->out[0]->name;
    of(s, op->out[0])->now = y;
  }
}

void lm_shard_route(lm_shard *s, lm_op *op, lm_axis factor) {
  if (lm_shard_route_experts(s, op))
    by_experts_divide(s, op, factor);
  else
    by_points(s, op, factor);
}
