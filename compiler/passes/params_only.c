// params_only.c - see params_only.h.
//
// before: loop 4 over(layers) %i { %w = param @w[%i]   %s = sum (mul %w, %w) over(d)
//           %n = sqrt %s   … div %y, (expand %n) … }
// after:  derived @derived.0 : f32[layers, f] stacked 1, of @copies:
//           loop 4 over(layers) %i { … sqrt … yield }
//         loop 4 over(layers) %i { %n = param @derived.0[%i]   … div %y, (expand %n) … }
//
// A value is hoisted if it is costly and something that depends on more than parameters reads it,
// also through an `expand`, which stays. The stacked axes of its global are those of the loops that
// give the indices of its parameters; a loop that runs backwards reads it backwards. Declines:
// values of parameters whose indices come from different loops, or run in different directions.
#include "compiler/passes/params_only.h"

#include <string.h>

#include "compiler/ops/interface.h"

// ---- parameters that ranks gather

bool lm_param_has_zero(const lm_module *m, const lm_op *param) {
  lm_type t = param->out[0]->type;
  for (int i = 0; i < t.rank; i++) {
    int mesh = m->axes[t.axis[i]].mesh;
    if (mesh && m->mesh.axis[mesh - 1].zero)
      return true;
  }
  return false;
}

bool lm_param_is_gathered(const lm_op *op) {
  const lm_module *m = op->parent->func->module;
  bool gathers = op->code == LM_OP_ALL_GATHER || op->code == LM_OP_COLLECT;
  return gathers && lm_op_is(op->in[0], LM_OP_PARAM) && m->mesh.axis[op->attr.mesh - 1].zero;
}

// ---- marks

typedef struct marking {
  const lm_func *f;
  uint8_t *marks;
  const lm_op **param; // by value id: a parameter with stacked axes that the value depends on
} marking;

// The loop whose index v is, or the `cycle` that gives it; NULL: v is none.
static const lm_op *loop_of(const lm_value *v) {
  if (lm_op_is(v, LM_OP_CYCLE))
    return v->def;
  const lm_op *loop = v->region ? v->region->owner : NULL;
  bool index = !v->def && loop && loop->code == LM_OP_LOOP && v == loop->body->args[0];
  return index ? loop : NULL;
}

// The values of its index.
static int64_t count_of(const lm_op *loop) {
  return loop->code == LM_OP_CYCLE ? lm_cycle_count(loop) : loop->attr.imm[0];
}

static bool has_indices(const lm_op *param) {
  for (uint32_t i = 0; i < param->n_in; i++)
    if (!loop_of(param->in[i]) && !lm_op_is(param->in[i], LM_OP_CONST))
      return false;
  return true;
}

static bool is_backward(const lm_op *param, uint32_t level) {
  return param->attr.imm[2 * level + 1] < 0;
}

// True if both read elements that the same loops select, in the same direction.
static bool same_loops(const lm_op *a, const lm_op *b) {
  if (a->n_in != b->n_in)
    return false;
  for (uint32_t i = 0; i < a->n_in; i++)
    if (a->in[i] != b->in[i] || is_backward(a, i) != is_backward(b, i))
      return false;
  return true;
}

static uint8_t param_mark(marking *m, const lm_op *op) {
  const lm_global *g = lm_global_find(m->f->module, op->attr.sym);
  if (!lm_global_is_weight(g) || g->untrained || !has_indices(op))
    return 0;
  m->param[op->out[0]->id] = op->n_in ? op : NULL;
  return LM_OF_PARAMS | (g->kind == LM_GLOBAL_PARAM ? LM_OF_TRAINED : 0);
}

// Of an operation of values that have marks.
static uint8_t result_mark(marking *m, const lm_op *op) {
  uint8_t all = 0;
  const lm_op *param = NULL;
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_op *own = m->param[op->in[i]->id];
    if (!m->marks[op->in[i]->id] || (own && param && !same_loops(own, param)))
      return 0;
    all |= m->marks[op->in[i]->id];
    param = own ? own : param;
  }
  m->param[op->out[0]->id] = param;
  bool costly = lm_op_accumulates(op) || lm_op_has(op, LM_T_COLLECTIVE);
  if (all & LM_OF_PARAMS)
    all = (uint8_t)(LM_OF_PARAMS | (all & (LM_OF_COSTLY | LM_OF_TRAINED)) |
                    (costly ? LM_OF_COSTLY : 0));
  return all;
}

// True of a collective whose result of parameters is kept from one update to the next: a maximum,
// and what gathers a parameter in the stages of ZeRO below 3, or a reduction of one.
static bool is_once(const marking *m, const lm_op *op) {
  if (op->code == LM_OP_ALL_MAX)
    return true;
  bool gathers = op->code == LM_OP_ALL_GATHER || op->code == LM_OP_COLLECT;
  const lm_op *of = op->in[0]->def;
  int stage = gathers ? m->f->module->mesh.axis[op->attr.mesh - 1].zero : 0;
  return stage == 1 || stage == 2 || (stage == 3 && of && lm_op_has(of, LM_T_REDUCE));
}

static void op_mark(lm_op *op, void *user) {
  marking *m = user;
  uint8_t mark = 0;
  if (op->n_out != 1)
    return;
  if (op->code == LM_OP_PARAM)
    mark = param_mark(m, op);
  else if (op->code == LM_OP_CONST || op->code == LM_OP_IOTA)
    mark = LM_OF_CONSTANTS;
  else if (op->n_in && lm_op_pure(op) && (!lm_op_has(op, LM_T_COLLECTIVE) || is_once(m, op)))
    mark = result_mark(m, op);
  m->marks[op->out[0]->id] = mark;
}

static marking marking_of(const lm_func *f) {
  uint32_t n = f->module->n_values + 1;
  marking m = {
      .f = f,
      .marks = lm_calloc(n, sizeof *m.marks),
      .param = lm_calloc(n, sizeof *m.param),
  };
  lm_region_walk(f->body, op_mark, &m);
  return m;
}

uint8_t *lm_params_only(const lm_func *f) {
  marking m = marking_of(f);
  lm_free(m.param);
  return m.marks;
}

// ---- values to hoist

typedef struct ops {
  lm_arena *a;
  lm_op **v;
  uint32_t n, cap;
} ops;

static void op_collect(lm_op *op, void *user) {
  ops *all = user;
  LM_PUSH(all->a, all->v, all->n, all->cap) = op;
}

// Marks values that an operation reads which is not computed with them.
static bool *read_find(const lm_func *f, const marking *m, const ops *all) {
  bool *read = lm_calloc(f->module->n_values + 1, sizeof *read);
  for (uint32_t k = all->n; k-- > 0;) {
    const lm_op *op = all->v[k];
    const lm_value *out = op->n_out == 1 ? op->out[0] : NULL;
    bool hoistable = out && m->marks[out->id] & LM_OF_PARAMS;
    bool reads = !hoistable || (op->code == LM_OP_EXPAND && read[out->id]);
    for (uint32_t i = 0; i < op->n_in; i++)
      read[op->in[i]->id] |= reads;
  }
  return read;
}

static uint64_t mix(uint64_t h, uint64_t x) {
  return lm_hash(&x, sizeof x, h);
}

// The element first + step * i of iteration i of `count`, in ascending order.
static void ascending(const lm_op *param, uint32_t level, int64_t out[2]) {
  const lm_op *loop = loop_of(param->in[level]);
  out[0] = param->attr.imm[2 * level];
  out[1] = param->attr.imm[2 * level + 1];
  if (!loop || !is_backward(param, level))
    return;
  out[0] += out[1] * (count_of(loop) - 1);
  out[1] = -out[1];
}

static uint64_t param_digest(const lm_op *op, uint64_t h) {
  for (uint32_t i = 0; i < op->n_in; i++) {
    const lm_op *loop = loop_of(op->in[i]);
    int64_t at[2];
    ascending(op, i, at);
    h = mix(h, (uint64_t)at[0]);
    h = mix(h, (uint64_t)at[1]);
    h = mix(h, loop ? (uint64_t)count_of(loop) : 0);
    if (!loop)
      h = mix(h, (uint64_t)op->in[i]->def->attr.num);
  }
  return lm_hash(op->attr.sym, strlen(op->attr.sym), h);
}

// memo: by value id, 0 for values that have none yet.
static uint64_t digest(const lm_value *v, uint64_t *memo) {
  const lm_op *op = v->def;
  if (memo[v->id])
    return memo[v->id];
  uint64_t h = mix(0, (uint64_t)op->code);
  h = mix(h, v->type.dtype);
  h = mix(h, v->type.rank);
  h = lm_hash(v->type.axis, v->type.rank * sizeof *v->type.axis, h);
  if (op->code == LM_OP_PARAM) {
    h = param_digest(op, h);
  } else {
    h = lm_hash(op->attr.axes, sizeof op->attr.axes, h);
    h = lm_hash(op->attr.to, sizeof op->attr.to, h);
    h = lm_hash(op->attr.imm, sizeof op->attr.imm, h);
    h = lm_hash(&op->attr.num, sizeof op->attr.num, h);
    for (uint32_t i = 0; i < op->n_in; i++)
      h = mix(h, digest(op->in[i], memo));
  }
  return memo[v->id] = h ? h : 1;
}

// The axis of a loop's iterations, named as the parameter's stacked axis, which may be longer.
static lm_axis stack_axis(lm_module *m, const lm_op *param, uint32_t level) {
  const lm_op *loop = loop_of(param->in[level]);
  lm_axis whole = lm_global_find(m, param->attr.sym)->type.axis[level];
  int64_t n = count_of(loop);
  if (lm_axis_size(m, whole) == n)
    return whole;
  lm_sym name =
      LM_SYM(m->ctx, lm_arena_printf(m->arena, "%s.%lld", m->axes[whole].name, (long long)n));
  lm_axis found = lm_axis_find(m, name);
  return found ? found : lm_axis_add(m, name, n, 0);
}

// Adds the global of a value; NULL: it has too many axes.
static lm_sym global_add(lm_module *m, const lm_value *v, const lm_op *param, uint32_t n) {
  lm_type whole = {
      .dtype = v->type.dtype,
  };
  int stacked = 0;
  for (uint32_t i = 0; param && i < param->n_in; i++)
    stacked += loop_of(param->in[i]) != NULL;
  if (stacked + v->type.rank > LM_RANK)
    return NULL;
  for (uint32_t i = 0; param && i < param->n_in; i++)
    if (loop_of(param->in[i]))
      whole.axis[whole.rank++] = stack_axis(m, param, i);
  memcpy(whole.axis + stacked, v->type.axis, v->type.rank * sizeof *whole.axis);
  whole.rank = (uint8_t)(stacked + v->type.rank);
  lm_sym name = LM_SYM(m->ctx, lm_arena_printf(m->arena, "value.%u", n));
  lm_global_add(m, LM_GLOBAL_DERIVED, name, whole, stacked);
  return name;
}

static void value_add(lm_module *m, lm_hoisting *h, const lm_value *v, const lm_op *param,
                      bool frozen, uint64_t *memo) {
  uint64_t own = digest(v, memo);
  uint32_t i = 0;
  while (i < h->n && h->v[i].digest != own)
    i++;
  if (i == h->n) {
    lm_sym name = global_add(m, v, param, i);
    if (!name)
      return;
    LM_PUSH(m->arena, h->v, h->n, h->cap) = (lm_hoisted){name, v, own, frozen};
  }
  lm_idmap_set(&h->by_value, v, (void *)(uintptr_t)(i + 1));
  lm_idmap_set(&h->params, v, (void *)param);
}

static void func_find(lm_func *f, lm_hoisting *h) {
  lm_module *m = f->module;
  marking marks = marking_of(f);
  ops all = {
      .a = m->arena,
  };
  lm_region_walk(f->body, op_collect, &all);
  bool *read = read_find(f, &marks, &all);
  uint64_t *memo = lm_calloc(m->n_values + 1, sizeof *memo);
  for (uint32_t k = 0; k < all.n; k++) {
    const lm_value *v = all.v[k]->n_out == 1 ? all.v[k]->out[0] : NULL;
    if (v && read[v->id] && marks.marks[v->id] & LM_OF_COSTLY && v->def->code != LM_OP_EXPAND)
      value_add(m, h, v, marks.param[v->id], !(marks.marks[v->id] & LM_OF_TRAINED), memo);
  }
  lm_free(memo);
  lm_free(read);
  lm_free(marks.marks);
  lm_free(marks.param);
}

// Functions that run between updates. Others change parameters, or compute a result of them once.
static bool is_hoisted_from(const lm_func *f) {
  static const lm_func_id ids[] = {
      LM_FUNC_LOSS,    LM_FUNC_MICRO,   LM_FUNC_EVAL,   LM_FUNC_APPLY,
      LM_FUNC_REQUEST, LM_FUNC_PREFILL, LM_FUNC_DECODE,
  };
  for (size_t i = 0; i < LM_COUNT(ids); i++)
    if (lm_func_key_parse(f->name).id == ids[i])
      return true;
  return false;
}

lm_hoisting lm_hoisting_find(lm_module *m) {
  lm_hoisting h = {0};
  for (lm_func *f = m->funcs; f; f = f->next)
    if (is_hoisted_from(f))
      func_find(f, &h);
  return h;
}

static lm_value *read_rule(lm_rewrite *r, lm_op *op) {
  const lm_hoisting *h = r->user;
  uintptr_t i = (uintptr_t)lm_idmap_get(&h->by_value, op->out[0]);
  if (!i)
    return NULL;
  const lm_hoisted *x = &h->v[i - 1];
  const lm_op *param = lm_idmap_get(&h->params, op->out[0]);
  lm_attr a = {.sym = x->name};
  lm_value *in[LM_RANK];
  uint32_t n = 0;
  for (uint32_t k = 0; param && k < param->n_in; k++) {
    const lm_op *loop = loop_of(param->in[k]);
    if (!loop)
      continue;
    bool back = is_backward(param, k);
    a.imm[2 * n] = back ? count_of(loop) - 1 : 0;
    a.imm[2 * n + 1] = back ? -1 : 1;
    in[n++] = param->in[k];
  }
  a.n_imm = (uint8_t)(2 * n);
  return lm_emit(&r->b, LM_OP_PARAM, in, n, &a, NULL);
}

void lm_hoisting_apply(lm_module *m, lm_hoisting *h) {
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, read_rule, h);
  lm_idmap_free(&h->by_value);
  lm_idmap_free(&h->params);
}

// ---- computing them

typedef struct computing {
  lm_builder *b;
  lm_idmap memo;
  bool copied;
  lm_value *index[LM_RANK]; // of the loops around, in the order of the stacked axes
} computing;

static lm_value *param_emit(computing *c, const lm_op *op) {
  lm_value *in[LM_RANK];
  lm_attr a = {
      .sym = op->attr.sym,
      .n_imm = op->attr.n_imm,
  };
  uint32_t level = 0;
  for (uint32_t i = 0; i < op->n_in; i++) {
    bool loop = loop_of(op->in[i]) != NULL;
    in[i] =
        loop ? c->index[level++] : lm_emit_const(c->b, op->in[i]->type, op->in[i]->def->attr.num);
    ascending(op, i, &a.imm[2 * i]);
  }
  lm_type t = op->out[0]->type;
  bool copy = c->copied && lm_dtype_is_half(t.dtype);
  lm_value *p = lm_emit(c->b, LM_OP_PARAM, in, op->n_in, &a, copy ? &t : NULL);
  return lm_emit_cast(c->b, p, (lm_dtype)t.dtype);
}

static lm_value *value_emit(computing *c, const lm_value *v) {
  const lm_op *op = v->def;
  lm_value *made = lm_idmap_get(&c->memo, v);
  if (made)
    return made;
  if (op->code == LM_OP_PARAM) {
    made = param_emit(c, op);
  } else {
    lm_value **in = LM_NEW_N(c->b->m->arena, lm_value *, op->n_in + 1);
    for (uint32_t i = 0; i < op->n_in; i++)
      in[i] = value_emit(c, op->in[i]);
    made = lm_emit(c->b, op->code, in, op->n_in, &op->attr, &v->type);
  }
  lm_idmap_set(&c->memo, v, made);
  return made;
}

static bool same_stack(lm_module *m, const lm_hoisted *x, const lm_hoisted *y) {
  const lm_global *a = lm_global_find(m, x->name);
  const lm_global *b = lm_global_find(m, y->name);
  return a->n_stack == b->n_stack &&
         !memcmp(a->type.axis, b->type.axis, (size_t)a->n_stack * sizeof *a->type.axis);
}

// A loop nest over the stacked axes from `level` on that computes n values, which replace v.
static void nest_emit(computing *c, const lm_hoisted *const *of, uint32_t n, int level,
                      lm_value **v) {
  lm_builder *b = c->b;
  const lm_global *g = lm_global_find(b->m, of[0]->name);
  if (level == g->n_stack) {
    for (uint32_t i = 0; i < n; i++)
      v[i] = value_emit(c, of[i]->like);
    return;
  }
  lm_region *parent = b->at;
  lm_axis axis = g->type.axis[level];
  lm_op *loop = lm_loop_begin(b, lm_axis_size(b->m, axis), axis, NULL, 0);
  c->index[level] = loop->body->args[0];
  nest_emit(c, of, n, level + 1, v);
  lm_loop_end(b, loop, NULL, 0, v, n);
  b->at = parent;
  b->before = NULL;
  for (uint32_t i = 0; i < n; i++)
    v[i] = loop->out[i];
}

void lm_hoisting_emit(lm_builder *b, const lm_hoisting *h, bool copied, bool trained,
                      lm_value **out) {
  lm_arena *a = b->m->arena;
  const lm_hoisted **group = LM_NEW_N(a, const lm_hoisted *, h->n + 1);
  lm_value **v = LM_NEW_N(a, lm_value *, h->n + 1);
  memset(out, 0, h->n * sizeof *out);
  for (uint32_t i = 0; i < h->n; i++) {
    uint32_t n = 0;
    computing c = {
        .b = b,
        .copied = copied,
    };
    for (uint32_t k = i; k < h->n && !out[i]; k++)
      if (!out[k] && !(trained && h->v[k].frozen) && same_stack(b->m, &h->v[i], &h->v[k]))
        group[n++] = &h->v[k];
    if (!n || group[0] != &h->v[i])
      continue;
    nest_emit(&c, group, n, 0, v);
    for (uint32_t k = 0; k < n; k++)
      out[group[k] - h->v] = v[k];
    lm_idmap_free(&c.memo);
  }
}
