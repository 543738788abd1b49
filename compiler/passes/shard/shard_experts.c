// shard_experts.c - the operations of routing on one rank; shard_route.c has chosen how they are
// divided, and shows the IR before and after.
#include "compiler/passes/shard/shard.h"
#include <string.h>

static lm_shard_value *of(const lm_shard *s, const lm_value *v) {
  return lm_shard_of(s, v);
}

// ---- operations, by points

static void axis_replace(lm_axis *axes, int n, lm_axis a, lm_axis part) {
  for (int i = 0; i < n; i++)
    if (axes[i] == a)
      axes[i] = part;
}

static void attr_replace(lm_op *op, lm_axis a, lm_axis part) {
  axis_replace(op->attr.axes, op->attr.n_axes, a, part);
  axis_replace(op->attr.to, op->attr.n_to, a, part);
}

// The counts of the rank's own ids: the value whose sum over the ranks is `counts`.
static void need_counts(lm_shard *s, lm_op *op, uint32_t i) {
  op->in[i] = of(s, op->in[i])->now;
}

static void need_factor(lm_shard *s, lm_op *op, uint32_t i, lm_axis a) {
  bool has = lm_type_find(of(s, op->in[i])->type, a) >= 0;
  lm_shard_need(s, op, i, has ? LM_FORM_PARTS : LM_FORM_TERMS, has ? a : 0);
}

// The part of the rows n whose points a rank has.
static lm_axis points_part(const lm_shard *s, lm_axis n) {
  return lm_axis_part(s->m, n, s->mesh);
}

static void by_points(lm_shard *s, lm_op *op, lm_axis a) {
  lm_axis n = lm_shard_rows_of(op);
  lm_axis along = lm_shard_route_along(op, a);
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
  attr_replace(op, a, lm_shard_part(s, a));
  if (own && n)
    attr_replace(op, n, points_part(s, n));
  if (along)
    axis_replace(op->out[0]->type.axis, op->out[0]->type.rank, along,
                 own && along == n ? points_part(s, n) : lm_shard_part(s, along));
}

// ---- the rows of a rank's experts

// Positions the builder in the region of op.
static void enter(lm_shard *s, const lm_op *op, lm_op *before) {
  s->b = (lm_builder){
      .m = s->m,
      .at = op->parent,
      .before = before,
      .loc = op->loc,
  };
}

static lm_value *number(lm_shard *s, int64_t v) {
  return lm_emit_const(&s->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

static lm_attr points_attr(const lm_axis *points, int n) {
  lm_attr a = {.n_axes = (uint8_t)n};
  memcpy(a.axes, points, (size_t)n * sizeof *points);
  return a;
}

// code %x, %y, %z points -> to
static lm_value *route_emit(lm_shard *s, lm_opcode code, lm_value *x, lm_value *y, lm_value *z,
                            lm_attr points, lm_axis to) {
  lm_value *in[] = {
      x,
      y,
      z,
  };
  if (to)
    points.to[points.n_to++] = to;
  return lm_emit(&s->b, code, in, z ? 3 : y ? 2 : 1, &points, NULL);
}

static lm_value *exchange_emit(lm_shard *s, lm_value *x, lm_value *send, lm_value *receive,
                               lm_axis from, lm_axis to) {
  lm_attr a = {
      .mesh = (uint8_t)s->mesh,
      .axes = {from},
      .n_axes = 1,
      .to = {to},
      .n_to = 1,
  };
  lm_value *in[] = {
      x,
      send,
      receive,
  };
  return lm_emit(&s->b, LM_OP_EXCHANGE_ROWS, in, LM_COUNT(in), &a, NULL);
}

// The ids of e among the rank's own experts; of the others -1: they have no group.
static lm_value *own_ids(lm_shard *s, lm_value *id, lm_axis e) {
  lm_builder *b = &s->b;
  lm_value *own = number(s, lm_axis_size(s->m, lm_shard_part(s, e)));
  lm_value *i = lm_emit2(b, LM_OP_SUB, id, lm_shard_first(s, e));
  lm_value *low = lm_emit2(b, LM_OP_GE, i, number(s, 0));
  lm_value *inside = lm_emit2(b, LM_OP_AND, low, lm_emit2(b, LM_OP_LT, i, own));
  return lm_emit_select(b, inside, i, number(s, -1));
}

// Sorts points by the experts e that the rank has, whose rows are a part of n.
static lm_shard_own *own_sort(lm_shard *s, lm_value *all_ids, lm_attr points, lm_axis e,
                              lm_axis n) {
  lm_axis part = lm_shard_part(s, e);
  lm_axis rows = lm_shard_part(s, n);
  lm_shard_own *own = LM_NEW(s->m->arena, lm_shard_own);
  lm_value *id = own_ids(s, all_ids, e);
  lm_value *counts = route_emit(s, LM_OP_GROUP_COUNTS, id, NULL, NULL, points, part);
  own->order = route_emit(s, LM_OP_GROUP_ORDER, id, counts, NULL, points, rows);
  own->inverse = route_emit(s, LM_OP_GROUP_INVERSE, id, counts, NULL, points, 0);
  own->counts = counts;
  return own;
}

// The rows of each rank's experts, by the counts of all experts.
static lm_value *rows_by_rank(lm_shard *s, lm_value *counts) {
  lm_module *m = s->m;
  lm_axis e = counts->type.axis[0];
  lm_axis peer = lm_axis_shared(m, LM_SYM(m->ctx, "peer"), s->by->size, counts->type);
  lm_axis each =
      lm_axis_shared(m, LM_SYM(m->ctx, "each"), lm_axis_size(m, e) / s->by->size, counts->type);
  lm_value *both = lm_emit_split(&s->b, counts, e, peer, each);
  return lm_emit_reduce(&s->b, LM_OP_SUM, both, &each, 1);
}

// group_order where ranks have different points: rows are sorted by expert, and so by rank, before
// they are exchanged, and by the rank's experts after it. The exchange clears the rows that no rank
// has sent, so ids are sent plus one: those rows get -1.
static lm_shard_own *exchange_sort(lm_shard *s, lm_op *op, lm_axis n) {
  lm_axis e = op->in[1]->type.axis[0];
  lm_axis received = points_part(s, s->received[n]);
  by_points(s, op, of(s, op->in[0])->along);
  enter(s, op, op->next);
  lm_attr points = points_attr(op->attr.axes, op->attr.n_axes);
  lm_value *id = op->in[0];
  lm_value *counts = op->in[1];
  lm_value *inverse = route_emit(s, LM_OP_GROUP_INVERSE, id, counts, NULL, points, 0);
  lm_value *ids =
      route_emit(s, LM_OP_GROUP_ROWS, id, op->out[0], inverse, points, points_part(s, n));
  lm_value *send = rows_by_rank(s, counts);
  lm_attr over = {.mesh = (uint8_t)s->mesh};
  lm_value *receive = lm_emit(&s->b, LM_OP_EXCHANGE_COUNTS, &send, 1, &over, NULL);
  ids = lm_emit2(&s->b, LM_OP_ADD, ids, number(s, 1));
  ids = exchange_emit(s, ids, send, receive, points_part(s, n), received);
  ids = lm_emit2(&s->b, LM_OP_SUB, ids, number(s, 1));
  lm_shard_own *own = own_sort(s, ids, points_attr(&received, 1), e, n);
  own->send = send;
  own->receive = receive;
  return own;
}

static void order_divide(lm_shard *s, lm_op *op, lm_axis n) {
  lm_shard_value *order = of(s, op->out[0]);
  if (lm_shard_route_exchanges(s, op)) {
    order->own = exchange_sort(s, op, n);
    return;
  }
  lm_axis e = op->in[1]->type.axis[0];
  lm_shard_need(s, op, 0, LM_FORM_WHOLE, 0);
  enter(s, op, op);
  order->own = own_sort(s, op->in[0], points_attr(op->attr.axes, op->attr.n_axes), e, n);
  order->now = order->own->order;
}

// ---- operations, by experts

static void replace(lm_shard *s, lm_op *op, lm_value *now) {
  now->name = op->out[0]->name;
  of(s, op->out[0])->now = now;
}

static void rows_group(lm_shard *s, lm_op *op, const lm_shard_own *own, lm_axis n) {
  if (!own->send) {
    lm_shard_need(s, op, 0, LM_FORM_TERMS, 0);
    op->in[1] = own->order;
    op->in[2] = own->inverse;
    op->attr.to[0] = lm_shard_part(s, n);
    op->out[0]->type = lm_shard_divided(s, op->out[0]->type, n);
    return;
  }
  lm_axis received = points_part(s, s->received[n]);
  by_points(s, op, of(s, op->in[2])->along);
  enter(s, op, op->next);
  lm_value *x = exchange_emit(s, op->out[0], own->send, own->receive, points_part(s, n), received);
  replace(s, op,
          route_emit(s, LM_OP_GROUP_ROWS, x, own->order, own->inverse, points_attr(&received, 1),
                     lm_shard_part(s, n)));
}

static void rows_ungroup(lm_shard *s, lm_op *op, const lm_shard_own *own, lm_axis n) {
  if (own->send)
    by_points(s, op, of(s, op->in[1])->along);
  else
    lm_shard_need(s, op, 0, LM_FORM_PARTS, n);
  enter(s, op, op);
  if (!own->send) {
    op->in[1] = own->inverse;
    op->in[2] = own->order;
    op->attr.axes[0] = lm_shard_part(s, n);
    return;
  }
  lm_axis received = points_part(s, s->received[n]);
  lm_attr back = points_attr((lm_axis[]){lm_shard_part(s, n)}, 1);
  lm_value *y =
      route_emit(s, LM_OP_UNGROUP_ROWS, op->in[0], own->inverse, own->order, back, received);
  op->in[0] = exchange_emit(s, y, own->receive, own->send, received, points_part(s, n));
}

static void dot_divide(lm_shard *s, lm_op *op, const lm_shard_own *own, lm_axis n) {
  lm_shard_need(s, op, 0, LM_FORM_PARTS, n);
  lm_shard_need(s, op, 1, LM_FORM_PARTS, op->in[2]->type.axis[0]);
  op->in[2] = own->counts;
  op->out[0]->type = lm_shard_divided(s, op->out[0]->type, n);
}

static void by_experts(lm_shard *s, lm_op *op, lm_axis n) {
  const lm_value *order = op->code == LM_OP_GROUP_ROWS     ? op->in[1]
                          : op->code == LM_OP_UNGROUP_ROWS ? op->in[2]
                                                           : of(s, op->in[0])->sorted;
  const lm_shard_own *own = order ? of(s, order)->own : NULL;
  if (!own)
    return; // an error was reported
  if (op->code == LM_OP_GROUP_ROWS)
    rows_group(s, op, own, n);
  else if (op->code == LM_OP_UNGROUP_ROWS)
    rows_ungroup(s, op, own, n);
  else
    dot_divide(s, op, own, n);
}

void lm_shard_route(lm_shard *s, lm_op *op, lm_axis factor) {
  lm_axis n = lm_shard_route_experts(s, op);
  if (!n && op->code == LM_OP_UNGROUP_ROWS && lm_shard_route_exchanges(s, op))
    n = lm_shard_rows_of(op);
  if (!n)
    by_points(s, op, factor);
  else if (op->code == LM_OP_GROUP_ORDER)
    order_divide(s, op, n);
  else
    by_experts(s, op, n);
}
