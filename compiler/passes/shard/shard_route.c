// shard_route.c - routing among ranks: rows that are sorted by the expert that computes them.
//
// By points, where an axis of the mesh divides the data (b): each rank sorts its own rows.
//   before: %c = group_counts %id (b, t, k) -> (E)
//           %o = group_order %id, %c (b, t, k) -> (n)
//           %r = group_rows %x, %o, %i (b, t, k) -> (n)   %h = grouped_dot %r, %w, %c over(d)
//   after:  %c = group_counts %id (b@dp, t, k) -> (E)                                    (partial)
//           %o = group_order %id, %c (b@dp, t, k) -> (n@dp)
//           %r = group_rows %x, %o, %i (b@dp, t, k) -> (n@dp)   %h = grouped_dot %r, %w, %c over(d)
// The operations of routing read the counts of the rank's own ids, the value that is partial.
//
// By experts, where an axis of the mesh divides the matrices of `grouped_dot` along E: each rank
// sorts the rows of the experts that it has; those of others have no group.
//   after:  %own = select %inside, %id - rank * |E@tp|, -1
//           %c = group_counts %own (b, t, k) -> (E@tp)
//           %o = group_order %own, %c (b, t, k) -> (n.own@tp)
//           %r = group_rows %x, %o, %i (b, t, k) -> (n.own@tp)
//           %h = grouped_dot %r, %w, %c over(d)
// A rank may have all n rows, so its part of the axis n.own has the size of n, and the axis as many
// times as there are ranks. `ungroup_rows` gives 0 at the points of other experts: a partial value.
//
// Where rows are divided, their order is not that of one rank. Operations on each row and sums over
// rows are divided; others are errors (E919).
#include "compiler/passes/shard/shard.h"
#include "runtime/base/diag_code.h"

static lm_shard_value *of(const lm_shard *s, const lm_value *v) {
  return lm_shard_of(s, v);
}

static bool is_parts(const lm_shard *s, const lm_value *v, lm_axis along) {
  return of(s, v)->spread == LM_SPREAD_PARTS && of(s, v)->along == along;
}

// ---- which axes are those of rows and of experts

// What group_order does with the rows of an axis, in some function.
enum {
  BY_EXPERTS = 1,
  BY_POINTS = 2,
  WHOLE = 4
};

static bool divides_points(const lm_shard *s, const lm_op *op) {
  for (int i = 0; s->batch && i < op->attr.n_axes; i++)
    if (s->order[op->attr.axes[i]] && !lm_shard_is_heads(s, op->attr.axes[i]))
      return true;
  return false;
}

// The parameters from which the matrices w of the experts e are computed.
static void weights_mark(lm_shard *s, const lm_value *w, lm_axis e) {
  const lm_op *op = w->def;
  if (!op || lm_type_find(w->type, e) < 0 || op->code == LM_OP_LOOP)
    return;
  if (op->code == LM_OP_PARAM)
    s->expert_weights[lm_global_find(s->m, op->attr.sym) - s->m->globals] = 1;
  for (uint32_t i = 0; i < op->n_in; i++)
    weights_mark(s, op->in[i], e);
}

static void refuse_twice(lm_shard *s, lm_axis e) {
  const lm_mesh_axis *other = &s->m->mesh.axis[s->m->axes[e].mesh - 1];
  if (!s->failed)
    LM_REPORT(s->m->ctx, s->by->loc, E91B, other->name, s->by->name, s->m->axes[e].name);
  s->failed = true;
}

static void experts_find(lm_op *op, void *user) {
  lm_shard *s = user;
  lm_axis e = op->code == LM_OP_GROUPED_DOT ? op->in[2]->type.axis[0] : 0;
  if (!e || !s->order[e] || lm_shard_is_heads(s, e))
    return;
  for (int i = 0; i < op->in[1]->type.rank; i++) {
    uint32_t order = s->order[op->in[1]->type.axis[i]];
    if (order && order < s->order[e]) // the list prefers another axis of the matrix
      return;
  }
  if (s->m->axes[e].whole) {
    refuse_twice(s, e);
    return;
  }
  s->experts[e] = 1;
  weights_mark(s, op->in[1], e);
}

static void rows_find(lm_op *op, void *user) {
  lm_shard *s = user;
  if (op->code != LM_OP_GROUP_ORDER)
    return;
  lm_axis n = op->attr.to[0];
  bool by_experts = s->experts[op->in[1]->type.axis[0]] && !s->m->axes[n].dyn;
  s->rows[n] |= by_experts ? BY_EXPERTS : divides_points(s, op) ? BY_POINTS : WHOLE;
}

// The axis of which a rank's part has the size of n, divided by other axes of the mesh as n is.
static lm_axis all_rows(lm_shard *s, lm_axis *of, const char *name, lm_axis n) {
  const lm_axis_info a = s->m->axes[n];
  int64_t size = a.size * s->by->size;
  if (!of[n])
    of[n] = a.whole ? lm_axis_part(s->m, all_rows(s, of, name, a.whole), a.mesh)
                    : lm_axis_add(s->m, LM_SYM(s->m->ctx, name), size, 0);
  return of[n];
}

void lm_shard_route_find(lm_shard *s) {
  uint32_t n_axes = s->m->n_axes;
  for (lm_func *f = s->m->funcs; f; f = f->next)
    lm_region_walk(f->body, experts_find, s);
  for (lm_func *f = s->m->funcs; f; f = f->next)
    lm_region_walk(f->body, rows_find, s);
  for (lm_axis n = 1; n < n_axes; n++) {
    if (s->rows[n] == BY_EXPERTS) {
      all_rows(s, s->all_rows, "rows", n);
      all_rows(s, s->received, "received", n);
    } else if (s->rows[n] & WHOLE || s->rows[n] != BY_POINTS)
      s->rows[n] = 0;
    if (s->rows[n])
      s->order[n] = n_axes + n; // behind the axes of the list
  }
}

static bool by_experts(const lm_shard *s, lm_axis n) {
  return s->rows[n] == BY_EXPERTS;
}

lm_axis lm_shard_rows_of(const lm_op *op) {
  switch (op->code) {
  case LM_OP_GROUP_ORDER:
  case LM_OP_GROUP_ROWS: return op->attr.to[0];
  case LM_OP_UNGROUP_ROWS: return op->attr.axes[0];
  case LM_OP_GROUPED_DOT: return op->out[0]->type.axis[0];
  default: return 0;
  }
}

// ---- the choice

bool lm_shard_has_point(const lm_op *op, lm_axis a) {
  bool back = op->code == LM_OP_UNGROUP_ROWS;
  const lm_axis *points = back ? op->attr.to : op->attr.axes;
  int n = back ? op->attr.n_to : op->attr.n_axes;
  for (int i = 0; i < n; i++)
    if (points[i] == a)
      return op->code != LM_OP_GROUPED_DOT;
  return false;
}

// The operand that has the axes of the points.
static const lm_value *points_of(const lm_op *op) {
  return op->in[op->code == LM_OP_GROUP_ROWS ? 2 : op->code == LM_OP_UNGROUP_ROWS ? 1 : 0];
}

// True if the rows of op are divided: those that it sorts, by experts, or those that it reads.
static bool has_own_rows(const lm_shard *s, const lm_op *op) {
  lm_axis n = lm_shard_rows_of(op);
  switch (op->code) {
  case LM_OP_GROUP_ORDER: return by_experts(s, n);
  case LM_OP_GROUP_ROWS: return is_parts(s, op->in[1], n);
  case LM_OP_UNGROUP_ROWS: return is_parts(s, op->in[2], n);
  case LM_OP_GROUPED_DOT: return is_parts(s, op->in[0], n);
  default: return false;
  }
}

lm_axis lm_shard_route_experts(const lm_shard *s, const lm_op *op) {
  lm_axis n = lm_shard_rows_of(op);
  if (op->code == LM_OP_UNGROUP_ROWS && lm_shard_route_exchanges(s, op))
    return 0; // by points again
  return n && by_experts(s, n) && has_own_rows(s, op) ? n : 0;
}

bool lm_shard_route_exchanges(const lm_shard *s, const lm_op *op) {
  const lm_shard_value *points = of(s, points_of(op));
  bool moves = op->code != LM_OP_GROUPED_DOT && lm_shard_rows_of(op);
  return moves && s->batch && has_own_rows(s, op) && by_experts(s, lm_shard_rows_of(op)) &&
         points->spread == LM_SPREAD_PARTS && lm_shard_has_point(op, points->along);
}

bool lm_shard_route_divides(const lm_shard *s, const lm_op *op, lm_axis a) {
  lm_axis n = lm_shard_rows_of(op);
  if (lm_shard_has_point(op, a))
    return s->batch && is_parts(s, points_of(op), a) &&
           (!n || s->rows[n] == BY_POINTS || lm_shard_route_exchanges(s, op));
  if (op->code == LM_OP_GROUPED_DOT)
    return has_own_rows(s, op) ? a == n : a != n && a != op->in[2]->type.axis[0];
  return n && op->code != LM_OP_GROUP_ORDER && !has_own_rows(s, op) && a != n;
}

bool lm_shard_rows_divide(const lm_shard *s, const lm_op *op, lm_axis n) {
  bool over = lm_attr_has_axis(&op->attr, n);
  if (lm_op_info_of(op)->factor == LM_FACTOR_INDEX && over)
    return false; // by the number of a row
  return !by_experts(s, n) || (!over && lm_type_find(of(s, op->out[0])->type, n) >= 0);
}

lm_axis lm_shard_route_along(const lm_op *op, lm_axis a) {
  if (op->code == LM_OP_UNGROUP_ROWS || op->code == LM_OP_GROUP_INVERSE ||
      !lm_shard_has_point(op, a))
    return a;
  return op->code == LM_OP_GROUP_COUNTS ? 0 : op->attr.to[0];
}

// ---- the order of rows

static void refuse(lm_shard *s, lm_loc at, const char *what) {
  if (!s->failed)
    LM_REPORT(s->m->ctx, at, E919, s->by->name, what);
  s->failed = true;
}

void lm_shard_rows_refuse(lm_shard *s, const lm_op *user) {
  refuse(s, user->loc, lm_op_info_of(user)->name);
}

static bool same_order(const lm_value *x, const lm_value *y) {
  return x == y || (x->def->in[0] == y->def->in[0] && x->def->in[1] == y->def->in[1]);
}

// The group_order that has sorted the rows of the operands, which is that of the result.
void lm_shard_rows_sorted(lm_shard *s, const lm_op *op) {
  const lm_value *order = op->code == LM_OP_GROUP_ORDER ? op->out[0] : NULL;
  bool fits = true;
  for (uint32_t i = 0; i < op->n_in && !op->body; i++) {
    const lm_value *x = of(s, op->in[i])->sorted;
    fits &= !x || !order || same_order(x, order);
    order = order ? order : x;
  }
  if (op->code == LM_OP_GROUPED_DOT && has_own_rows(s, op))
    fits &= order && order->def->in[1] == op->in[2];
  if (!fits)
    refuse(s, op->loc, "an operation of rows that are sorted in two ways");
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_shard_value *v = of(s, op->out[i]);
    v->sorted = v->spread == LM_SPREAD_PARTS && s->rows[v->along] ? order : NULL;
  }
}
