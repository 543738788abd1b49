// tensors.c - the update of each parameter by itself, for optimizers that see more than an element,
// and for recipes with several optimizers.
//
//   optimizer o(lr) {
//     state v: f32[o] = 0
//     update(p: f32[i, o], g: f32[i, o]) -> f32[i, o] { … }
//   }
//   ->
//   state @"v/layers.w" : f32[layers, f] stacked 1 as … of @layers.w = zeros
//   func @update(%grad_scale: f32, …) -> () {
//     loop 12 %i {
//       %p = param @layers.w[%i * 1 + 0]   %g = gradient @layers.w[%i * 1 + 0]
//       %v = param @"v/layers.w"[%i * 1 + 0]
//       …
//       assign @layers.w[%i * 1 + 0], %p.1, %v.1 }
//     return }
//
// The instances of a parameter in its repetitions are updated in one loop if they have the same
// optimizer and arguments, else in a loop for each run of them that has.
// A parameter with batch axes has several matrices (matrix.c), over which there is a loop.
//
// A parameter that is stored in bf16 is widened before the body of `update` and stochastically
// rounded after it (master.h). A state that is stored in another type than f32 (moments.h) is
// decoded before the body of `update` and encoded after it. If its elements are in blocks, the body
// sees the parameter in these blocks too, so that decoding, update and encoding are one kernel over
// the blocks.
#include "dsl/lower/tensors.h"

// ---- the parameters

static instances instances_of(const lm_elab *e, const lm_global *g, int64_t from, int64_t n) {
  instances x = {
      .all = n == g->n_paths,
      .count = n,
  };
  for (int s = g->n_stack - 1; s >= 0; s--) {
    int64_t size = lm_axis_size(e->m, g->type.axis[s]);
    x.first[s] = from % size;
    from /= size;
  }
  return x;
}

static bool parameters_prepare(updater *u, const lm_lowered *l) {
  lm_elab *e = u->e;
  int64_t path = 0;
  uint32_t n = e->m->n_globals;
  for (uint32_t i = 0; i < n; i++) {
    const lm_global *g = &e->m->globals[i];
    if (g->kind == LM_GLOBAL_PARAM && g->untrained)
      path += g->n_paths;
    if (!lm_global_is_updated(g))
      continue;
    parameter *p = &LM_PUSH(e->a, u->params, u->n_params, u->cap_params);
    *p = (parameter){
        .global = i,
        .sets = LM_NEW_N(e->a, int, g->n_paths + 1),
    };
    for (int64_t k = 0; k < g->n_paths; k++)
      p->sets[k] = l->paths[path++].group;
    if (!lm_parameter_prepare(u, p))
      return false;
  }
  return true;
}

// ---- the functions

static bool parameter_emit(updater *u, const parameter *p) {
  lm_elab *e = u->e;
  const lm_global *g = &e->m->globals[p->global];
  int64_t n;
  for (int64_t from = 0; from < g->n_paths; from += n) {
    int set = p->sets[from];
    const use *x = &u->uses[set];
    n = lm_run_length(e, g, p->sets, from);
    instances some = instances_of(e, g, from, n);
    bool concerns = u->task == UPDATE || (u->task == EXTRA ? x->all.extra : x->all.view);
    if (concerns && !lm_instances_update(u, p->global, x, p->m[set], p->moments[set], &some))
      return false;
  }
  return true;
}

static bool func_emit(updater *u, lm_func *f, task t) {
  lm_elab *e = u->e;
  u->task = t;
  e->b = (lm_builder){
      .m = e->m,
      .at = f->body,
      .loc = u->r->optimizer.loc,
  };
  for (uint32_t i = 0; i < u->n_params; i++)
    if (!parameter_emit(u, &u->params[i]))
      return false;
  lm_emit_op(&e->b, LM_OP_RETURN, NULL, 0, NULL, NULL);
  return true;
}

// The functions that exchange the weights, if an optimizer has `eval`.
static bool exchanges_emit(updater *u, const lm_group_sets *c) {
  bool any = false;
  for (int s = 0; s < c->n; s++)
    any |= u->uses[s].all.view != NULL;
  if (!any)
    return true;
  lm_func *to_eval = lm_func_add_key(u->e->m, (lm_func_key){LM_FUNC_TO_EVAL});
  lm_func *to_train = lm_func_add_key(u->e->m, (lm_func_key){LM_FUNC_TO_TRAIN});
  return func_emit(u, to_eval, TO_EVAL) && func_emit(u, to_train, TO_TRAIN);
}

static bool uses_make(updater *u, const lm_group_sets *c, const el_val *rate, el_val *out_lr) {
  u->uses = LM_NEW_N(u->e->a, use, c->n);
  bool ok = true;
  for (int s = 0; s < c->n && ok; s++) {
    el_val lr;
    ok = lm_use_make(u, c->sets[s], rate, &u->uses[s], &lr);
    if (!s)
      *out_lr = lr;
  }
  return ok;
}

typedef struct {
  lm_func *rates, *update;
} functions;

// @rates and @update, or those of the extra gradient, with their arguments; and the optimizers,
// with theirs. *out_lr: the learning rate. False: reported.
static bool functions_begin(updater *u, const lm_group_sets *c, bool extra, functions *out,
                            el_val *out_lr) {
  lm_elab *e = u->e;
  lm_type f64 = lm_type_make(LM_F64, NULL, 0), f32 = lm_type_make(LM_F32, NULL, 0);
  lm_func *rates = lm_func_add_key(e->m, (lm_func_key){.id = LM_FUNC_RATES, .extra = extra});
  lm_func *update = lm_func_add_key(e->m, (lm_func_key){.id = LM_FUNC_UPDATE, .extra = extra});
  *out = (functions){rates, update};
  u->step = lm_host_scalar(lm_arg_add(e->m, rates->body, f64, lm_port_name(e, LM_PORT_STEP)));
  lm_value *run = lm_arg_add(e->m, rates->body, f64, lm_port_name(e, LM_PORT_RUN));
  u->scale = lm_arg_add(e->m, update->body, f32, lm_port_name(e, LM_PORT_GRAD_SCALE));
  if (extra) {
    u->norm = lm_arg_add(e->m, update->body, f32, lm_port_name(e, LM_PORT_NORM));
    u->weight = lm_arg_add(e->m, update->body, f32, lm_port_name(e, LM_PORT_WEIGHT));
  }
  if (u->r->precision.master_bf16)
    u->step_number = lm_arg_add(e->m, update->body, lm_type_make(LM_INT, NULL, 0),
                                lm_port_name(e, LM_PORT_STEP));
  e->b = (lm_builder){
      .m = e->m,
      .at = update->body,
      .loc = u->r->optimizer.loc,
  };
  el_val rate = lm_lower_schedule(e, u->r, u->step, lm_host_scalar(run));
  return rate.k != V_ERROR && uses_make(u, c, &rate, out_lr);
}

// @rates.extra and @update.extra.
static bool extra_emit(updater *u, const lm_group_sets *c) {
  functions f;
  el_val unused;
  if (!functions_begin(u, c, true, &f, &unused) || !func_emit(u, f.update, EXTRA))
    return false;
  lm_lower_rates(u->e, f.rates, f.update, NULL);
  return true;
}

void lm_lower_tensors(lm_elab *e, const lm_recipe *r, const lm_group_sets *c, lm_lowered *out) {
  updater u = {
      .e = e,
      .r = r,
      .extra = &out->extra,
  };
  functions f;
  el_val lr;
  out->by_tensor = true;
  if (!functions_begin(&u, c, false, &f, &lr))
    return;
  if (lr.k != V_ERROR)
    lr = el_as_tensor(e, &lr, r->optimizer.loc);
  if (!parameters_prepare(&u, out) || !func_emit(&u, f.update, UPDATE))
    return;
  bool host = lr.k == V_TENSOR && lr.v && lr.v->type.dtype == LM_F64 && !lr.v->type.rank;
  lm_lower_rates(e, f.rates, f.update, host ? lr.v : NULL);
  if (exchanges_emit(&u, c) && out->extra.name)
    extra_emit(&u, c);
}
