// attend_match.c - recognizes softmax attention: from the dot with v down to the scores, their
// masks, the query axis, and the operations of the region.
#include "compiler/passes/attend/attend_match.h"
#include <math.h>
#include "compiler/plan/planner.h"

#define NEVER (-1e29) // upper bound of a masked score

static bool over_one(const lm_op *op, lm_axis a) {
  return op->attr.n_axes == 1 && op->attr.axes[0] == a;
}
static bool used(const attend_pass *p, const lm_value *v, uint32_t times) {
  return v->id < p->n_values && p->uses[v->id] == times;
}
static bool is_float_cast(const lm_op *op) {
  return op->code == LM_OP_CAST && lm_dtype_is_float((lm_dtype)op->in[0]->type.dtype);
}

static bool is_sum_of(const lm_value *v, const lm_value *e, lm_axis s) {
  return lm_op_is(v, LM_OP_SUM) && over_one(v->def, s) && v->def->in[0] == e;
}

// Matches exp(r - c), where c is also subtracted in exp(x - c), or exp(r) if nothing is subtracted.
// Returns r, which must not have axis s, or NULL.
static lm_value *sink_of(const lm_value *v, const lm_value *e, lm_axis s) {
  if (lm_op_is(v, LM_OP_EXPAND))
    v = v->def->in[0];
  if (!lm_op_is(v, LM_OP_EXP) || lm_type_find(v->type, s) >= 0)
    return NULL;
  lm_value *r = v->def->in[0];
  lm_value *x = e->def->in[0];
  if (!lm_op_is(x, LM_OP_SUB) || lm_type_find(x->def->in[1]->type, s) >= 0)
    return r;
  return lm_op_is(r, LM_OP_SUB) && r->def->in[1] == x->def->in[1] ? r->def->in[0] : NULL;
}

static bool is_softmax(lm_value *v, lm_axis s, attend_softmax *out) {
  if (!lm_op_is(v, LM_OP_DIV) || !lm_op_is(v->def->in[0], LM_OP_EXP))
    return false;
  lm_value *e = v->def->in[0];
  lm_value *all = v->def->in[1];
  *out = (attend_softmax){.weights = v};
  if (is_sum_of(all, e, s)) {
    out->sum = all;
    return true;
  }
  for (int side = 0; side < 2 && lm_op_is(all, LM_OP_ADD) && !out->sink; side++)
    if (is_sum_of(all->def->in[side], e, s)) {
      out->sum = all->def->in[side];
      out->sink = sink_of(all->def->in[1 - side], e, s);
    }
  return out->sink;
}

static bool is_zero(const lm_value *v) {
  double c;
  return lm_const_of(v, &c) && c == 0;
}

// The operand through which the weights reach an operation between the softmax and the dot.
uint32_t lm_attend_chain_operand(const lm_op *op) {
  return op->code == LM_OP_SELECT ||
         (op->code == LM_OP_MUL && op->in[0]->type.rank < op->in[1]->type.rank);
}

// Follows the operand of the dot up to the softmax: through casts, multiplications by a factor and
// select(kept, …, 0).
bool lm_attend_softmax_below(const attend_pass *p, lm_value *v, lm_axis s, attend_softmax *out) {
  for (; v->def && !is_softmax(v, s, out); v = v->def->in[lm_attend_chain_operand(v->def)]) {
    const lm_op *op = v->def;
    bool passes = is_float_cast(op) || op->code == LM_OP_MUL ||
                  (op->code == LM_OP_SELECT && is_zero(op->in[2]));
    if (!used(p, v, 1) || !passes)
      return false;
  }
  return v->def && used(p, v, 1) && used(p, v->def->in[0], 2);
}

// Returns x of x - max(x, s), with or without stop_grad. With a sink, the subtrahend may be any
// value without axis s.
static lm_value *uncentred(lm_value *x, lm_axis s, bool sink, const lm_value **out_centre) {
  if (!lm_op_is(x, LM_OP_SUB))
    return x;
  const lm_value *maximum = *out_centre = x->def->in[1];
  if (sink && lm_type_find(maximum->type, s) < 0)
    return x->def->in[0];
  if (lm_op_is(maximum, LM_OP_STOP))
    maximum = maximum->def->in[0];
  bool centred = lm_op_is(maximum, LM_OP_MAX) && over_one(maximum->def, s) &&
                 maximum->def->in[0] == x->def->in[0];
  if (!centred)
    *out_centre = NULL;
  return centred ? x->def->in[0] : x;
}

static bool is_never(const lm_value *v) {
  double c;
  if (lm_op_is(v, LM_OP_EXPAND))
    v = v->def->in[0];
  return lm_const_of(v, &c) && c <= NEVER && isfinite(c);
}

// The conjunction if the axes of one are a subset of the other's, else x.
static lm_value *and_of(lm_builder *b, lm_value *x, lm_value *y) {
  if (!x || !y)
    return x ? x : y;
  if (!lm_type_subset(y->type, x->type))
    return lm_type_subset(x->type, y->type) ? lm_emit2(b, LM_OP_AND, y, x) : x;
  return lm_emit2(b, LM_OP_AND, x, y);
}

// Matches select(mask, other, -1e30) and select(hidden, -1e30, other): returns the mask and sets
// *out_other; NULL if v is neither.
static lm_value *mask_of(lm_builder *b, const lm_value *v, lm_value **out_other) {
  if (lm_op_is(v, LM_OP_EXPAND))
    v = v->def->in[0];
  if (!lm_op_is(v, LM_OP_SELECT))
    return NULL;
  bool hides = is_never(v->def->in[1]);
  if (!hides && !is_never(v->def->in[2]))
    return NULL;
  *out_other = v->def->in[1 + hides];
  return hides ? lm_emit1(b, LM_OP_NOT, v->def->in[0]) : v->def->in[0];
}

// The conjunction of `visible` and the masks of the terms of a sum that are -1e30 where masked.
static lm_value *visible_of_terms(lm_builder *b, const lm_value *v, lm_value *visible) {
  lm_value *other;
  if (lm_op_is(v, LM_OP_ADD))
    return visible_of_terms(b, v->def->in[1], visible_of_terms(b, v->def->in[0], visible));
  return and_of(b, visible, mask_of(b, v, &other));
}

// Nested masks become one. A mask that is added to the score stays in it, so that the derivative is
// the score's.
static void match_masks(attend_match *x, lm_builder *b) {
  lm_value *other;
  lm_value *mask;
  while (!lm_op_is(x->score, LM_OP_EXPAND) && (mask = mask_of(b, x->score, &other))) {
    if (x->mask && !lm_type_subset(mask->type, x->mask->type) &&
        !lm_type_subset(x->mask->type, mask->type))
      break;
    x->mask = and_of(b, x->mask, mask);
    x->score = other;
  }
  x->visible = visible_of_terms(b, x->score, x->mask);
}

static bool match_softmax(attend_match *x, int side, lm_builder *b) {
  x->weighted = x->dot->in[side];
  x->v = x->dot->in[1 - side];
  x->s = x->dot->attr.axes[0];
  attend_softmax soft;
  if (!lm_attend_softmax_below(x->p, x->weighted, x->s, &soft))
    return false;
  x->weights = soft.weights;
  x->sum = soft.sum;
  x->sink = soft.sink;
  x->scores = x->score = uncentred(x->weights->def->in[0]->def->in[0], x->s, x->sink, &x->centre);
  match_masks(x, b);
  return true;
}

// ---- the query axis

typedef struct origin {
  lm_axis s;
  lm_axis from;
} origin;

static void find_origin(lm_op *op, void *user) {
  origin *o = user;
  if (op->code != LM_OP_HISTORY && op->code != LM_OP_APPEND && op->code != LM_OP_RENAME)
    return;
  for (int i = 0; i < op->attr.n_to; i++)
    if (op->attr.to[i] == o->s)
      o->from = op->attr.axes[i];
}

// The axis whose history s is; else the largest axis of the scores that v lacks.
static lm_axis query_axis(const attend_match *x) {
  origin o = {.s = x->s};
  lm_type t = x->scores->type;
  lm_axis best = 0;
  lm_region_walk(x->p->f->body, find_origin, &o);
  for (int i = 0; i < t.rank; i++) {
    lm_axis a = t.axis[i];
    if (a == x->s || lm_type_find(x->v->type, a) >= 0)
      continue;
    if (a == o.from)
      return a;
    if (!best || lm_axis_size(x->p->m, a) > lm_axis_size(x->p->m, best))
      best = a;
  }
  return best;
}

// ---- the region

bool lm_attend_is_tiled(const attend_match *x, const lm_value *v) {
  return lm_type_find(v->type, x->t) >= 0 && lm_type_find(v->type, x->s) >= 0;
}

static void leaf(attend_match *x, lm_value *v) {
  if (lm_idmap_get(&x->seen, v))
    return;
  lm_idmap_set(&x->seen, v, v);
  if (lm_op_is(v, LM_OP_CONST))
    LM_PUSH(x->p->m->arena, x->ops, x->n_ops, x->cap_ops) = v->def;
  else
    LM_PUSH(x->p->m->arena, x->leaves, x->n_leaves, x->cap_leaves) = v;
}

// True if op is a dot of one operand with t and one with s, over axes that the scores lack.
static bool dot_fits(const attend_match *x, const lm_op *op) {
  for (int i = 0; i < op->attr.n_axes; i++)
    if (lm_type_find(x->scores->type, op->attr.axes[i]) >= 0)
      return false;
  return op->attr.n_axes && !lm_attend_is_tiled(x, op->in[0]) && !lm_attend_is_tiled(x, op->in[1]);
}

static bool op_fits(const attend_match *x, const lm_op *op) {
  if (!op || !lm_type_subset(op->out[0]->type, x->scores->type))
    return false;
  if (op->code == LM_OP_DOT)
    return dot_fits(x, op);
  return op->code == LM_OP_RNG || op->code == LM_OP_PERMUTE ||
         lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
}

static bool gather_cone(attend_match *x, lm_value *v) {
  if (!lm_attend_is_tiled(x, v)) {
    leaf(x, v);
    return true;
  }
  if (lm_idmap_get(&x->seen, v))
    return true;
  if (!op_fits(x, v->def))
    return false;
  lm_idmap_set(&x->seen, v, v);
  for (uint32_t i = 0; i < v->def->n_in; i++)
    if (!gather_cone(x, v->def->in[i]))
      return false;
  LM_PUSH(x->p->m->arena, x->ops, x->n_ops, x->cap_ops) = v->def;
  return true;
}

// Collects the other operands along the chain from the weighted values to the softmax.
static bool gather_factor(attend_match *x) {
  const attend_pass *p = x->p;
  for (lm_value *v = x->weighted, *next; v != x->weights; v = next) {
    const lm_op *op = v->def;
    uint32_t chain = lm_attend_chain_operand(op);
    next = op->in[chain];
    for (uint32_t i = 0; i < op->n_in; i++) {
      const lm_value *other = op->in[i];
      if (i == chain)
        continue;
      if (p->active && other->id < p->n_values && p->active[other->id])
        return false;
      if (!gather_cone(x, op->in[i]))
        return false;
    }
  }
  return true;
}

// How often the operations of the region read v.
static uint32_t reads_of(const attend_match *x, const lm_value *v) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < x->n_ops; i++)
    for (uint32_t k = 0; k < x->ops[i]->n_in; k++)
      n += x->ops[i]->in[k] == v;
  return n;
}

static bool has_any(const lm_idmap *set, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (lm_idmap_get(set, op->in[i]))
      return true;
  return false;
}

// The region computes its dots again, and rounds them otherwise. A value that is compared with one
// computed from it outside of the region, such as the least of the greatest scores, has to be the
// same there.
static bool compares_again(const attend_match *x) {
  lm_idmap of_dot = {0};
  lm_idmap outside = {0}; // values of a dot that are read outside, and those computed of them
  bool found = false;
  for (uint32_t i = 0; i < x->n_ops && !found; i++) {
    const lm_op *op = x->ops[i];
    lm_value *v = op->out[0];
    if (op->code == LM_OP_DOT || has_any(&of_dot, op))
      lm_idmap_set(&of_dot, v, v);
    bool read =
        v->type.dtype != LM_BOOL && v->id < x->p->n_values && reads_of(x, v) < x->p->uses[v->id];
    if (has_any(&outside, op) || (read && lm_idmap_get(&of_dot, v)))
      lm_idmap_set(&outside, v, v);
    found = v->type.dtype == LM_BOOL && has_any(&outside, op);
  }
  lm_idmap_free(&of_dot);
  lm_idmap_free(&outside);
  return found;
}

bool lm_attend_lse_fits(const attend_match *x) {
  return !lm_type_subset(x->v->type, x->scores->type);
}
static bool sink_fits(const attend_match *x) {
  return !x->sink || (lm_type_subset(x->sink->type, x->scores->type) && lm_attend_lse_fits(x));
}

static bool gather(attend_match *x) {
  lm_dtype t = (lm_dtype)x->scores->type.dtype;
  if (!sink_fits(x))
    return false;
  if (t == LM_F64 || !lm_type_subset(x->weighted->type, x->scores->type) ||
      lm_type_find(x->v->type, x->t) >= 0)
    return false;
  if (!lm_attend_is_tiled(x, x->score))
    return false;
  return gather_cone(x, x->score) && (!x->mask || gather_cone(x, x->mask)) && gather_factor(x) &&
         !compares_again(x);
}

static bool one_query(const attend_match *x) {
  return !x->p->m->axes[x->t].dyn && lm_axis_size(x->p->m, x->t) == 1;
}

bool lm_attend_match(attend_match *x, int side, lm_builder *b) {
  if (!match_softmax(x, side, b))
    return false;
  x->t = query_axis(x);
  bool fits = x->t && (!one_query(x) || (x->p->one && !x->p->active)) && gather(x);
  lm_idmap_free(&x->seen);
  return fits;
}
