// ring_cache.c - gives the KV cache of an attention with a window the size of the window.
//
// before: axis t = 256 dyn 2, one = 1, s = 4096 dyn 1         a window of 500 positions
//         cache @k : f32[layers, b, s, g, e] stacked 1
//         cache @p : int[layers, b, s] stacked 1
//         func @decode(%pos: int[b, one], …, %at: int) { … loop 26 over(layers) %i … {
//           %k = append @k[%i], %at, %x (one) -> (s)
//           %p = append @p[%i], %at, %pos (one) -> (s)
//           %m = … and lt(expand %pos, add %p, 500)
//           … softmax over s of select(%m, %q %k, -1e30)
// after:  axis s.1 = 768 dyn 3 (1 most 768)
//         cache @k : f32[layers, b, s.1, g, e] stacked 1
//         cache @p.768 : int[layers, b, s.1] stacked 1
//         func @decode(…) { %slot = mod %at, 768 …
//           %k = append @k[%i], %slot, %x (one) -> (s.1)
//           %p.1 = append @p.768[%i], %slot, %pos …
//
// Position p is at index p mod n of the ring. The positions of a call, which begins at a multiple
// of the t of @prefill, are written before it reads, so n is a multiple of t and at least the
// window and t - 1 more: the first query of the call still finds its whole window. Positions that
// are older than the window may be in the ring or not, as the mask hides them. A query
// sees the same elements at the same indices however many positions are computed with it.
//
// Values along s that depend on a floating-point append are stored: operations relate them to each
// other, and those that are related, in both functions, have one ring. All their
// reductions over s must have a window by the proof of their mask (causal_mask.c), for
// tokens whose `pos` counts their positions in the cache. Other values along s, such as masks and
// the positions of keys, are computed for each ring, so that layers with and without a window may
// share them. Declines: operations that depend on the index along s; windows that are not much
// smaller than the cache; more kinds of rings than extents. Cost: linear walks, and the proofs.
#include <math.h>
#include <string.h>

#include "compiler/ops/interface.h"
#include "compiler/passes/causal/causal.h"
#include "compiler/passes/rewrite.h"

typedef enum {
  NONE,       // not along s
  REPLICATED, // depends on no stored value; computed for each ring
  STORED
} kind;

typedef struct ring {
  lm_axis s, axis; // of the cache before and after
  int64_t size;
  lm_value **copy;   // by value id: the replicated value along `axis`
  lm_value *slot[2]; // by function: the index of the call's first position
} ring;

typedef struct state {
  lm_module *m;
  lm_func *f[2]; // @prefill, @decode
  probe p;
  uint32_t n;       // values before the pass
  int64_t calls;    // positions of a call
  uint8_t *kinds;   // by value id
  uint32_t *parent; // by value id: of the sets of related values
  int64_t *back;    // by root: the window; 0: no reduction
  bool *blocked;    // by root: it has no ring
  ring **rings;     // by root; NULL: none
  lm_op **ops;      // of both functions, along s
  uint32_t n_ops, cap_ops;
  // Nothing has a ring: a loop carries values that may be masked scores, which no proof considers;
  // an append's position is no argument; or a function of another kind appends.
  bool declines;
} state;

// ---- values along the positions of a cache

// Its axis of positions of a cache; 0: none. *two: it has two of them.
static lm_axis along(const state *x, lm_type t, bool *two) {
  lm_axis s = 0;
  for (int i = 0; i < t.rank; i++) {
    bool is = x->p.is_history[t.axis[i]];
    *two |= is && s && s != t.axis[i];
    s = is ? t.axis[i] : s;
  }
  return s;
}

static bool is_along(const state *x, const lm_value *v) {
  bool two = false;
  return along(x, v->type, &two) != 0;
}

static bool is_stored(const state *x, const lm_value *v) {
  return v->id < x->n && x->kinds[v->id] == STORED;
}

static uint32_t root_of(const state *x, uint32_t id) {
  while (x->parent[id] != id)
    id = x->parent[id] = x->parent[x->parent[id]];
  return id;
}

static void back_raise(state *x, uint32_t root, int64_t back) {
  int64_t *most = &x->back[root];
  if (back > *most)
    *most = back;
}

static void relate(state *x, const lm_value *v, const lm_value *w) {
  uint32_t a = root_of(x, v->id);
  uint32_t b = root_of(x, w->id);
  if (a == b)
    return;
  x->parent[b] = a;
  x->blocked[a] |= x->blocked[b];
  back_raise(x, a, x->back[b]);
}

static bool reduces(const lm_op *op) {
  return op->code == LM_OP_SUM || op->code == LM_OP_MAX || op->code == LM_OP_DOT;
}

static bool names(const lm_op *op, lm_axis s) {
  bool found = false;
  for (int i = 0; i < op->attr.n_axes; i++)
    found |= op->attr.axes[i] == s;
  for (int i = 0; i < op->attr.n_to; i++)
    found |= op->attr.to[i] == s;
  return found;
}

static bool appends_to(const lm_op *op, lm_sym cache) {
  return op->code == LM_OP_APPEND && op->attr.sym == cache;
}

// Operands, then results.
static uint32_t values_count(const lm_op *op) {
  return op->n_in + op->n_out;
}

static lm_value *value_at(const lm_op *op, uint32_t i) {
  return i < op->n_in ? op->in[i] : op->out[i - op->n_in];
}

// True if the result does not depend on the order of the elements along s.
static bool is_movable(const lm_op *op, lm_axis s) {
  switch (op->code) {
  case LM_OP_IOTA: return false;
  case LM_OP_APPEND:
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_DOT: return true;
  case LM_OP_PERMUTE:
  case LM_OP_VIEW:
  case LM_OP_RENAME:
  case LM_OP_SLICE:
  case LM_OP_CONCAT:
  case LM_OP_GATHER: return !names(op, s);
  default: return lm_op_has(op, LM_T_ELEMENTWISE);
  }
}

// ---- which values are related, and their windows

// True if elements of v may be masked scores: only values that constants such as -1e30 are part of.
static bool is_masked(const state *x, const lm_value *v) {
  return !x->p.sketches[v->id].unknown;
}

// Records, for each result, whether it may hold masked scores, which the proof of the mask reads.
static void note(state *x, const lm_op *op) {
  bool masked = op->code == LM_OP_CONST && fabs(op->attr.num) >= LM_LARGE;
  for (uint32_t i = 0; i < op->n_in; i++)
    masked |= is_masked(x, op->in[i]);
  x->declines |= masked && op->code == LM_OP_YIELD;
  for (uint32_t i = 0; i < op->n_out; i++) {
    const lm_value *v = op->out[i];
    sketch *k = &x->p.sketches[v->id];
    k->most = INFINITY;
    k->unknown = !masked || k->visible;
    k->unknown |= !lm_dtype_is_float(v->type.dtype);
    k->unknown |= op->code == LM_OP_EXP;
  }
  if (op->n_out == 1)
    lm_fact_large(&x->p, op);
}

static void args_note(state *x, const lm_region *r) {
  for (uint32_t i = 0; i < r->n_args; i++) {
    const lm_value *v = r->args[i];
    x->p.sketches[v->id].unknown = true;
    if (!is_along(x, v))
      continue;
    x->kinds[v->id] = STORED;
    x->blocked[v->id] = true;
  }
}

// The stored value that the operation's stored operands and results are related to; NULL: it has
// none.
static const lm_value *related(state *x, const lm_op *op) {
  const lm_value *any = NULL;
  for (uint32_t i = 0; i < values_count(op); i++) {
    const lm_value *v = value_at(op, i);
    if (!is_stored(x, v))
      continue;
    if (any)
      relate(x, any, v);
    any = v;
  }
  return any;
}

static void window_note(state *x, const lm_op *op, const lm_value *stored, int64_t most) {
  int64_t back = lm_mask_back(&x->p, op, most);
  if (!stored)
    return;
  uint32_t root = root_of(x, stored->id);
  x->blocked[root] |= !back;
  back_raise(x, root, back);
}

// The greatest window whose ring is smaller than the cache.
static int64_t most_back(const state *x, lm_axis s) {
  return lm_axis_size(x->m, s) - 2 * x->calls + 1;
}

static void op_visit(lm_op *op, void *user) {
  state *x = user;
  lm_axis s = 0;
  bool two = false;
  bool stored = op->code == LM_OP_APPEND && op->out[0]->type.dtype != LM_INT;
  for (uint32_t i = 0; i < values_count(op); i++) {
    const lm_value *v = value_at(op, i);
    lm_axis a = along(x, v->type, &two);
    two |= a && s && a != s;
    s = a ? a : s;
    stored |= i < op->n_in && is_stored(x, v);
  }
  bool fixed = two || !is_movable(op, s) || most_back(x, s) < 1;
  for (uint32_t i = 0; s && i < op->n_out; i++)
    if (is_along(x, op->out[i]))
      x->kinds[op->out[i]->id] = stored || fixed ? STORED : REPLICATED;
  if (op->body)
    args_note(x, op->body);
  if (s) {
    const lm_value *any = related(x, op);
    if (any && fixed)
      x->blocked[root_of(x, any->id)] = true;
    else if (reduces(op) && lm_attr_has_axis(&op->attr, s) && !fixed)
      window_note(x, op, any, most_back(x, s));
    LM_PUSH(x->p.a, x->ops, x->n_ops, x->cap_ops) = op;
  }
  note(x, op);
}

// The same cache is one set of values in both functions.
static void caches_relate(state *x) {
  for (uint32_t i = 0; i < x->n_ops; i++)
    for (uint32_t k = 0; k < i; k++) {
      const lm_op *a = x->ops[i];
      const lm_op *b = x->ops[k];
      if (a->code != LM_OP_APPEND || !appends_to(b, a->attr.sym))
        continue;
      if (is_stored(x, a->out[0]))
        relate(x, a->out[0], b->out[0]);
    }
}

static lm_axis positions_of(const lm_func *f) {
  return f->body->args[0]->type.axis[1];
}

static void func_visit(state *x, lm_func *f) {
  lm_region *body = f->body;
  bool *is_position = &x->p.is_position[positions_of(f)];
  args_note(x, body);
  *is_position = true;
  lm_region_walk(body, op_visit, x);
  *is_position = false;
}

// ---- rings

static ring *ring_of(const state *x, const lm_value *v) {
  return is_stored(x, v) ? x->rings[root_of(x, v->id)] : NULL;
}

static ring *ring_make(state *x, lm_axis s, int64_t size) {
  for (uint32_t i = 0; i < x->n; i++) {
    ring *r = x->rings[i];
    if (r && r->s == s && r->size == size)
      return r;
  }
  int dyn = lm_extent_most(x->m, x->m->axes[s].dyn, size);
  if (dyn < 0)
    return NULL;
  ring *r = LM_NEW(x->p.a, ring);
  *r = (ring){
      .s = s,
      .size = size,
      .copy = LM_NEW_N(x->p.a, lm_value *, x->n + 1),
  };
  const char *base = x->m->axes[s].name;
  size_t length = lm_axis_base_length(base);
  lm_sym name = lm_intern_n(x->m->ctx->intern, base, length);
  r->axis = lm_axis_add(x->m, name, size, dyn);
  return r;
}

static void rings_make(state *x) {
  for (uint32_t i = 0; i < x->n_ops; i++) {
    const lm_op *op = x->ops[i];
    if (op->code != LM_OP_APPEND || !is_stored(x, op->out[0]))
      continue;
    uint32_t root = root_of(x, op->out[0]->id);
    int64_t back = x->back[root];
    if (x->blocked[root] || !back || x->rings[root])
      continue;
    int64_t least = back + x->calls - 1;
    int64_t calls = (least + x->calls - 1) / x->calls;
    x->rings[root] = ring_make(x, op->attr.to[0], calls * x->calls);
  }
}

static lm_type on_ring(const ring *r, lm_type t) {
  int i = lm_type_find(t, r->s);
  if (i >= 0)
    t.axis[i] = r->axis;
  return t;
}

static void axis_move(const ring *r, lm_axis *a) {
  if (*a == r->s)
    *a = r->axis;
}

static void attr_move(const ring *r, lm_attr *a) {
  for (int i = 0; i < a->n_axes; i++)
    axis_move(r, &a->axes[i]);
  for (int i = 0; i < a->n_to; i++)
    axis_move(r, &a->to[i]);
}

// The index of the call's first position, computed at the beginning of the function.
static lm_value *slot_of(const state *x, ring *r, const lm_op *append) {
  const lm_func *f = append->parent->func;
  lm_value **slot = &r->slot[f == x->f[1]];
  if (!*slot) {
    lm_builder b = {
        .m = x->m,
        .at = f->body,
        .before = f->body->first,
        .loc = append->loc,
    };
    lm_value *at = append->in[append->n_in - 2];
    lm_value *size = lm_emit_const(&b, at->type, (double)r->size);
    *slot = lm_emit2(&b, LM_OP_MOD, at, size);
  }
  return *slot;
}

// ---- values replicated for each ring

static lm_value *copy_after(const state *x, ring *r, lm_op *op, lm_value *const *in,
                            const lm_attr *attr) {
  lm_type type = on_ring(r, op->out[0]->type);
  lm_builder b = {
      .m = x->m,
      .at = op->parent,
      .before = op->next,
      .loc = op->loc,
  };
  lm_value *v = lm_emit(&b, op->code, in, op->n_in, attr, &type);
  v->name = op->out[0]->name;
  return v;
}

static lm_value **operands_of(const state *x, const lm_op *op) {
  lm_value **in = LM_NEW_N(x->p.a, lm_value *, op->n_in + 1);
  memcpy(in, op->in, op->n_in * sizeof *in);
  return in;
}

// Copies the appends to a cache in both functions; the new cache has its name and the ring's size.
static void appends_copy(const state *x, ring *r, lm_sym cache) {
  const lm_global *g = lm_global_find(x->m, cache);
  lm_type type = on_ring(r, g->type);
  long long size = (long long)r->size;
  const char *text = lm_arena_printf(x->m->arena, "%s.%lld", cache, size);
  lm_sym name = LM_SYM(x->m->ctx, text);
  lm_global_add(x->m, LM_GLOBAL_CACHE, name, type, g->n_stack);
  for (uint32_t i = 0; i < x->n_ops; i++) {
    lm_op *op = x->ops[i];
    if (!appends_to(op, cache))
      continue;
    lm_attr attr = op->attr;
    lm_value **in = operands_of(x, op);
    attr_move(r, &attr);
    attr.sym = name;
    in[op->n_in - 2] = slot_of(x, r, op);
    r->copy[op->out[0]->id] = copy_after(x, r, op, in, &attr);
  }
}

static lm_value *replicate(const state *x, ring *r, lm_value *v) {
  lm_op *op = v->def;
  lm_value **copy = &r->copy[v->id];
  if (*copy)
    return *copy;
  if (op->code == LM_OP_APPEND) {
    appends_copy(x, r, op->attr.sym);
    return *copy;
  }
  lm_attr attr = op->attr;
  lm_value **in = operands_of(x, op);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (is_along(x, op->in[i]))
      in[i] = replicate(x, r, op->in[i]);
  attr_move(r, &attr);
  return *copy = copy_after(x, r, op, in, &attr);
}

// ---- stored values along a ring

static void op_move(const state *x, lm_op *op) {
  ring *r = NULL;
  for (uint32_t i = 0; i < values_count(op) && !r; i++)
    r = ring_of(x, value_at(op, i));
  if (!r)
    return;
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_value **in = &op->in[i];
    if (!is_stored(x, *in) && is_along(x, *in))
      *in = replicate(x, r, *in);
  }
  for (uint32_t i = 0; i < op->n_out; i++) {
    lm_value *v = op->out[i];
    v->type = on_ring(r, v->type);
  }
  attr_move(r, &op->attr);
  if (op->code != LM_OP_APPEND)
    return;
  lm_global *g = lm_global_find(x->m, op->attr.sym);
  g->type = on_ring(r, g->type);
  op->in[op->n_in - 2] = slot_of(x, r, op);
}

// ---- caches that only rings read

static void cache_drop(lm_module *m, lm_sym name) {
  lm_global *g = lm_global_find(m, name);
  uint32_t i = (uint32_t)(g - m->globals);
  memmove(g, g + 1, (m->n_globals - i - 1) * sizeof *g);
  m->n_globals--;
}

static bool is_replicated(const state *x, const lm_op *op) {
  return op->n_out == 1 && x->kinds[op->out[0]->id] == REPLICATED;
}

// The unused replicated values but appends, from the last one on, so that unused operands follow.
static void replicated_remove(state *x, uint32_t *uses) {
  for (uint32_t k = x->n_ops; k-- > 0;) {
    lm_op *op = x->ops[k];
    if (!is_replicated(x, op) || op->code == LM_OP_APPEND || uses[op->out[0]->id])
      continue;
    for (uint32_t i = 0; i < op->n_in; i++)
      uses[op->in[i]->id]--;
    lm_op_remove(op);
  }
}

static bool cache_is_used(const state *x, lm_sym cache, const uint32_t *uses) {
  bool used = false;
  for (uint32_t i = 0; i < x->n_ops; i++) {
    const lm_op *op = x->ops[i];
    used |= appends_to(op, cache) && uses[op->out[0]->id];
  }
  return used;
}

// The caches of replicated values that no operation of either function reads any more.
static void appends_remove(const state *x, const uint32_t *uses) {
  for (uint32_t i = 0; i < x->n_ops; i++) {
    const lm_op *op = x->ops[i];
    lm_sym cache = op->attr.sym;
    if (op->code != LM_OP_APPEND || !is_replicated(x, op))
      continue;
    if (cache_is_used(x, cache, uses) || !lm_global_find(x->m, cache))
      continue;
    for (uint32_t k = i; k < x->n_ops; k++)
      if (appends_to(x->ops[k], cache))
        lm_op_remove(x->ops[k]);
    cache_drop(x->m, cache);
  }
}

static void unused_remove(state *x) {
  uint32_t *uses = LM_NEW_N(x->p.a, uint32_t, x->m->n_values + 1);
  for (int k = 0; k < 2; k++) {
    uint32_t *own = lm_func_uses(x->f[k]);
    for (uint32_t i = 0; i < x->m->n_values; i++)
      uses[i] += own[i];
    lm_free(own);
  }
  replicated_remove(x, uses);
  appends_remove(x, uses);
}

// ---- the pass

static void history_find(lm_op *op, void *user) {
  state *x = user;
  const lm_func *f = op->parent->func;
  if (op->code != LM_OP_APPEND)
    return;
  lm_axis s = op->attr.to[0];
  int dyn = x->m->axes[s].dyn;
  if (dyn && !x->m->extents[dyn - 1].of)
    x->p.is_history[s] = true;
  const lm_value *at = op->in[op->n_in - 2];
  x->declines |= at->region != f->body;
  x->declines |= at->def != NULL;
  x->declines |= f != x->f[0] && f != x->f[1];
}

static void state_make(state *x, lm_module *m) {
  lm_arena *a = lm_arena_create();
  uint32_t n = m->n_values + 1;
  x->m = m;
  x->n = n;
  uint32_t axes = m->n_axes + LM_EXTENTS; // with those of rings
  x->calls = lm_axis_size(m, positions_of(x->f[0]));
  x->p = (probe){
      .m = m,
      .a = a,
      .facts = LM_NEW_N(a, fact, n),
      .sketches = LM_NEW_N(a, sketch, n),
      .is_position = LM_NEW_N(a, bool, axes),
      .is_history = LM_NEW_N(a, bool, axes),
  };
  x->kinds = LM_NEW_N(a, uint8_t, n);
  x->parent = LM_NEW_N(a, uint32_t, n);
  x->back = LM_NEW_N(a, int64_t, n);
  x->blocked = LM_NEW_N(a, bool, n);
  x->rings = LM_NEW_N(a, ring *, n);
  for (uint32_t i = 0; i < n; i++)
    x->parent[i] = i;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, history_find, x);
}

static bool is_of_positions(const lm_func *f) {
  return f && f->body->n_args && f->body->args[0]->type.rank == 2;
}

bool lm_pass_ring_cache(lm_module *m, const lm_pass_env *env) {
  lm_func *prefill = lm_func_get(m, LM_FUNC_PREFILL, 0);
  lm_func *decode = lm_func_get(m, LM_FUNC_DECODE, 0);
  state x = {.f = {prefill, decode}};
  if (!is_of_positions(prefill) || !is_of_positions(decode))
    return true;
  state_make(&x, m);
  for (int k = 0; k < 2; k++)
    func_visit(&x, x.f[k]);
  caches_relate(&x);
  if (!x.declines)
    rings_make(&x);
  for (uint32_t i = 0; i < x.n_ops; i++)
    op_move(&x, x.ops[i]);
  unused_remove(&x);
  lm_arena_destroy(x.p.a);
  return true;
}
