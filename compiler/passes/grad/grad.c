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
// cotangents are not materialized: a parameter that the loss does not depend on gets no accum. The
// cotangent of the sum is 1. If `real` is f16, whose range is small, it is the argument loss_scale,
// a power of 2 by which the runtime divides the gradients (runtime/train/loss_scale.h).
// `stop_grad`, `fan`, `history`, and the operations that say how a cotangent is rounded have no
// meaning after this pass: they become their operand and a rename. @loss.N, the loss at another
// sequence length, gives @micro.N, and @loss.extra, of an extra gradient, @micro.extra. Losses that
// are never run on their own are removed (lm_pass_env.gradients_alone), so that no pass, kernel or
// memory is spent on them. Declines: a module without @loss only changes its stage. Cost: the
// backward pass, and the stashes of the forward loops.
#include "compiler/passes/grad/grad.h"
#include "compiler/analysis/activity.h"
#include "compiler/passes/fuse/epilogue.h"
#include "compiler/passes/params_only.h"
#include "compiler/passes/pass.h"
#include "runtime/base/diag_code.h"
#include <string.h>

static void differentiate_region(lm_grad *base, lm_region *body, lm_value *const *of,
                                 lm_value *const *cotangent, uint32_t n_of, lm_value *const *wrt,
                                 uint32_t n, lm_value **out) {
  lm_module *m = base->b->m;
  gradient g = {.base.methods = base->methods,
                .m = m,
                .active = lm_activity_of_region(m, body, wrt, n),
                .n_active = m->n_values};
  frame f = {
      .forward = body,
      .b = {m, body, NULL, base->b->loc},
  };
  lm_gradient_enter(&g, &f);
  for (uint32_t i = 0; i < n_of; i++)
    if (cotangent[i])
      lm_gradient_add(&g.base, of[i], cotangent[i]);
  lm_gradient_reverse(&g);
  for (uint32_t i = 0; i < n; i++)
    out[i] = lm_gradient_cotangent(&g.base, wrt[i]);
  lm_gradient_leave(&g);
  lm_free(g.active);
}

// Threads of a GPU are points; the cores of a CPU share them.
static lm_grad_methods methods_of(const lm_pass_env *env) {
  enum {
    POINTS = 16,
    BLOCK = 16 // a vector of f32
  };
  bool threads = env->target && env->target->kind == LM_TARGET_CUDA;
  return (lm_grad_methods){
      .points = threads ? INT64_MAX : POINTS,
      .block = threads ? 1 : BLOCK,
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
}

// The cotangent of the sum.
static lm_value *seed(lm_builder *b, const lm_value *sum) {
  lm_module *m = b->m;
  const lm_port_info *port = &lm_port_table[LM_PORT_LOSS_SCALE];
  if (m->real != LM_F16)
    return lm_emit_const(b, sum->type, 1);
  lm_type number = lm_type_make(port->dtype, NULL, 0);
  lm_value *scale = lm_arg_add(m, b->at, number, LM_SYM(m->ctx, port->name));
  return lm_emit_cast(b, scale, (lm_dtype)sum->type.dtype);
}

static void differentiate(lm_func *f, const lm_grad_methods *methods, bool sums) {
  lm_module *m = f->module;
  lm_op *end = f->body->last;
  gradient g = {.base.methods = methods,
                .m = m,
                .active = lm_activity_of_func(f),
                .n_active = m->n_values,
                .sums = sums ? lm_epilogue_sums(f) : NULL,
                .of_params = lm_params_only(f)};
  frame top = {
      .forward = f->body,
      .b = {m, f->body, end, end->loc},
  };
  lm_value *sum = end->in[0];
  lm_gradient_enter(&g, &top);
  if (lm_gradient_is_needed(&g.base, sum))
    lm_gradient_add(&g.base, sum, seed(&top.b, sum));
  lm_gradient_reverse(&g);
  lm_gradient_leave(&g);
  lm_free(g.active);
  lm_free(g.sums);
  lm_free(g.of_params);
}

// ---- the stage

static lm_value *lower_op(lm_rewrite *r, lm_op *op) {
  if (op->code == LM_OP_STOP || op->code == LM_OP_FAN || op->code == LM_OP_STRAIGHT ||
      op->code == LM_OP_ROUND_COTANGENT)
    return op->in[0];
  if (op->code == LM_OP_OBSERVE_COTANGENT)
    return op->in[op->n_in - 1];
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
    LM_REPORT(m->ctx, call->loc, E902, call->attr.sym);
  return !call;
}

static bool loss_fits(lm_module *m, const lm_func *loss) {
  const lm_op *end = loss->body->last;
  bool ok = end->n_in >= 2 && lm_dtype_is_float(end->in[0]->type.dtype) && !end->in[0]->type.rank;
  if (!ok)
    LM_REPORT(m->ctx, end->loc, E903);
  return ok;
}

static void micro_make(lm_func *loss, const lm_grad_methods *methods, bool sums) {
  char name[LM_FUNC_NAME];
  lm_func_key key = loss->key;
  key.id = LM_FUNC_MICRO;
  lm_func_key_print(key, name);
  lm_func *f = lm_func_clone(loss, LM_SYM(loss->module->ctx, name));
  if (!lm_gradient_ticks(f, methods, seed, sums))
    differentiate(f, methods, sums);
}

bool lm_pass_grad(lm_module *m, const lm_pass_env *env) {
  if (!inlined(m))
    return false;
  for (const lm_func *f = m->funcs; f; f = f->next)
    if (f->key.id == LM_FUNC_LOSS && !loss_fits(m, f))
      return false;
  const lm_grad_methods methods = methods_of(env);
  m->stage = LM_STAGE_STEP;
  for (lm_func *f = m->funcs, *next; f; f = next) {
    next = f->next;
    if (f->key.id != LM_FUNC_LOSS)
      continue;
    micro_make(f, &methods, lm_epilogue_is_enabled(env));
    if (env->gradients_alone)
      lm_func_remove(m, f);
  }
  for (lm_func *f = m->funcs; f; f = f->next) {
    if (f->key.id == LM_FUNC_EVAL)
      lm_forward_ticks(f);
    lm_rewrite_func(f, lower_op, NULL);
  }
  return true;
}
