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
// Declines: as lm_sum_chain_find does. A bucket of sums (pass bucket) counts as one.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "compiler/passes/sum_chain.h"

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

// Sums of gradients that wait for their accum, from which on they are ended.
typedef struct waiting {
  lm_sum_chain *v;
  uint32_t n, cap;
} waiting;

// Of a bucket of sums, the first one stands for all.
static lm_op *unit_of(const overlap *o, const lm_sum_chain *c) {
  return lm_bucket_first(o->m, c->collective);
}

// How many buckets, or single sums, wait beside that of c.
static int units_count(const overlap *o, const waiting *w, const lm_sum_chain *c) {
  const lm_op *last = unit_of(o, c);
  int n = 0;
  for (uint32_t i = 0; i < w->n; i++) {
    const lm_op *unit = unit_of(o, &w->v[i]);
    n += unit != last && (!i || unit != unit_of(o, &w->v[i - 1]));
  }
  return n;
}

// Ends the oldest bucket or sum in front of the sum of c, or in front of its accum.
static void oldest_end(const overlap *o, waiting *w, const lm_sum_chain *c) {
  const lm_op *oldest = unit_of(o, &w->v[0]);
  lm_op *at = unit_of(o, c);
  at = oldest->mark < at->mark ? at : c->v[0];
  uint32_t n = 0;
  for (uint32_t i = 0; i < w->n; i++)
    if (unit_of(o, &w->v[i]) == oldest)
      lm_sum_chain_move(&w->v[i], at);
    else
      w->v[n++] = w->v[i];
  w->n = n;
}

static void accums_sink(const overlap *o, lm_region *r) {
  waiting w = {0};
  lm_region_number(r);
  for (lm_op *op = r->first, *next; op != r->last; op = next) {
    lm_sum_chain c;
    next = op->next;
    if (!lm_sum_chain_find(o->m, o->f, o->uses, op, &c))
      continue;
    while (units_count(o, &w, &c) >= WINDOW)
      oldest_end(o, &w, &c);
    LM_PUSH(o->m->arena, w.v, w.n, w.cap) = c;
  }
  for (uint32_t i = 0; i < w.n; i++)
    lm_sum_chain_move(&w.v[i], r->last);
}

// ---- the pass

static void region_overlap(const overlap *o, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (is_collective(op) && !lm_sum_in_bucket(o->m, op))
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
