// shard.c - pass `shard`: divides a model among the ranks of a mesh.
//
// before: mesh dp = 2 rows, tp = 2 shard(ff)
//         func @loss(%x: f32[b, d]) -> … {
//           %u = param @u : f32[d, ff]   %y = dot %x, %u over(d) : f32[b, ff]
//           %v = param @v : f32[ff, d]   %z = dot %y, %v over(ff) : f32[b, d]
//           %q = mul %z, %z   %s = sum %q over(b, d) }
// after:  mesh dp = 2 rows, tp = 2
//         func @loss(%x: f32[b@dp, d]) -> … {
//           %f = fan %x over(tp)
//           %u = param @u : f32[d, ff@tp]   %y = dot %f, %u over(d) : f32[b@dp, ff@tp]
//           %v = param @v : f32[ff@tp, d]   %z = dot %y, %v over(ff@tp) : f32[b@dp, d]
//           %r = all_reduce %z over(tp)
//           %q = mul %r, %r   %s = sum %q over(b@dp, d) }       (partial over dp)
//
// A divided axis is another axis, so the module is from here on the program of one rank, and later
// passes see smaller tensors. The axes of the mesh are divided one after the other, those that
// divide the data first: tp then divides each part of the positions further. shard_choice.c chooses
// how each value is spread; this file rewrites the operations and inserts collectives where an
// operation needs its operand in another form, once for all its uses. The sums of @loss and @eval
// stay partial over the axes of the mesh that divide rows or positions. Pass `grad` derives the
// backward collectives (compiler/ops/mesh_vjp.c).
//
// Declines: without a mesh. An axis that does not divide, or that is the axis of a repetition, is
// an error. Cost: what the collectives exchange, and operations along axes that cannot stay
// divided, which every rank computes whole.
#include "compiler/passes/shard.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"
#include <string.h>

// ---- types

static lm_axis part_of(const lm_shard *s, lm_axis whole) {
  return lm_axis_part(s->m, whole, s->mesh);
}

static lm_type divided(const lm_shard *s, lm_type t, lm_axis along) {
  int at = along ? lm_type_find(t, along) : -1;
  if (at >= 0)
    t.axis[at] = part_of(s, along);
  return t;
}

static void axes_divide(const lm_shard *s, lm_axis *axes, int n, lm_axis along) {
  for (int i = 0; along && i < n; i++)
    if (axes[i] == along)
      axes[i] = part_of(s, along);
}

// ---- conversions

enum {
  LEVELS = 8 // of operations without a gradient that are computed again
};

typedef enum {
  FORM_WHOLE, // with the whole cotangent on every rank
  FORM_TERMS, // whole, with terms of the cotangent
  FORM_PARTS, // divided along an axis
} form;

static bool has_terms(const lm_shard_value *v) {
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

static lm_value *collective(lm_shard *s, lm_opcode code, lm_value *x, lm_axis from, lm_axis to) {
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

// The number of the first element of this rank's part of an axis.
static lm_value *first_of(lm_shard *s, lm_axis whole) {
  lm_value *size = lm_emit_const(&s->b, lm_type_make(LM_INT, NULL, 0),
                                 (double)lm_axis_size(s->m, part_of(s, whole)));
  return lm_emit2(&s->b, LM_OP_MUL, rank_of(s), size);
}

// Parts along c become parts along `along`.
static lm_value *exchanged(lm_shard *s, lm_value *x, lm_axis c, lm_axis along) {
  lm_attr a = {.mesh = (uint8_t)s->mesh,
               .axes = {part_of(s, c), along},
               .n_axes = 2,
               .to = {c, part_of(s, along)},
               .n_to = 2};
  return lm_emit(&s->b, LM_OP_ALL_TO_ALL, &x, 1, &a, NULL);
}

static lm_value *divided_const(lm_shard *s, const lm_value *x, lm_axis along) {
  return lm_emit_const(&s->b, divided(s, x->type, along), x->def->attr.num);
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
    c->v = collective(s, code, x, part_of(s, v->along), v->along);
  else
    c->v = collective(s, code, x, parts ? along : 0, parts ? part_of(s, along) : 0);
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
  if (v->active && has_terms(v))
    LM_BUG("value %u has no whole cotangent", x->id);
  return x;
}

static lm_value *terms(lm_shard *s, lm_shard_value *v, lm_op *user) {
  if (!v->active || s->f->key.id != LM_FUNC_LOSS)
    return whole(s, v, user);
  if (v->spread == LM_SPREAD_WHOLE && has_terms(v))
    return v->now;
  enter(s, v->now, user);
  if (v->spread == LM_SPREAD_PARTS)
    return copied(s, v, v->now, LM_OP_ALL_GATHER, 0);
  lm_value *x = whole(s, v, user);
  enter(s, x, user);
  return copied(s, v, x, LM_OP_FAN, 0);
}

static lm_value *part(lm_shard *s, lm_shard_value *v, lm_axis along, lm_op *user) {
  lm_value *x = v->now;
  if (v->spread == LM_SPREAD_PARTS && v->along == along)
    return x;
  enter(s, x, user);
  if (v->spread == LM_SPREAD_PARTS)
    return copied(s, v, x, LM_OP_ALL_TO_ALL, along);
  if (v->spread == LM_SPREAD_PARTIAL)
    return copied(s, v, x, LM_OP_REDUCE_SCATTER, along);
  if (x->def && x->def->code == LM_OP_CONST)
    return copied(s, v, x, LM_OP_CONST, along);
  return copied(s, v, whole(s, v, user), LM_OP_PART, along);
}

// Replaces operand i of op by the given form.
static void need(lm_shard *s, lm_op *op, uint32_t i, form f, lm_axis along) {
  lm_shard_value *v = lm_shard_of(s, op->in[i]);
  op->in[i] = f == FORM_PARTS   ? part(s, v, along, op)
              : f == FORM_TERMS ? terms(s, v, op)
                                : whole(s, v, op);
}

static void need_spread(lm_shard *s, lm_op *op, uint32_t i, lm_spread spread, lm_axis along) {
  need(s, op, i, spread == LM_SPREAD_PARTS ? FORM_PARTS : FORM_WHOLE, along);
}

// ---- operations

static void after(lm_shard *s, const lm_op *op) {
  s->b.at = op->parent;
  s->b.before = op->next;
  s->b.loc = op->loc;
}

static void replace_result(lm_shard *s, lm_value *old, lm_value *now) {
  now->name = old->name;
  if (old->def && now->def)
    now->def->remat = old->def->remat;
  lm_shard_of(s, old)->now = now;
}

// The rows of other ranks: index - first, clamped by the operation itself, and a mask of own rows.
typedef struct own_rows {
  lm_value *index, *mask;
} own_rows;

static own_rows rows_of(lm_shard *s, lm_value *index, lm_axis table) {
  lm_builder *b = &s->b;
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  lm_value *all = lm_emit_clamp(b, index, lm_axis_size(s->m, table));
  lm_value *i = lm_emit2(b, LM_OP_SUB, all, first_of(s, table));
  lm_value *end = lm_emit_const(b, number, (double)lm_axis_size(s->m, part_of(s, table)));
  lm_value *low = lm_emit2(b, LM_OP_GE, i, lm_emit_const(b, number, 0));
  return (own_rows){i, lm_emit2(b, LM_OP_AND, low, lm_emit2(b, LM_OP_LT, i, end))};
}

static lm_value *masked(lm_shard *s, lm_value *mask, lm_value *x) {
  lm_value *zero = lm_emit_const(&s->b, lm_type_make((lm_dtype)x->type.dtype, NULL, 0), 0);
  return lm_emit_select(&s->b, mask, x, zero);
}

// Each rank reads the rows of the part of the table that it has; the others' are 0.
static void gather_own(lm_shard *s, lm_op *op) {
  lm_axis table = op->attr.axes[0];
  need(s, op, 0, FORM_PARTS, table);
  need(s, op, 1, FORM_TERMS, 0);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  own_rows own = rows_of(s, op->in[1], table);
  op->in[1] = own.index;
  axes_divide(s, op->attr.axes, 1, table);
  after(s, op);
  replace_result(s, op->out[0], masked(s, own.mask, op->out[0]));
}

static void scatter_own(lm_shard *s, lm_op *op) {
  lm_axis table = op->attr.axes[0];
  need(s, op, 0, FORM_TERMS, 0);
  need(s, op, 1, FORM_TERMS, 0);
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  own_rows own = rows_of(s, op->in[1], table);
  op->in[0] = masked(s, own.mask, op->in[0]);
  op->in[1] = own.index;
  axes_divide(s, op->attr.axes, 1, table);
  op->out[0]->type = divided(s, op->out[0]->type, table);
}

// Random numbers are functions of the row's number, which operand 1 holds, and of the column, which
// begins at operand 2.
static void rng_rows(lm_shard *s, lm_op *op, lm_axis along) {
  lm_type t = lm_shard_of(s, op->out[0])->type;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool has = lm_type_find(lm_shard_of(s, op->in[i])->type, along) >= 0;
    need(s, op, i, has ? FORM_PARTS : FORM_WHOLE, has ? along : 0);
  }
  s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
  if (t.axis[t.rank - 1] == along)
    op->in[2] = lm_emit2(&s->b, LM_OP_ADD, op->in[2], first_of(s, along));
  op->out[0]->type = divided(s, t, along);
}

static lm_axis operand_axis(const lm_shard *s, const lm_op *op, uint32_t i, lm_axis factor) {
  return lm_type_find(lm_shard_of(s, op->in[i])->type, factor) >= 0 ? factor : 0;
}

// The region of a scan has the types of its operands.
static void scan_divide(lm_shard *s, lm_op *op, lm_axis factor) {
  for (uint32_t i = 0; i < op->n_in; i++)
    op->body->args[i]->type = divided(s, op->body->args[i]->type, factor);
  for (lm_op *o = op->body->first; o; o = o->next)
    for (uint32_t i = 0; i < o->n_out; i++)
      o->out[i]->type = divided(s, o->out[i]->type, factor);
}

static void op_divide(lm_shard *s, lm_op *op, lm_axis factor) {
  lm_factor kind = lm_op_info_of(op)->factor;
  lm_axis along = lm_shard_along(s, op, factor, 0);
  if (kind == LM_FACTOR_INDEX && factor == op->attr.axes[0]) {
    (op->code == LM_OP_GATHER ? gather_own : scatter_own)(s, op);
    return;
  }
  if (kind == LM_FACTOR_ROWS) {
    rng_rows(s, op, along);
    return;
  }
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_axis a = operand_axis(s, op, i, factor);
    need(s, op, i, a ? FORM_PARTS : FORM_TERMS, a);
  }
  axes_divide(s, op->attr.axes, op->attr.n_axes, factor);
  axes_divide(s, op->attr.to, op->attr.n_to, along);
  if (kind == LM_FACTOR_SCAN)
    scan_divide(s, op, factor);
  for (uint32_t i = 0; i < op->n_out; i++)
    op->out[i]->type = divided(s, op->out[i]->type, along);
  if (kind == LM_FACTOR_MAX && !along) {
    after(s, op);
    replace_result(s, op->out[0], collective(s, LM_OP_ALL_MAX, op->out[0], 0, 0));
  }
}

static void op_whole(lm_shard *s, lm_op *op) {
  lm_shard_value *out = op->n_out ? lm_shard_of(s, op->out[0]) : NULL;
  bool with_terms = out && out->active && out->spread == LM_SPREAD_WHOLE && has_terms(out);
  bool any = !out || !out->active; // without a gradient: in either form of whole values
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->in[i]);
    if (any && v->spread == LM_SPREAD_WHOLE)
      op->in[i] = v->now;
    else
      need(s, op, i, with_terms ? FORM_TERMS : FORM_WHOLE, 0);
  }
  if (!out || !lm_shard_parts_result(s, op))
    return;
  after(s, op);
  lm_axis a = out->along;
  replace_result(s, op->out[0], collective(s, LM_OP_PART, op->out[0], a, part_of(s, a)));
}

static void op_partial(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    op->in[i] = lm_shard_of(s, op->in[i])->now;
}

static lm_mesh_set set_of(const lm_shard *s) {
  return (lm_mesh_set)(1 << (s->mesh - 1));
}

// The axis along which op_state's operand i is divided: a value that is written is spread as the
// global is, an index is whole. `along`: of the global.
static lm_axis written_along(const lm_shard *s, const lm_op *op, uint32_t i, lm_axis along) {
  bool last = i + 1 == op->n_in;
  if (op->code == LM_OP_APPEND)
    return last ? along : 0; // x lacks the axis of the cache's positions
  bool writes = op->code == LM_OP_RETAIN || op->code == LM_OP_ASSIGN;
  return writes && i >= op->attr.n_imm / 2u ? lm_shard_axis(s, lm_shard_of(s, op->in[i])->type) : 0;
}

// Reads and writes of globals. The gradient of a whole parameter whose cotangent has terms is
// partial.
static void op_state(lm_shard *s, lm_op *op) {
  const lm_shard_value *v = op->n_out ? lm_shard_of(s, op->out[0]) : NULL;
  lm_axis along = v ? lm_shard_axis(s, v->type) : 0;
  if (v && s->f->key.id == LM_FUNC_LOSS && v->active && !along && has_terms(v))
    lm_global_find(s->m, op->attr.sym)->partial |= set_of(s);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_axis own = written_along(s, op, i, along);
    need(s, op, i, own ? FORM_PARTS : FORM_WHOLE, own);
  }
  if (v)
    op->out[0]->type = divided(s, op->out[0]->type, along);
}

// ---- control

static void region_divide(lm_shard *s, lm_region *r);

static void loop_divide(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->body->args[i + 1]);
    need_spread(s, op, i, (lm_spread)v->spread, v->along);
    op->body->args[i + 1]->type = op->out[i]->type = divided(s, v->type, v->along);
  }
  region_divide(s, op->body);
  for (uint32_t i = op->n_in; i < op->n_out; i++) {
    const lm_shard_value *v = lm_shard_of(s, op->out[i]);
    op->out[i]->type = divided(s, v->type, v->along);
  }
}

static void yield_divide(lm_shard *s, lm_op *op) {
  const lm_op *loop = op->parent->owner;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_shard_value *v = lm_shard_of(s, loop->out[i]);
    need_spread(s, op, i, (lm_spread)v->spread, v->along);
  }
}

static void result_is_partial(lm_shard *s, uint32_t i) {
  if (!s->f->out_partial)
    s->f->out_partial = LM_NEW_N(s->m->arena, lm_mesh_set, s->f->n_out);
  s->f->out_partial[i] |= set_of(s);
}

// A result that is no sum over this axis of the mesh is one on the first rank alone.
static void return_divide(lm_shard *s, lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_shard_value *v = lm_shard_of(s, op->in[i]);
    if (!lm_shard_returns_partial(s, i)) {
      need(s, op, i, FORM_WHOLE, 0);
      continue;
    }
    result_is_partial(s, i);
    if (v->spread == LM_SPREAD_PARTIAL)
      op->in[i] = v->now;
    else {
      lm_value *x = terms(s, v, op);
      s->b = (lm_builder){s->m, op->parent, op, op->loc, 0};
      op->in[i] = collective(s, LM_OP_FIRST, x, 0, 0);
    }
  }
}

static void region_divide(lm_shard *s, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    lm_axis factor;
    if (op->code == LM_OP_LOOP)
      loop_divide(s, op);
    else if (op->code == LM_OP_YIELD)
      yield_divide(s, op);
    else if (op->code == LM_OP_RETURN)
      return_divide(s, op);
    else if (lm_op_info_of(op)->factor == LM_FACTOR_STATE)
      op_state(s, op);
    else if (op->n_out && lm_shard_keeps_partial(s, op))
      op_partial(s, op);
    else if (op->n_out && (factor = lm_shard_factor(s, op)))
      op_divide(s, op, factor);
    else
      op_whole(s, op);
  }
}

// ---- functions and globals

// The data is divided by every axis of the mesh but tp, whose ranks see the same rows.
static bool divides_batch(const lm_mesh_axis *by) {
  return by->rows || by->positions || strcmp(by->name, "tp") != 0;
}

static void choose(lm_shard *s, lm_func *f, uint8_t *whole_params) {
  s->f = f;
  s->n_values = s->m->n_values;
  s->value = lm_calloc((size_t)s->n_values + 1, sizeof *s->value);
  lm_shard_choose(s, whole_params);
}

// The parameters of which a use in some loss needs the whole cotangent.
static void params_choose(lm_shard *s, uint8_t *whole_params) {
  uint8_t *before = lm_calloc((size_t)s->m->n_globals + 1, 1);
  do {
    memcpy(before, whole_params, s->m->n_globals);
    for (lm_func *f = s->m->funcs; f; f = f->next)
      if (f->key.id == LM_FUNC_LOSS) {
        choose(s, f, whole_params);
        lm_free(s->value);
      }
  } while (memcmp(before, whole_params, s->m->n_globals));
  lm_free(before);
}

static void func_divide(lm_shard *s, lm_func *f, uint8_t *whole_params) {
  s->b = (lm_builder){.m = s->m};
  choose(s, f, whole_params);
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_value *v = f->body->args[i];
    v->type = divided(s, v->type, lm_shard_of(s, v)->along);
  }
  region_divide(s, f->body);
  lm_free(s->value);
}

// True if a trained parameter is divided.
static bool globals_divide(lm_shard *s) {
  bool any = false;
  for (uint32_t i = 0; i < s->m->n_globals; i++) {
    lm_global *g = &s->m->globals[i];
    lm_axis along = lm_shard_axis(s, g->type);
    g->type = divided(s, g->type, along);
    any |= along && g->kind == LM_GLOBAL_PARAM;
  }
  return any;
}

static bool axis_divide(lm_module *m, int mesh) {
  lm_mesh_axis *by = &m->mesh.axis[mesh - 1];
  lm_shard s = {
      .m = m,
      .mesh = mesh,
      .batch = divides_batch(by),
      .positions = by->positions,
  };
  s.order = lm_calloc((size_t)m->n_axes * 2 + 1, sizeof *s.order);
  bool ok = lm_shard_list(m, by, s.order);
  if (ok && by->size > 1) {
    uint8_t *whole_params = lm_calloc((size_t)m->n_globals + 1, 1);
    uint8_t *others = lm_calloc((size_t)m->n_globals + 1, 1); // of functions without gradients
    params_choose(&s, whole_params);
    for (lm_func *f = m->funcs; f; f = f->next)
      if (!by->positions || lm_shard_takes_batch(f))
        func_divide(&s, f, f->key.id == LM_FUNC_LOSS ? whole_params : others);
    lm_free(others);
    lm_free(whole_params);
    if (globals_divide(&s))
      lm_shard_norm(m, mesh);
  }
  by->n_shard = 0;
  lm_free(s.order);
  return ok;
}

static void note_undivided(lm_op *op, void *user) {
  const lm_op **first = user;
  if (!*first && lm_op_info_of(op)->factor == LM_FACTOR_NONE)
    *first = op;
}

// The operation as a program writes it.
static const char *primitive_of(const lm_op *op) {
  switch (op->code) {
  case LM_OP_GROUP_COUNTS:
  case LM_OP_GROUP_ORDER:
  case LM_OP_GROUP_INVERSE:
  case LM_OP_GROUP_ROWS: return "group_by";
  case LM_OP_UNGROUP_ROWS: return "ungroup";
  default: return lm_op_info_of(op)->name;
  }
}

// Calls are inlined before this pass, and attention is recognized after it.
static bool can_run(const lm_module *m) {
  const lm_op *found = NULL;
  for (const lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, note_undivided, &found);
  if (found)
    LM_REPORT(m->ctx, found->loc, E914, primitive_of(found));
  return !found;
}

bool lm_pass_shard(lm_module *m, const lm_pass_env *env) {
  bool ok = !m->mesh.n || can_run(m);
  for (int batch = 1; batch >= 0; batch--)
    for (int k = 1; k <= m->mesh.n && ok; k++) {
      const lm_mesh_axis *by = &m->mesh.axis[k - 1];
      if (divides_batch(by) == batch && (by->n_shard || lm_shard_batch(m, k)))
        ok = axis_divide(m, k);
    }
  for (int k = 1; k <= m->mesh.n && ok; k++)
    if (m->mesh.axis[k - 1].zero && m->mesh.axis[k - 1].size > 1)
      lm_shard_zero(m, k);
  return ok;
}
