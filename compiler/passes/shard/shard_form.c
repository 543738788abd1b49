// shard_form.c - conversions between the forms of values: whole, with terms of the cotangent,
// parts.
//
// The form of each value follows from its operation. An operand that is needed in another form is
// converted in front of its first user, once for all users.
#include "compiler/passes/shard/shard.h"

// ---- types

lm_axis lm_shard_part(const lm_shard *s, lm_axis whole) {
  bool own = whole < s->n_axes && s->all_rows[whole];
  return lm_axis_part(s->m, own ? s->all_rows[whole] : whole, s->mesh);
}

// True if v is divided along rows, whose order on all ranks is not known.
static bool is_sorted(const lm_shard *s, const lm_shard_value *v) {
  return v->spread == LM_SPREAD_PARTS && s->rows[v->along];
}

lm_type lm_shard_divided(const lm_shard *s, lm_type t, lm_axis along) {
  int at = along ? lm_type_find(t, along) : -1;
  if (at >= 0)
    t.axis[at] = lm_shard_part(s, along);
  return t;
}

// ---- conversions

enum {
  LEVELS = 8 // of operations without a gradient that are computed again
};

bool lm_shard_has_terms(const lm_shard_value *v) {
  return v->movable && !v->whole_use;
}

// Positions the builder before the operation in x's region that is or contains `user`.
static void enter(lm_shard *s, const lm_value *x, lm_op *user) {
  while (user->parent != x->region)
    user = user->parent->owner;
  s->b.at = user->parent;
  s->b.before = user;
  s->b.loc = x->def ? x->def->loc : user->loc;
}

lm_value *lm_shard_collective(lm_shard *s, lm_opcode code, lm_value *x, lm_axis from, lm_axis to) {
  lm_attr a = {.mesh = (uint8_t)s->mesh};
  if (from) {
    a.axes[a.n_axes++] = from;
    a.to[a.n_to++] = to;
  }
  return lm_emit(&s->b, code, &x, 1, &a, NULL);
}

static lm_value *rank_of(lm_shard *s) {
  return lm_emit(&s->b, LM_OP_RANK, NULL, 0, &(lm_attr){.mesh = (uint8_t)s->mesh}, NULL);
}

lm_value *lm_shard_first(lm_shard *s, lm_axis whole) {
  lm_value *size = lm_emit_const(&s->b, lm_type_make(LM_INT, NULL, 0),
                                 (double)lm_axis_size(s->m, lm_shard_part(s, whole)));
  return lm_emit2(&s->b, LM_OP_MUL, rank_of(s), size);
}

// Parts along c become parts along `along`.
static lm_value *exchanged(lm_shard *s, lm_value *x, lm_axis c, lm_axis along) {
  lm_axis from = lm_shard_part(s, c);
  lm_axis to = lm_shard_part(s, along);
  lm_attr a = {
      .mesh = (uint8_t)s->mesh,
      .axes = {from, along},
      .n_axes = 2,
      .to = {c, to},
      .n_to = 2,
  };
  return lm_emit(&s->b, LM_OP_ALL_TO_ALL, &x, 1, &a, NULL);
}

static lm_value *divided_const(lm_shard *s, const lm_value *x, lm_axis along) {
  return lm_emit_const(&s->b, lm_shard_divided(s, x->type, along), x->def->attr.num);
}

// Emits `code` on v's present value, or finds what an earlier user emitted.
static lm_value *copied(lm_shard *s, lm_shard_value *v, lm_value *x, lm_opcode code,
                        lm_axis along) {
  for (lm_shard_copy *c = v->copies; c; c = c->next)
    if (c->code == code && c->along == along)
      return c->v;
  lm_shard_copy *c = LM_NEW(s->m->arena, lm_shard_copy);
  *c = (lm_shard_copy){
      .next = v->copies,
      .code = code,
      .along = along,
  };
  bool gathers = code == LM_OP_ALL_GATHER || code == LM_OP_COLLECT;
  bool parts = code == LM_OP_PART || code == LM_OP_REDUCE_SCATTER;
  if (code == LM_OP_CONST)
    c->v = divided_const(s, x, along);
  else if (code == LM_OP_ALL_TO_ALL)
    c->v = exchanged(s, x, v->along, along);
  else if (gathers)
    c->v = lm_shard_collective(s, code, x, lm_shard_part(s, v->along), v->along);
  else
    c->v = lm_shard_collective(s, code, x, parts ? along : 0, parts ? lm_shard_part(s, along) : 0);
  c->v->name = x->name;
  v->copies = c;
  return c->v;
}

static lm_value *whole(lm_shard *s, lm_shard_value *v, lm_op *user);

// The elements to gather for the whole value: its own, or those of the operands, level by level,
// from which each rank computes it again. A mask of attention has many more than the positions and
// segments that it is computed from. Values with a gradient are gathered.
static int64_t gathered(const lm_shard *s, const lm_shard_value *v, int levels) {
  const lm_op *op = v->now->def;
  int64_t own = lm_type_elements(s->m, v->type), sum = 0;
  if (v->spread != LM_SPREAD_PARTS)
    return 0;
  bool maps = op && op->n_out == 1 && lm_op_info_of(op)->factor == LM_FACTOR_MAP &&
              !(lm_op_info_of(op)->attrs & LM_A_MESH);
  if (v->active || !maps || !levels)
    return own;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_value *x = op->in[i];
    bool divided_before = x->id < s->n_values && lm_shard_of(s, x)->now == x;
    if (!divided_before || lm_shard_of(s, x)->active)
      return own;
    sum += gathered(s, lm_shard_of(s, x), levels - 1);
  }
  return sum < own ? sum : own;
}

static lm_value *computed_again(lm_shard *s, lm_shard_value *v, lm_op *user) {
  const lm_op *op = v->now->def;
  lm_value **in = LM_NEW_N(s->m->arena, lm_value *, op->n_in + 1);
  for (uint32_t i = 0; i < op->n_in; i++)
    in[i] = whole(s, lm_shard_of(s, op->in[i]), user);
  enter(s, v->now, user);
  lm_value *out = lm_emit(&s->b, op->code, in, op->n_in, &op->attr, &v->type);
  out->name = v->now->name;
  return out;
}

static lm_value *whole(lm_shard *s, lm_shard_value *v, lm_op *user) {
  lm_value *x = v->now;
  if (is_sorted(s, v)) {
    lm_shard_rows_refuse(s, user);
    return x;
  }
  if (!v->again && gathered(s, v, LEVELS) < lm_type_elements(s->m, v->type) &&
      v->spread == LM_SPREAD_PARTS)
    v->again = computed_again(s, v, user);
  if (v->again)
    return v->again;
  enter(s, x, user);
  if (v->spread == LM_SPREAD_PARTS)
    return copied(s, v, x, LM_OP_COLLECT, 0);
  if (v->spread == LM_SPREAD_PARTIAL)
    return copied(s, v, x, LM_OP_ALL_REDUCE, 0);
  if (v->active && lm_shard_has_terms(v))
    LM_BUG("value %u has no whole cotangent", x->id);
  return x;
}

static lm_value *terms(lm_shard *s, lm_shard_value *v, lm_op *user) {
  if (!v->active || s->f->key.id != LM_FUNC_LOSS)
    return whole(s, v, user);
  if (v->spread == LM_SPREAD_WHOLE && lm_shard_has_terms(v))
    return v->now;
  enter(s, v->now, user);
  if (v->spread == LM_SPREAD_PARTS && !is_sorted(s, v))
    return copied(s, v, v->now, LM_OP_ALL_GATHER, 0);
  lm_value *x = whole(s, v, user);
  enter(s, x, user);
  return s->failed ? x : copied(s, v, x, LM_OP_FAN, 0);
}

lm_value *lm_shard_terms(lm_shard *s, const lm_value *x, lm_op *user) {
  return terms(s, lm_shard_of(s, x), user);
}

static lm_value *part(lm_shard *s, lm_shard_value *v, lm_axis along, lm_op *user) {
  lm_value *x = v->now;
  if (v->spread == LM_SPREAD_PARTS && v->along == along)
    return x;
  if (is_sorted(s, v)) {
    lm_shard_rows_refuse(s, user);
    return x;
  }
  enter(s, x, user);
  if (v->spread == LM_SPREAD_PARTS)
    return copied(s, v, x, LM_OP_ALL_TO_ALL, along);
  if (v->spread == LM_SPREAD_PARTIAL)
    return copied(s, v, x, LM_OP_REDUCE_SCATTER, along);
  if (x->def && x->def->code == LM_OP_CONST)
    return copied(s, v, x, LM_OP_CONST, along);
  if (s->rows[along]) {
    lm_shard_rows_refuse(s, user);
    return x;
  }
  return copied(s, v, whole(s, v, user), LM_OP_PART, along);
}

void lm_shard_need(lm_shard *s, lm_op *op, uint32_t i, lm_shard_form f, lm_axis along) {
  lm_shard_value *v = lm_shard_of(s, op->in[i]);
  op->in[i] = f == LM_FORM_PARTS   ? part(s, v, along, op)
              : f == LM_FORM_TERMS ? terms(s, v, op)
                                   : whole(s, v, op);
}
