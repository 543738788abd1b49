// dce.c - dead code elimination.
//
// before: %a = exp %x
//         %y, %z, %s = loop 8 over(l) %i carry(%c = %x, %d = %w) { … yield %c2, %d, %e }
//         return %y
// after:  %y = loop 8 over(l) %i carry(%c = %x) { … yield %c2 }   return %y
//
// Live are operations with effects, the results of functions, and transitively the operands of live
// operations. The pass removes from a loop the stacked results that have no live use, and the
// carries that neither a live result nor another live value of the body depends on. It removes a
// loop or kernel without live results and without effects. Declines: functions are kept. Cost: a
// few linear walks.
#include <string.h>
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"

typedef struct liveness {
  uint8_t *live;
  bool changed;
} liveness; // by value id; op->mark: 1 is live

static void mark_live(liveness *l, const lm_value *v) {
  l->changed |= !l->live[v->id];
  l->live[v->id] = 1;
}

static bool any_live(const liveness *l, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    if (l->live[op->out[i]->id])
      return true;
  return false;
}

static bool mark_region(liveness *l, lm_region *r);

// A carry is live if its result or its argument is; then its initial value and its next value are
// live.
static void mark_loop(liveness *l, lm_op *op) {
  lm_op *yield = op->body->last;
  for (uint32_t i = 0; i < op->n_out; i++) {
    bool carried = i < op->n_in;
    if (carried && l->live[op->body->args[i + 1]->id])
      mark_live(l, op->out[i]);
    if (!l->live[op->out[i]->id])
      continue;
    mark_live(l, yield->in[i]);
    if (!carried)
      continue;
    mark_live(l, op->body->args[i + 1]);
    mark_live(l, op->in[i]);
  }
}

// Kernels, scans and attends are kept or removed as a whole: a kernel with fewer results would be
// another kernel, which may round differently.
static void mark_whole(liveness *l, lm_op *op) {
  for (uint32_t i = 0; i < op->body->last->n_in; i++)
    mark_live(l, op->body->last->in[i]);
  for (uint32_t i = 0; i < op->n_in; i++)
    mark_live(l, op->in[i]);
}

// True if an operation in r has an effect.
static bool mark_region(liveness *l, lm_region *r) {
  bool runs = false;
  for (lm_op *op = r->last; op; op = op->prev) {
    bool effect = lm_op_info_of(op)->traits & LM_T_EFFECT || op->code == LM_OP_RETURN ||
                  op->code == LM_OP_CALL;
    if (op->body)
      effect |= mark_region(l, op->body);
    op->mark = effect || any_live(l, op) || op->code == LM_OP_YIELD;
    runs |= effect;
    if (!op->mark || op->code == LM_OP_YIELD)
      continue;
    if (op->code == LM_OP_LOOP)
      mark_loop(l, op);
    else if (lm_op_isolated(op))
      mark_whole(l, op);
    else
      for (uint32_t i = 0; i < op->n_in; i++)
        mark_live(l, op->in[i]);
  }
  return runs;
}

// Keeps the entries of v whose result, at the same index, is live. Returns their number.
static uint32_t values_keep(const liveness *l, lm_value **v, lm_value *const *results, uint32_t n) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; i++)
    if (l->live[results[i]->id])
      v[kept++] = v[i];
  return kept;
}

static void renumber(lm_value **v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    v[i]->index = i;
}

static void prune_loop(const liveness *l, lm_op *op) {
  lm_region *r = op->body;
  lm_op *yield = r->last;
  yield->n_in = values_keep(l, yield->in, op->out, op->n_out);
  uint32_t carried = values_keep(l, r->args + 1, op->out, op->n_in);
  op->n_in = values_keep(l, op->in, op->out, op->n_in);
  r->n_args = carried + 1;
  uint32_t n = 0;
  for (uint32_t i = 0; i < op->n_out; i++)
    if (l->live[op->out[i]->id])
      op->out[n++] = op->out[i];
  op->n_out = n;
  renumber(op->out, op->n_out);
  renumber(r->args, r->n_args);
}

static void sweep(const liveness *l, lm_region *r) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    if (!op->mark) {
      lm_op_remove(op);
      continue;
    }
    if (op->body)
      sweep(l, op->body);
    if (op->code == LM_OP_LOOP)
      prune_loop(l, op);
  }
}

bool lm_pass_dce(lm_module *m, const lm_pass_env *env) {
  for (lm_func *f = m->funcs; f; f = f->next) {
    liveness l = {lm_calloc((size_t)m->n_values + 1, 1), true};
    while (l.changed) {
      l.changed = false;
      mark_region(&l, f->body);
    }
    sweep(&l, f->body);
    lm_free(l.live);
  }
  return true;
}
