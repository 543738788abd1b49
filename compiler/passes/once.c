// once.c - computes what depends on the columns of a request once, not for each token.
//
// before: func @request(%tok, …, %source: int[b, m]) { … }      three times the same body
//         func @decode(%tok: int[b, t], …, %source: int[b, m]) {
//           %y = loop … encoder, from %source                    no axis of positions
//           %x = loop 12 over(layers) %i carry(%c = %h) {
//             %w = param @wk[%i]   %k = dot %y, %w over(d)       no axis of positions
//             %a = dot %q, %k over(e) …
// after:  func @request(%source) {
//           %y = loop … encoder
//           loop 12 over(layers) %i { %w = param @wk[%i]   %k = dot %y, %w   retain @once.0[%i], %k
//           }
//         func @decode(%tok, …) {
//           %x = loop 12 over(layers) %i carry(%c = %h) {
//             %k = recall @once.0[%i]   %a = dot %q, %k over(e) …
//
// Values are of the positions if they depend on tok, pos, seg or a cache, or have an axis of
// positions; of the request if they depend on its columns alone. @request keeps each value of the
// request that an operation of the positions reads, in a cache with an index for each loop around
// the value; @prefill and @decode read it there. Lowering makes the three functions equal up to
// the number of positions, so the k-th such value is the same in all of them. Declines: modules
// without @request. Cost: a few linear walks.
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

typedef enum {
  FIXED,   // parameters and constants alone
  REQUEST, // and columns of the request
  POSITIONS
} kind;

typedef struct splitter {
  lm_module *m;
  lm_func *f;
  lm_axis t;       // of tok
  uint8_t *kinds;  // by value id
  lm_value **kept; // by value id: its value in the cache
  uint32_t n;      // ids of these tables
  uint32_t n_kept;
  bool changed;
} splitter;

// ---- the kind of each value

static void raise_kind(splitter *s, const lm_value *v, kind k) {
  for (int i = 0; i < v->type.rank; i++)
    if (v->type.axis[i] == s->t || s->m->axes[v->type.axis[i]].dyn)
      k = POSITIONS;
  if (k <= (kind)s->kinds[v->id])
    return;
  s->kinds[v->id] = (uint8_t)k;
  s->changed = true;
}

static void region_find(splitter *s, lm_region *r);

static void loop_find(splitter *s, lm_op *loop) {
  const lm_op *yield = loop->body->last;
  for (uint32_t i = 0; i < loop->n_in; i++)
    raise_kind(s, loop->body->args[i + 1], (kind)s->kinds[loop->in[i]->id]);
  region_find(s, loop->body);
  for (uint32_t i = 0; i < loop->n_out; i++) {
    raise_kind(s, loop->out[i], (kind)s->kinds[yield->in[i]->id]);
    if (i < loop->n_in)
      raise_kind(s, loop->body->args[i + 1], (kind)s->kinds[loop->out[i]->id]);
    if (i < loop->n_in)
      raise_kind(s, loop->out[i], (kind)s->kinds[loop->in[i]->id]);
  }
}

static void region_find(splitter *s, lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next) {
    if (op->code == LM_OP_LOOP) {
      loop_find(s, op);
      continue;
    }
    kind k = lm_op_info_of(op)->traits & LM_T_EFFECT ? POSITIONS : FIXED;
    for (uint32_t i = 0; i < op->n_in; i++)
      if ((kind)s->kinds[op->in[i]->id] > k)
        k = (kind)s->kinds[op->in[i]->id];
    for (uint32_t i = 0; i < op->n_out; i++)
      raise_kind(s, op->out[i], k);
  }
}

static void kinds_find(splitter *s) {
  for (uint32_t i = 0; i < s->f->body->n_args; i++) {
    const lm_value *v = s->f->body->args[i];
    raise_kind(s, v, lm_column_name_of(v->name) ? REQUEST : POSITIONS);
  }
  do {
    s->changed = false;
    region_find(s, s->f->body);
  } while (s->changed);
}

// ---- caches

static lm_type type_in_loops(const lm_value *v, int *n_loops) {
  lm_type t = {.dtype = v->type.dtype};
  lm_axis loops[LM_RANK];
  int n = 0;
  for (const lm_op *o = v->region->owner; o && n < LM_RANK; o = o->parent->owner)
    loops[n++] = o->attr.axes[0];
  *n_loops = n;
  for (int i = n - 1; i >= 0; i--)
    t.axis[t.rank++] = loops[i];
  for (int i = 0; i < v->type.rank; i++)
    t.axis[t.rank++] = v->type.axis[i];
  return t;
}

// The indices of a value's cache: those of the loops around it, the outermost first.
static uint32_t indices_of(const lm_value *v, int n_loops, lm_value **in, lm_attr *attr) {
  int k = n_loops;
  for (const lm_op *o = v->region->owner; o; o = o->parent->owner)
    in[--k] = o->body->args[0];
  for (k = 0; k < n_loops; k++) {
    attr->imm[attr->n_imm++] = 0;
    attr->imm[attr->n_imm++] = 1;
  }
  return (uint32_t)n_loops;
}

// Puts the builder behind the value's definition.
static lm_builder behind(const splitter *s, const lm_value *v) {
  lm_op *next = v->def ? v->def->next : v->region->first;
  return (lm_builder){s->m, v->region, next, v->def ? v->def->loc : next->loc, 0};
}

static void value_keep(splitter *s, lm_value *v) {
  int n_loops;
  lm_attr attr = {0};
  lm_value *in[LM_RANK + 1];
  lm_type type = type_in_loops(v, &n_loops);
  lm_builder b = behind(s, v);
  attr.sym = LM_SYM(s->m->ctx, lm_arena_printf(s->m->arena, "once.%u", s->n_kept++));
  const lm_global *g = lm_global_find(s->m, attr.sym);
  if (!g)
    g = lm_global_add(s->m, LM_GLOBAL_CACHE, attr.sym, type, n_loops);
  LM_ASSERT(lm_type_equal(g->type, type));
  uint32_t n = indices_of(v, n_loops, in, &attr);
  if (s->f->key.id != LM_FUNC_REQUEST) {
    s->kept[v->id] = lm_emit(&b, LM_OP_RECALL, in, n, &attr, NULL);
    s->kept[v->id]->name = v->name;
    return;
  }
  in[n] = v;
  lm_emit_op(&b, LM_OP_RETAIN, in, n + 1, &attr, NULL);
  s->kept[v->id] = v;
}

// ---- uses

static kind use_kind(const splitter *s, const lm_op *op, uint32_t i) {
  if (op->code == LM_OP_RETURN)
    return POSITIONS;
  const lm_op *loop = op->code == LM_OP_YIELD ? op->parent->owner : op;
  if (loop->code == LM_OP_LOOP)
    return (kind)s->kinds[loop->out[i]->id];
  return op->n_out ? (kind)s->kinds[op->out[0]->id] : POSITIONS;
}

static void use_split(splitter *s, lm_op *op, uint32_t i) {
  lm_value *v = op->in[i];
  if (v->id >= s->n || s->kinds[v->id] != REQUEST || use_kind(s, op, i) != POSITIONS)
    return;
  if (!s->kept[v->id])
    value_keep(s, v);
  op->in[i] = s->kept[v->id];
}

static bool is_own(const splitter *s, const lm_op *op) {
  return op->code == LM_OP_RETAIN && op->in[op->n_in - 1]->id < s->n &&
         s->kept[op->in[op->n_in - 1]->id] == op->in[op->n_in - 1];
}

static void region_split(splitter *s, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (is_own(s, op))
      continue;
    for (uint32_t i = 0; i < op->n_in; i++)
      use_split(s, op, i);
    if (op->code == LM_OP_LOOP)
      region_split(s, op->body);
  }
}

// ---- @request has neither results nor other effects

static void effects_remove(splitter *s, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (op->code == LM_OP_LOOP)
      effects_remove(s, op->body);
    else if (lm_op_info_of(op)->traits & LM_T_EFFECT && !is_own(s, op))
      lm_op_remove(op);
  }
}

static void func_split(lm_module *m, lm_func *f) {
  splitter s = {
      .m = m,
      .f = f,
      .t = f->body->args[0]->type.axis[1],
      .n = m->n_values + 1,
  };
  s.kinds = lm_calloc(s.n, 1);
  s.kept = lm_calloc(s.n, sizeof(lm_value *));
  kinds_find(&s);
  region_split(&s, f->body);
  if (f->key.id == LM_FUNC_REQUEST) {
    effects_remove(&s, f->body);
    f->body->last->n_in = f->n_out = 0;
  }
  lm_free(s.kinds);
  lm_free(s.kept);
}

static void args_prune(lm_func *f) {
  uint32_t *uses = lm_func_uses(f);
  uint32_t n = 0;
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    lm_value *v = f->body->args[i];
    bool column = lm_column_name_of(v->name) != NULL;
    if (!uses[v->id] && (column || f->key.id == LM_FUNC_REQUEST))
      continue;
    v->index = n;
    f->body->args[n++] = v;
  }
  f->body->n_args = n;
  lm_free(uses);
}

bool lm_pass_once(lm_module *m, const lm_pass_env *env) {
  static const lm_func_id SPLIT[] = {LM_FUNC_REQUEST, LM_FUNC_PREFILL, LM_FUNC_DECODE};
  if (!lm_func_get(m, LM_FUNC_REQUEST, 0))
    return true;
  for (size_t i = 0; i < LM_COUNT(SPLIT); i++)
    func_split(m, lm_func_get(m, SPLIT[i], 0));
  lm_pass_dce(m, env);
  for (size_t i = 0; i < LM_COUNT(SPLIT); i++)
    args_prune(lm_func_get(m, SPLIT[i], 0));
  return true;
}
