// overlap.c - lets collectives run beside the computation.
//
// before: mesh dp = 2 rows zero 2
//         %s = reduce_scatter %g over(dp) (d) -> (d@dp)   accum @w, %s
//         %h = dot …
//         %t = reduce_scatter %h over(dp) (d) -> (d@dp)   accum @v, %t
// after:  mesh dp = 2 rows zero 2 overlap
//         %s = reduce_scatter %g over(dp) (d) -> (d@dp)
//         %h = dot …
//         %t = reduce_scatter %h over(dp) (d) -> (d@dp)
//         accum @w, %s   accum @v, %t
//
// With the flag `overlap` the planner ends a collective before the first step that needs its
// result, and starts the gathers of a loop's parameters one iteration ahead (plan/overlap.c). The
// pass moves collectives up to their operands and accums of their results down, so that other steps
// are between them. Of the gradients that are added over ranks at most WINDOW are under way in a
// region, which bounds the memory of their operands. No operation changes, so neither do bits.
// Declines: accums of a parameter to whose gradient the function adds elsewhere, since their order
// decides its bits; packed parameters.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"

enum {
  WINDOW = 2
};

typedef struct overlap {
  lm_module *m;
  lm_func *f;
  const uint32_t *uses; // by value id
} overlap;

static bool is_collective(const lm_op *op) {
  return lm_op_has(op, LM_T_COLLECTIVE);
}

// ---- collectives, up

static bool uses_result_of(const lm_op *op, const lm_op *def) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (op->in[i]->def == def)
      return true;
  return false;
}

// Not across loops: the result would need memory for as long.
static bool may_pass(const lm_op *op, const lm_op *other) {
  bool stops = other->code == LM_OP_LOOP || is_collective(other);
  bool writes = lm_op_has(other, LM_T_EFFECT) && other->code != LM_OP_ACCUM;
  return !stops && !writes && !uses_result_of(op, other);
}

static void collective_raise(lm_op *op) {
  lm_op *at = op;
  while (at->prev && may_pass(op, at->prev))
    at = at->prev;
  if (at == op)
    return;
  lm_op_remove(op);
  lm_op_insert_before(at, op);
}

// ---- accums, down

// Operations from the collective's result to the accum, which move together.
typedef struct chain {
  lm_op *v[4]; // the accum is first
  int n;
  lm_op *collective;
} chain;

static bool chain_find(const overlap *o, lm_op *accum, chain *out) {
  *out = (chain){.v = {accum}, .n = 1};
  for (lm_value *v = accum->in [accum->n_in - 1];;) {
    lm_op *op = v->def;
    if (!op || op->parent != accum->parent || op->n_out != 1 || o->uses[v->id] != 1)
      return false;
    out->collective = op;
    if (is_collective(op))
      return true;
    bool passes = op->n_in == 1 && (op->code == LM_OP_KERNEL || lm_op_has(op, LM_T_VIEW));
    if (!passes || out->n == (int)LM_COUNT(out->v))
      return false;
    out->v[out->n++] = op;
    v = op->in[0];
  }
}

typedef struct sym_count {
  lm_sym sym;
  int n;
} sym_count;

static void accum_count(lm_op *op, void *user) {
  sym_count *c = user;
  bool touches = op->code == LM_OP_ACCUM || op->code == LM_OP_GRADIENT;
  c->n += touches && op->attr.sym == c->sym;
}

static bool adds_alone(const overlap *o, const lm_op *accum) {
  const lm_global *g = lm_global_find(o->m, accum->attr.sym);
  sym_count c = {accum->attr.sym, 0};
  int64_t first;
  lm_region_walk(o->f->body, accum_count, &c);
  return c.n == 1 && !g->n_members && !lm_global_pack(o->m, g, &first);
}

static bool may_sink(const overlap *o, lm_op *op, chain *out) {
  return op->code == LM_OP_ACCUM && chain_find(o, op, out) && adds_alone(o, op);
}

static void chain_move(const chain *c, lm_op *before) {
  for (int i = c->n - 1; i >= 0; i--) {
    lm_op_remove(c->v[i]);
    lm_op_insert_before(before, c->v[i]);
  }
}

static void region_number(lm_region *r) {
  uint32_t n = 0;
  for (lm_op *op = r->first; op; op = op->next)
    op->mark = n++;
}

static void accums_sink(const overlap *o, lm_region *r) {
  chain waiting[WINDOW];
  int n = 0;
  region_number(r);
  for (lm_op *op = r->first, *next; op != r->last; op = next) {
    chain c;
    next = op->next;
    if (!may_sink(o, op, &c))
      continue;
    if (n == WINDOW) {
      bool behind = waiting[0].collective->mark < c.collective->mark;
      chain_move(&waiting[0], behind ? c.collective : op);
      waiting[0] = waiting[1];
      n--;
    }
    waiting[n++] = c;
  }
  for (int i = 0; i < n; i++)
    chain_move(&waiting[i], r->last);
}

// ---- the pass

static void region_overlap(const overlap *o, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (is_collective(op))
      collective_raise(op);
    if (op->code == LM_OP_LOOP)
      region_overlap(o, op->body);
  }
  accums_sink(o, r);
}

bool lm_pass_overlap(lm_module *m, const lm_pass_env *env) {
  for (int k = 0; k < m->mesh.n; k++)
    m->mesh.axis[k].overlap = true;
  for (lm_func *f = m->funcs; f && m->mesh.n; f = f->next) {
    uint32_t *uses = lm_func_uses(f);
    region_overlap(&(overlap){m, f, uses}, f->body);
    lm_free(uses);
  }
  return true;
}
