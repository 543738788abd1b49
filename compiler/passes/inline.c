// inline.c - replaces calls by the bodies of the functions.
//
// before: %y = call @rmsnorm(%x, %w) : f32[b, t, d]
// after:  %sq = mul %x, %x … %y = mul %xn, %w            the operations of @rmsnorm, on %x and %w
//
// Inlined operations have the source location of the call, which is in the user's program. A call
// marked `recompute` marks all its operations; a call marked `save` marks its results. Functions
// that were called are removed. Declines: recursive functions are an error. Cost: the module grows
// by the size of the body per call.
#include <string.h>
#include "compiler/passes/pass.h"
#include "compiler/passes/rewrite.h"
#include "runtime/base/diag_code.h"

typedef enum {
  FRESH,
  ACTIVE,
  DONE
} visit;
typedef struct inliner {
  lm_module *m;
  lm_func **funcs;
  visit *state;
  bool *called;
  uint32_t n;
  lm_value **copy; // by value id of a callee: its copy at the call; NULL between calls
  uint32_t n_copy;
  bool ok;
} inliner;

static uint32_t index_of(const inliner *x, const char *name) {
  lm_func *f = lm_func_find(x->m, name);
  for (uint32_t i = 0; i < x->n; i++)
    if (x->funcs[i] == f)
      return i;
  LM_BUG("call of @%s, which is not a function", name);
}

static void copy_reserve(inliner *x) {
  uint32_t n = x->m->n_values;
  if (n <= x->n_copy)
    return;
  n = n > 2 * x->n_copy ? n : 2 * x->n_copy;
  x->copy = lm_realloc(x->copy, n * sizeof *x->copy);
  memset(x->copy + x->n_copy, 0, (n - x->n_copy) * sizeof *x->copy);
  x->n_copy = n;
}

static void copy_forget(lm_value **copy, const lm_region *r) {
  for (uint32_t i = 0; i < r->n_args; i++)
    copy[r->args[i]->id] = NULL;
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_out; i++)
      copy[op->out[i]->id] = NULL;
    if (op->body)
      copy_forget(copy, op->body);
  }
}

// Inserts the callee's operations before the call and maps the call's results to their
// replacements.
static void expand_call(inliner *x, lm_op *call, const lm_func *callee, lm_idmap *map) {
  lm_builder b = {x->m, call->parent, call, call->loc};
  copy_reserve(x);
  lm_value **copy = x->copy;
  for (uint32_t i = 0; i < call->n_in; i++)
    copy[callee->body->args[i]->id] = call->in[i];
  const lm_op *end = callee->body->last;
  uint32_t n_values = x->m->n_values;
  for (const lm_op *op = callee->body->first; op != end; op = op->next) {
    lm_op *here = lm_op_clone(&b, op, copy);
    here->loc = call->loc;
    if (lm_remat_choice(call->remat) != LM_REMAT_SAVE && call->remat)
      here->remat = call->remat;
  }
  for (uint32_t i = 0; i < call->n_out; i++) {
    lm_value *result = end->in[i];
    lm_value *here = result->id < n_values && copy[result->id] ? copy[result->id] : result;
    if (call->out[i]->name && here->def)
      here->name = call->out[i]->name;
    if (lm_remat_choice(call->remat) == LM_REMAT_SAVE && here->def)
      here->def->remat = call->remat;
    lm_idmap_set(map, call->out[i], here);
  }
  copy_forget(copy, callee->body);
  lm_op_remove(call);
}

static void visit_func(inliner *x, uint32_t k);

static void visit_region(inliner *x, lm_region *r, lm_idmap *map) {
  for (lm_op *op = r->first, *next; op; op = next) {
    next = op->next;
    for (uint32_t i = 0; i < op->n_in; i++)
      while (lm_idmap_get(map, op->in[i]))
        op->in[i] = lm_idmap_get(map, op->in[i]);
    if (op->body)
      visit_region(x, op->body, map);
    if (op->code != LM_OP_CALL)
      continue;
    uint32_t k = index_of(x, op->attr.sym);
    x->called[k] = true;
    if (x->state[k] == ACTIVE)
      LM_REPORT(x->m->ctx, op->loc, E901, op->attr.sym);
    x->ok &= x->state[k] != ACTIVE;
    if (!x->ok)
      return;
    visit_func(x, k);
    if (x->ok)
      expand_call(x, op, x->funcs[k], map);
  }
}

static void visit_func(inliner *x, uint32_t k) {
  if (x->state[k] == DONE)
    return;
  lm_idmap map = {0};
  x->state[k] = ACTIVE;
  visit_region(x, x->funcs[k]->body, &map);
  x->state[k] = DONE;
  lm_idmap_free(&map);
}

bool lm_pass_inline(lm_module *m, const lm_pass_env *env) {
  inliner x = {
      .m = m,
      .ok = true,
  };
  for (lm_func *f = m->funcs; f; f = f->next)
    x.n++;
  x.funcs = LM_NEW_N(m->arena, lm_func *, x.n + 1);
  x.state = LM_NEW_N(m->arena, visit, x.n + 1);
  x.called = LM_NEW_N(m->arena, bool, x.n + 1);
  uint32_t n = 0;
  for (lm_func *f = m->funcs; f; f = f->next)
    x.funcs[n++] = f;
  for (uint32_t i = 0; i < n && x.ok; i++)
    visit_func(&x, i);
  for (uint32_t i = 0; i < n && x.ok; i++)
    if (x.called[i])
      lm_func_remove(m, x.funcs[i]);
  lm_free(x.copy);
  return x.ok;
}
