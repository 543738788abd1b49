// shard_choice.c - how each value is spread over the ranks along one axis of the mesh.
//
// Forwards: a value that an operation computes from divided operands, or that has a gradient and an
// axis of the list, is divided. An operation with several axes of the list is divided along the one
// along which most operands are divided already, the first of the list among equals; the other
// operands are gathered. Where positions are divided and the list has an axis of heads, `history`
// exchanges the parts of the positions for parts of the heads instead of gathering the positions,
// what uses it is divided by heads, and the first sum over the heads exchanges them back. What sums
// over a divided axis is partial, and stays so where partial values are added or multiplied by
// numbers that have no gradient.
//
// Backwards: a whole value is computed in one of two ways, which differ in the cotangent: whole on
// every rank, or terms of a sum (compiler/ops/mesh_vjp.c). A value that is computed from parameters
// and gathered parts alone has terms if all its uses are divided operations: the gradients of its
// parameters are then partial, and are added once a step instead of by a `fan` in each micro-batch.
#include "compiler/analysis/activity.h"
#include "compiler/ir/scan.h"
#include "compiler/passes/shard/shard.h"
#include <string.h>

// True for axes along which values are divided that are computed from parts only.
static bool follows(const lm_shard *s, lm_axis a) {
  return lm_shard_is_heads(s, a) || s->experts[a] || s->rows[a];
}

lm_axis lm_shard_axis(const lm_shard *s, lm_type t) {
  lm_axis best = 0;
  for (int i = 0; i < t.rank; i++) {
    uint32_t k = follows(s, t.axis[i]) ? 0 : s->order[t.axis[i]];
    if (k && (!best || k < s->order[best]))
      best = t.axis[i];
  }
  return best;
}

lm_axis lm_shard_axis_of_global(const lm_shard *s, const lm_global *g, lm_type t) {
  const lm_global *of = g->of ? lm_global_find(s->m, g->of) : g;
  lm_axis best = lm_shard_axis(s, t);
  for (int i = 0; i < t.rank && s->expert_weights[of - s->m->globals]; i++) {
    lm_axis a = t.axis[i];
    if (s->experts[a] && (!best || s->order[a] < s->order[best]))
      best = a;
  }
  return best;
}

static lm_shard_value *of(const lm_shard *s, const lm_value *v) {
  return lm_shard_of(s, v);
}
static bool parts(const lm_shard *s, const lm_value *v) {
  return of(s, v)->spread == LM_SPREAD_PARTS;
}
static bool partial(const lm_shard *s, const lm_value *v) {
  return of(s, v)->spread == LM_SPREAD_PARTIAL;
}

// ---- the axis of an operation

static int index_in(const lm_axis *axes, int n, lm_axis a) {
  for (int i = 0; i < n; i++)
    if (axes[i] == a)
      return i;
  return -1;
}

// The axis that a becomes, where op moves elements; 0 if parts of a do not become parts.
static lm_axis moved(const lm_shard *s, const lm_op *op, lm_axis a) {
  const lm_attr *at = &op->attr;
  int i = index_in(at->axes, at->n_axes, a);
  if (i < 0)
    return index_in(at->to, at->n_to, a) < 0 ? a : 0;
  if (op->code == LM_OP_VIEW && (i || !at->n_to))
    return 0;
  return s->order[at->to[i]] ? at->to[i] : 0;
}

// The positions along a are computed independently of each other, and none by its index.
static bool scan_divides(const lm_op *op, lm_axis a) {
  if (lm_type_find(lm_scan_parallel(op), a) < 0)
    return false;
  for (const lm_op *o = op->body->first; o; o = o->next) {
    bool by_index = o->code == LM_OP_IOTA || o->code == LM_OP_RNG;
    if (by_index && lm_type_find(o->out[0]->type, a) >= 0)
      return false;
  }
  return true;
}

static bool divides(const lm_shard *s, const lm_op *op, lm_axis a) {
  const lm_attr *at = &op->attr;
  bool routes = lm_op_info_of(op)->factor == LM_FACTOR_ROUTE;
  if (lm_shard_is_heads(s, a) && index_in(at->axes, at->n_axes, a) >= 0)
    return false;
  if (s->rows[a] && !routes && !lm_shard_rows_divide(s, op, a))
    return false;
  switch (lm_op_info_of(op)->factor) {
  case LM_FACTOR_MAP:
  case LM_FACTOR_SUM:
  case LM_FACTOR_MAX:
  case LM_FACTOR_INDEX:
  case LM_FACTOR_ROWS: return true;
  case LM_FACTOR_MOVE: return moved(s, op, a) != 0;
  case LM_FACTOR_SCAN: return scan_divides(op, a);
  case LM_FACTOR_ROUTE: return lm_shard_route_divides(s, op, a);
  case LM_FACTOR_WHOLE:
    if (op->code == LM_OP_AT && a == of(s, op->in[0])->type.axis[0])
      return false;
    return op->code != LM_OP_IOTA && index_in(at->axes, at->n_axes, a) < 0 &&
           index_in(at->to, at->n_to, a) < 0;
  default: return false;
  }
}

typedef struct choice {
  lm_axis best;
  int most;
} choice;

// `history` exchanges parts of the positions for parts of the heads; other operations follow.
static bool begins_heads(const lm_shard *s, const lm_op *op) {
  return op->code == LM_OP_HISTORY && parts(s, op->in[0]) &&
         of(s, op->in[0])->along == op->attr.axes[0];
}

// `count`: the number of operands that are divided along a
static void consider(const lm_shard *s, const lm_op *op, lm_axis a, choice *c) {
  int count = 0;
  if (!s->order[a] || !divides(s, op, a))
    return;
  for (uint32_t i = 0; i < op->n_in; i++)
    count += parts(s, op->in[i]) && of(s, op->in[i])->along == a;
  bool heads = lm_shard_is_heads(s, a);
  if (!count && follows(s, a) && !(heads && begins_heads(s, op)))
    return;
  if (s->rows[c->best] || s->rows[a]) { // rows that are sorted by expert cannot be gathered
    *c = s->rows[a] ? (choice){a, count} : *c;
    return;
  }
  bool first = s->order[a] < s->order[c->best];
  if (!c->best || count > c->most || (count == c->most && (s->positions ? heads : first)))
    *c = (choice){a, count};
}

static bool gives_gradient(const lm_shard *s, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    if (of(s, op->out[i])->active)
      return true;
  return false;
}

lm_axis lm_shard_factor(const lm_shard *s, const lm_op *op) {
  choice c = {0};
  if (lm_op_info_of(op)->factor == LM_FACTOR_ROUTE && lm_shard_route_experts(s, op))
    return lm_shard_route_experts(s, op);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type t = of(s, op->in[i])->type;
    for (int k = 0; k < t.rank; k++)
      consider(s, op, t.axis[k], &c);
  }
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_type t = of(s, op->out[i])->type;
    for (int k = 0; k < t.rank; k++)
      consider(s, op, t.axis[k], &c);
  }
  bool made = lm_op_info_of(op)->factor == LM_FACTOR_ROWS;
  return c.most || made || gives_gradient(s, op) ? c.best : 0;
}

lm_axis lm_shard_along(const lm_shard *s, const lm_op *op, lm_axis factor, uint32_t i) {
  lm_axis a = factor;
  if (lm_op_info_of(op)->factor == LM_FACTOR_MOVE)
    a = moved(s, op, factor);
  if (lm_op_info_of(op)->factor == LM_FACTOR_ROUTE)
    a = lm_shard_route_along(op, factor);
  return a && lm_type_find(of(s, op->out[i])->type, a) >= 0 ? a : 0;
}

// ---- partial values

static bool is_number(const lm_shard *s, const lm_value *v) {
  return of(s, v)->spread == LM_SPREAD_WHOLE && !of(s, v)->active;
}
static bool is_zero(const lm_value *v) {
  return v->def && v->def->code == LM_OP_CONST && v->def->attr.num == 0;
}

static bool any_parts(const lm_shard *s, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (parts(s, op->in[i]))
      return true;
  return false;
}

// A multiplication whose result is only summed, by a partial operand with as many elements: the sum
// has fewer elements to reduce.
static bool is_summed(const lm_shard *s, const lm_op *op) {
  const lm_shard_value *out = of(s, op->out[0]);
  bool sums = out->user && out->user->code == LM_OP_SUM && out->user->attr.n_axes;
  if (op->code != LM_OP_MUL || !sums || partial(s, op->in[0]) == partial(s, op->in[1]))
    return false;
  const lm_value *x = op->in[partial(s, op->in[0]) ? 0 : 1];
  return of(s, x)->type.rank == out->type.rank;
}

// The counts of the rows of each expert, as a float that is added to a state.
static bool is_added_count(const lm_shard *s, const lm_op *op) {
  const lm_op *user = of(s, op->out[0])->user;
  return user && user->code == LM_OP_ACCUM && partial(s, op->in[0]) &&
         !lm_dtype_is_float(of(s, op->in[0])->type.dtype);
}

bool lm_shard_keeps_partial(const lm_shard *s, const lm_op *op) {
  lm_value **in = op->in;
  if (op->code == LM_OP_MUL && is_summed(s, op))
    return true;
  if (any_parts(s, op))
    return false;
  switch (op->code) {
  case LM_OP_ADD:
  case LM_OP_SUB: return partial(s, in[0]) && partial(s, in[1]);
  case LM_OP_NEG:
  case LM_OP_SUM:
  case LM_OP_GROUP_ROWS:
  case LM_OP_UNGROUP_ROWS:
  case LM_OP_EXCHANGE_ROWS:
  case LM_OP_PERMUTE: return partial(s, in[0]);
  case LM_OP_MUL:
    return (partial(s, in[0]) && is_number(s, in[1])) || (partial(s, in[1]) && is_number(s, in[0]));
  case LM_OP_DIV: return partial(s, in[0]) && is_number(s, in[1]);
  case LM_OP_CAST: return is_added_count(s, op);
  case LM_OP_SELECT:
    return is_number(s, in[0]) && (partial(s, in[1]) || partial(s, in[2])) &&
           (partial(s, in[1]) || is_zero(in[1])) && (partial(s, in[2]) || is_zero(in[2]));
  default: return false;
  }
}

bool lm_shard_parts_result(const lm_shard *s, const lm_op *op) {
  const lm_shard_value *r = of(s, op->out[0]);
  return op->n_out == 1 && r->active && lm_shard_axis(s, r->type);
}

bool lm_shard_returns_partial(const lm_shard *s, uint32_t i) {
  lm_func_id id = s->f->key.id;
  bool loss = id == LM_FUNC_LOSS || id == LM_FUNC_EVAL;
  const lm_value *v = s->f->body->last->in[i];
  return s->batch && loss && !v->type.rank && lm_dtype_is_float(v->type.dtype);
}

// ---- forwards: the spread of each value

// along: 0 for a whole value
static void spread_along(lm_shard_value *v, lm_axis along) {
  v->spread = along ? LM_SPREAD_PARTS : LM_SPREAD_WHOLE;
  v->along = along;
}

static void spread_region(lm_shard *s, const lm_region *r);

// The results of a pipeline are divided by rows.
static void spread_pipeline(lm_shard *s, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    spread_along(of(s, op->out[i]), lm_shard_repetition_of(s, s->f)->rows);
}

static void spread_loop(lm_shard *s, const lm_op *op) {
  const lm_op *yield = op->body->last;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *init = of(s, op->in[i]);
    bool is_parts = init->spread == LM_SPREAD_PARTS;
    lm_axis along = is_parts ? init->along : lm_shard_axis(s, init->type);
    spread_along(of(s, op->body->args[i + 1]), along);
    spread_along(of(s, op->out[i]), along);
  }
  spread_region(s, op->body);
  for (uint32_t i = op->n_in; i < op->n_out; i++) {
    const lm_shard_value *y = of(s, yield->in[i]);
    if (y->spread == LM_SPREAD_PARTS)
      spread_along(of(s, op->out[i]), y->along);
  }
}

static void spread_op(lm_shard *s, const lm_op *op) {
  if (op->code == LM_OP_LOOP) {
    (lm_shard_is_pipeline(s, op) ? spread_pipeline : spread_loop)(s, op);
    return;
  }
  if (!op->n_out)
    return;
  lm_shard_value *out = of(s, op->out[0]);
  lm_factor kind = lm_op_info_of(op)->factor;
  if (kind == LM_FACTOR_STATE) {
    const lm_global *g = lm_global_find(s->m, op->attr.sym);
    spread_along(out, lm_shard_axis_of_global(s, g, out->type));
    return;
  }
  if (lm_shard_keeps_partial(s, op)) {
    out->spread = LM_SPREAD_PARTIAL;
    return;
  }
  lm_axis factor = lm_shard_factor(s, op);
  lm_axis along = factor ? lm_shard_along(s, op, factor, 0) : 0;
  for (uint32_t i = 1; i < op->n_out && along; i++)
    spread_along(of(s, op->out[i]), lm_shard_along(s, op, factor, i));
  if (along)
    spread_along(out, along);
  else if (factor && kind != LM_FACTOR_MAX)
    out->spread = LM_SPREAD_PARTIAL;
  else if (!factor && lm_shard_parts_result(s, op))
    spread_along(out, lm_shard_axis(s, out->type));
}

static void spread_region(lm_shard *s, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    spread_op(s, op);
    lm_shard_rows_sorted(s, op);
  }
}

// ---- backwards: the cotangents of whole values

static bool computed_whole(const lm_shard *s, const lm_op *op) {
  return op->code != LM_OP_LOOP && !lm_shard_keeps_partial(s, op) && !lm_shard_factor(s, op);
}

// Only @loss is differentiated: values of other functions have no cotangent.
static bool is_movable(const lm_shard *s, const lm_op *op) {
  if (s->f->key.id != LM_FUNC_LOSS)
    return false;
  if (op->code == LM_OP_PARAM)
    return !s->whole_params[lm_global_find(s->m, op->attr.sym) - s->m->globals];
  if (op->n_out != 1 || !computed_whole(s, op))
    return false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *x = of(s, op->in[i]);
    bool gathered = x->spread == LM_SPREAD_PARTS;
    if (x->active && !x->movable && !gathered)
      return false;
  }
  return true;
}

static void movable_region(lm_shard *s, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->body && !lm_shard_is_pipeline(s, op))
      movable_region(s, op->body);
    for (uint32_t i = 0; i < op->n_out; i++) {
      lm_shard_value *v = of(s, op->out[i]);
      v->whole_use = false;
      v->movable = v->active && v->spread == LM_SPREAD_WHOLE && is_movable(s, op);
    }
  }
}

static bool parted_by_heads(const lm_shard *s, const lm_op *op, const lm_value *x) {
  lm_axis factor = lm_shard_factor(s, op);
  return lm_shard_is_heads(s, factor) && of(s, x)->spread == LM_SPREAD_WHOLE &&
         lm_type_find(of(s, x)->type, factor) >= 0;
}

// True if op needs the whole cotangent of its whole operand i.
static bool needs_whole(const lm_shard *s, const lm_op *op, uint32_t i) {
  if (op->code == LM_OP_RETURN)
    return !lm_shard_returns_partial(s, i);
  if (op->code == LM_OP_LOOP || op->code == LM_OP_YIELD)
    return !lm_shard_is_pipeline(s, op);
  if (!op->n_out)
    return false;
  if (!computed_whole(s, op)) // a part of it, by heads, is that of a whole value
    return !lm_shard_keeps_partial(s, op) && parted_by_heads(s, op, op->in[i]);
  const lm_shard_value *out = of(s, op->out[0]);
  return out->active && !(out->movable && !out->whole_use);
}

static void uses_region(lm_shard *s, const lm_region *r) {
  for (const lm_op *op = r->last; op; op = op->prev) {
    if (op->body && !lm_shard_is_pipeline(s, op))
      uses_region(s, op->body);
    for (uint32_t i = 0; i < op->n_in; i++)
      if (needs_whole(s, op, i))
        of(s, op->in[i])->whole_use = true;
  }
}

// Parameters of which a use needs the whole cotangent; true if there are new ones.
static bool params_region(lm_shard *s, const lm_region *r) {
  bool changed = false;
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->body && !lm_shard_is_pipeline(s, op))
      changed |= params_region(s, op->body);
    if (op->code != LM_OP_PARAM || !of(s, op->out[0])->whole_use)
      continue;
    uint8_t *whole = &s->whole_params[lm_global_find(s->m, op->attr.sym) - s->m->globals];
    changed |= !*whole;
    *whole = 1;
  }
  return changed;
}

// ---- all values

static void note(lm_shard *s, const lm_value *v, const uint8_t *active) {
  s->value[v->id] = (lm_shard_value){
      .type = v->type,
      .active = active[v->id],
      .now = (lm_value *)v,
  };
}

static void note_region(lm_shard *s, const lm_region *r, const uint8_t *active) {
  for (uint32_t i = 0; i < r->n_args; i++)
    note(s, r->args[i], active);
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++) {
      lm_shard_value *x = of(s, op->in[i]);
      x->user = x->n_uses++ ? NULL : op;
    }
    if (op->body)
      note_region(s, op->body, active);
    for (uint32_t i = 0; i < op->n_out; i++)
      note(s, op->out[i], active);
  }
}

void lm_shard_choose(lm_shard *s) {
  lm_region *body = s->f->body;
  uint8_t *active = lm_activity_of_func(s->f);
  note_region(s, body, active);
  lm_free(active);
  for (uint32_t i = 0; s->batch && i < body->n_args; i++)
    spread_along(of(s, body->args[i]), lm_shard_axis(s, body->args[i]->type));
  spread_region(s, body);
  do {
    movable_region(s, body);
    uses_region(s, body);
  } while (params_region(s, body));
}
