// activity.c - see activity.h. A forward data-flow analysis, repeated until the carries of loops
// no longer change.
#include "compiler/analysis/activity.h"

#include "compiler/ops/interface.h"

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

static bool is_trained(const lm_op *op) {
  const lm_global *g =
      op->code == LM_OP_PARAM ? lm_global_find(op->parent->func->module, op->attr.sym) : NULL;
  return g && lm_global_is_trained(g) && !g->untrained;
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
    bool any = is_trained(op);
    for (uint32_t i = 0; i < op->n_in; i++)
      any |= a->of[op->in[i]->id];
    any &= lm_op_derivative(op->code) != LM_DERIVATIVE_ZERO;
    for (uint32_t i = 0; any && i < op->n_out; i++)
      activate(a, op->out[i]);
  }
}

static void run_to_fixed_point(activity *a, const lm_region *body) {
  do {
    a->changed = false;
    activity_region(a, body);
  } while (a->changed);
}

static activity activity_create(const lm_module *m) {
  return (activity){lm_calloc((size_t)m->n_values + 1, 1), false};
}

uint8_t *lm_activity_of_func(const lm_func *f) {
  activity a = activity_create(f->module);
  run_to_fixed_point(&a, f->body);
  return a.of;
}

uint8_t *lm_activity_of_region(const lm_module *m, const lm_region *body, lm_value *const *wrt,
                               uint32_t n) {
  activity a = activity_create(m);
  for (uint32_t i = 0; i < n; i++)
    activate(&a, wrt[i]);
  run_to_fixed_point(&a, body);
  return a.of;
}
