// grad.c - reverse-mode differentiation: @micro is @loss, and adds the gradient of every parameter.
// The module becomes a step.
//
// before: func @loss(%x) -> (sum, weight) {
//           %w = param @w   %y = dot %x, %w over(d)   %s = sum %y over(b)   return %s, %n }
// after:  @loss, and
//         func @micro(%x) -> (sum, weight) {
//           %w = param @w   %y = dot %x, %w over(d)   %s = sum %y over(b)
//           %one = const 1   %gy = expand %one   %gw = dot %x, %gy over(b)   accum @w, %gw
//           return %s, %n }
//
// The operations of the clone are visited last to first; the rule of each (compiler/ops) computes
// the cotangents of its operands from the cotangent of its result. A loop becomes a loop from its
// last iteration to its first (grad_loop.c), which reads the stashes of the forward loop or
// recomputes values (grad_value.c). Only values that depend on a parameter get cotangents, and zero
// cotangents are not materialized: a parameter that the loss does not depend on gets no accum.
// `stop_grad` and `history` have no meaning after this pass: they become their operand and a
// rename. @loss.N, the loss at another sequence length, gives @micro.N. Losses that are never run
// on their own are removed (lm_pass_env.gradients_alone), so that no pass, kernel or memory is
// spent on them. Declines: a module without @loss only changes its stage. Cost: the backward pass,
// and the stashes of the forward loops.
#include "compiler/ops/interface.h"
#include "compiler/passes/grad.h"
#include "compiler/passes/epilogue.h"
#include "compiler/passes/pass.h"
#include "runtime/plan/plan_stage.h"
#include <string.h>

// ---- activity: values that depend on a parameter

typedef struct activity {
  uint8_t *of;
  bool changed;
} activity;

static void activate(activity *a, const lm_value *v) {
  if (!lm_dtype_is_float(v->type.dtype) || a->of[v->id])
    return;
  a->of[v->id] = 1;
  a->changed = true;
}

static void activity_region(activity *a, const lm_region *r);

static void activity_loop(activity *a, const lm_op *op) {
  const lm_op *yield = op->body->last;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (a->of[op->in[i]->id] || a->of[yield->in[i]->id])
      activate(a, op->body->args[i + 1]);
  activity_region(a, op->body);
  for (uint32_t i = 0; i < op->n_out; i++)
    if (a->of[yield->in[i]->id] || (i < op->n_in && a->of[op->in[i]->id]))
      activate(a, op->out[i]);
}

static void activity_region(activity *a, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    if (op->code == LM_OP_LOOP) {
      activity_loop(a, op);
      continue;
    }
    bool any = op->code == LM_OP_PARAM;
    for (uint32_t i = 0; i < op->n_in; i++)
      any |= a->of[op->in[i]->id];
    any &= lm_op_derivative(op->code) != LM_DERIVATIVE_ZERO;
    for (uint32_t i = 0; any && i < op->n_out; i++)
      activate(a, op->out[i]);
  }
}

uint8_t *lm_gradient_activity(const lm_func *f) {
  activity a = {lm_calloc((size_t)f->module->n_values + 1, 1), true};
  while (a.changed) {
    a.changed = false;
    activity_region(&a, f->body);
  }
  return a.of;
}

// ---- reversing a region

void lm_gradient_enter(gradient *g, frame *f) {
  f->outer = g->at;
  g->at = f;
  g->base.b = &f->b;
}

void lm_gradient_leave(gradient *g) {
  frame *f = g->at;
  g->at = f->outer;
  g->base.b = g->at ? &g->at->b : NULL;
  lm_idmap_free(&f->parts);
  lm_idmap_free(&f->total);
  lm_idmap_free(&f->memo);
  lm_idmap_free(&f->elements);
}

static bool has_cotangent(gradient *g, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_out; i++)
    if (lm_idmap_get(&g->at->parts, op->out[i]))
      return true;
  return false;
}

// The operations are listed first, because the backward code of the function's frame, and renames
// before yields, are added to the region during the walk.
void lm_gradient_reverse(gradient *g) {
  uint32_t n = 0;
  for (lm_op *op = g->at->forward->first; op; op = op->next)
    n++;
  lm_op **ops = lm_calloc(n + 1, sizeof *ops);
  n = 0;
  for (lm_op *op = g->at->forward->first; op; op = op->next)
    ops[n++] = op;
  while (n--) {
    lm_op *op = ops[n];
    if (lm_op_derivative(op->code) == LM_DERIVATIVE_ZERO || !has_cotangent(g, op))
      continue;
    g->at->b.loc = op->loc;
    lm_op_info_of(op)->vjp(&g->base, op);
  }
  lm_free(ops);
}

static void differentiate_region(lm_grad *base, lm_region *body, lm_value *of, lm_value *cotangent,
                                 lm_value *const *wrt, uint32_t n, lm_value **out) {
  lm_module *m = base->b->m;
  activity a = {lm_calloc((size_t)m->n_values + 1, 1), false};
  gradient g = {.base.methods = base->methods, .m = m, .active = a.of, .n_active = m->n_values};
  frame f = {.forward = body, .b = {m, body, NULL, base->b->loc}};
  for (uint32_t i = 0; i < n; i++)
    activate(&a, wrt[i]);
  activity_region(&a, body);
  lm_gradient_enter(&g, &f);
  lm_gradient_add(&g.base, of, cotangent);
  lm_gradient_reverse(&g);
  for (uint32_t i = 0; i < n; i++)
    out[i] = lm_gradient_cotangent(&g.base, wrt[i]);
  lm_gradient_leave(&g);
  lm_free(a.of);
}

static const lm_grad_methods methods = {
    .cotangent = lm_gradient_cotangent,
    .value = lm_gradient_value,
    .needed = lm_gradient_is_needed,
    .add = lm_gradient_add,
    .add_slice = lm_gradient_add_slice,
    .add_iteration = lm_gradient_add_iteration,
    .indices = lm_gradient_indices,
    .loop = lm_gradient_reverse_loop,
    .region = differentiate_region,
};

static void differentiate(lm_func *f, bool sums) {
  lm_module *m = f->module;
  lm_op *end = f->body->last;
  gradient g = {.base.methods = &methods,
                .m = m,
                .active = lm_gradient_activity(f),
                .n_active = m->n_values,
                .sums = sums ? lm_epilogue_sums(f) : NULL};
  frame top = {.forward = f->body, .b = {m, f->body, end, end->loc}};
  lm_value *sum = end->in[0];
  lm_gradient_enter(&g, &top);
  if (lm_gradient_is_needed(&g.base, sum))
    lm_gradient_add(&g.base, sum, lm_emit_const(&top.b, sum->type, 1));
  lm_gradient_reverse(&g);
  lm_gradient_leave(&g);
  lm_free(g.active);
  lm_free(g.sums);
}

// ---- the stage

static lm_value *lower_op(lm_rewrite *r, lm_op *op) {
  if (op->code == LM_OP_STOP)
    return op->in[0];
  if (op->code != LM_OP_HISTORY)
    return NULL;
  lm_attr a = op->attr;
  a.sym = NULL;
  return lm_emit(&r->b, LM_OP_RENAME, op->in, 1, &a, NULL);
}

static void find_call(lm_op *op, void *user) {
  if (op->code == LM_OP_CALL)
    *(lm_op **)user = op;
}

static bool inlined(lm_module *m) {
  lm_op *call = NULL;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, find_call, &call);
  if (call)
    lm_error(m->ctx, call->loc, "E902", "call @%s has no derivative before pass inline",
             call->attr.sym);
  return !call;
}

static bool loss_fits(lm_module *m, const lm_func *loss) {
  const lm_op *end = loss->body->last;
  bool ok = end->n_in >= 2 && lm_dtype_is_float(end->in[0]->type.dtype) && !end->in[0]->type.rank;
  if (!ok)
    lm_error(m->ctx, end->loc, "E903", "@loss returns a sum, one floating number, and a weight");
  return ok;
}

bool lm_func_is_loss(const lm_func *f) {
  return lm_stage_func_suffix(f->name, LM_FUNC_LOSS) != NULL;
}

static void micro_make(lm_func *loss, bool sums) {
  lm_ctx *c = loss->module->ctx;
  const char *length = lm_stage_func_suffix(loss->name, LM_FUNC_LOSS);
  differentiate(
      lm_func_clone(loss, LM_SYM(c, lm_arena_printf(c->arena, LM_FUNC_MICRO "%s", length))), sums);
}

bool lm_pass_grad(lm_module *m, const lm_pass_env *env) {
  if (!inlined(m))
    return false;
  for (const lm_func *f = m->funcs; f; f = f->next)
    if (lm_func_is_loss(f) && !loss_fits(m, f))
      return false;
  m->stage = LM_STAGE_STEP;
  for (lm_func *f = m->funcs, *next; f; f = next) {
    next = f->next;
    if (!lm_func_is_loss(f))
      continue;
    micro_make(f, lm_epilogue_is_enabled(env));
    if (env->gradients_alone)
      lm_func_remove(m, f);
  }
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_rewrite_func(f, lower_op, NULL);
  return true;
}
