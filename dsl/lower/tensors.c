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
#include "dsl/elab/call.h"
#include "dsl/lower/matrix.h"
#include <string.h>

// The optimizer of one set of groups, with its arguments.
typedef struct use {
  const lm_recipe_call *call;
  el_inst *inst;
  el_inst *eval_inst;       // with lr as it is given, without the schedule
  const ast_member *update; // NULL: reported
  const ast_member *eval;   // or NULL
  lm_update_type type;
  lm_lowered_states states;
} use;

typedef struct parameter {
  uint32_t global;
  int *sets;     // by instance: its set of groups
  lm_matrix **m; // by set: of an optimizer of matrices
} parameter;

typedef enum {
  UPDATE,
  TO_EVAL,
  TO_TRAIN
} task; // the function that is emitted

typedef struct updater {
  task task;
  lm_elab *e;
  const lm_recipe *r;
  use *uses; // by set of groups
  parameter *params;
  uint32_t n_params, cap_params;
  el_val step;
  lm_value *scale;
} updater;

// ---- the optimizers

static el_frame frame_of(el_inst *inst, el_ref *self) {
  *self = (el_ref){.inst = inst};
  return (el_frame){
      .file = inst->file,
      .self = self,
      .real = K_REAL,
      .what = inst->decl->name.text,
  };
}

static bool use_make(updater *u, uint64_t set, const el_val *rate, use *out, el_val *out_lr) {
  lm_elab *e = u->e;
  uint32_t group;
  const lm_recipe_call *call = lm_groups_optimizer(u->r, set, &group);
  if (!call->target.decl)
    return false;
  el_visit(e, call->target.decl);
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){
      .decl = call->target.decl,
      .file = call->target.file,
      .path = LM_SYM(e->c, ""),
  };
  *out = (use){
      .call = call,
      .inst = inst,
      .eval_inst = LM_NEW(e->a, el_inst),
  };
  *out->eval_inst = *inst;
  el_ref self;
  el_frame frame = frame_of(inst, &self), *was = e->frame;
  e->frame = &frame;
  const ast_member *update = lm_optimizer_members(e, inst->decl);
  lm_group_sets one = {&set, 1};
  el_val same = el_whole(e, 1), unused;
  bool ok = update && lm_groups_bind(e, u->r, inst, &one, NULL, NULL, rate, out_lr) &&
            lm_groups_bind(e, u->r, out->eval_inst, &one, NULL, NULL, &same, &unused);
  if (ok) {
    out->eval = lm_optimizer_eval(inst->decl);
    out->type = lm_update_type_of(update);
    out->states = lm_optimizer_states(e, inst->decl);
    out->update = update;
  }
  e->frame = was;
  return ok;
}

// ---- one evaluation of `update`

// values: p, g and the states, then the new p and states. False: reported.
static bool body_run(updater *u, const use *x, const el_axes *axes, lm_value **values) {
  lm_elab *e = u->e;
  el_ref self;
  bool is_eval = u->task == TO_EVAL;
  el_frame frame = frame_of(is_eval ? x->eval_inst : x->inst, &self);
  el_frame *was = e->frame;
  uint32_t n = x->states.n;
  el_val *state = LM_NEW_N(e->a, el_val, n + 1), *out = LM_NEW_N(e->a, el_val, n + 1);
  e->frame = &frame;
  for (uint32_t k = 0; k < axes->n; k++)
    el_axes_push(e, &frame.live, axes->v[k]);
  if (x->type.form == LM_UPDATE_TENSOR)
    el_row_bind(e, x->type.axes[0], *axes);
  for (uint32_t k = 0; x->type.form == LM_UPDATE_MATRIX && k < 2; k++)
    el_axis_bind_name(e, x->type.axes[k], axes->v[k]);
  for (uint32_t k = 0; k < n; k++) {
    el_axes own = lm_optimizer_state_axes(e, &x->states.v[k], axes);
    state[k] = el_tensor(K_F32, &own, values[2 + k]);
  }
  lm_optimizer_values in = {
      .method = is_eval ? x->eval : x->update,
      .args = {el_tensor(K_F32, axes, values[0]), el_tensor(K_F32, axes, values[1]), u->step},
      .states = x->states,
      .state = state,
      .is_eval = is_eval,
  };
  bool ok = lm_optimizer_run(e, &in, out);
  e->frame = was;
  if (ok)
    values[0] = out[0].v;
  for (uint32_t k = 1; ok && k <= n; k++)
    values[k] = is_eval ? values[k + 1] : out[k].v;
  return ok;
}

static bool tensor_run(updater *u, const use *x, const lm_global *g, lm_value **values) {
  el_axes axes = lm_tensor_axes(u->e, g);
  for (uint32_t k = 0; x->type.form == LM_UPDATE_ELEMENT && k < axes.n; k++)
    axes.v[k]->element = true;
  return body_run(u, x, &axes, values);
}

static bool matrix_run(updater *u, const use *x, const lm_global *g, const lm_matrix *m,
                       lm_value **values) {
  lm_elab *e = u->e;
  uint32_t n = x->states.n;
  lm_type whole = values[0]->type;
  el_axes axes = lm_matrix_axes(e, m, &x->type);
  lm_op *loop = NULL;
  for (uint32_t k = 0; k < 2 + n; k++)
    if (k < 2 || !x->states.v[k - 2].has_own_axes)
      values[k] = lm_matrix_view(e, m, values[k]);
  if (m->merged[LM_MATRIX_BATCH]) {
    loop = lm_loop_begin(&e->b, lm_axis_size(e->m, m->merged[LM_MATRIX_BATCH]),
                         m->merged[LM_MATRIX_BATCH], NULL, 0);
    for (uint32_t k = 0; k < 2 + n; k++)
      values[k] = lm_emit(&e->b, LM_OP_AT, (lm_value *[]){values[k], loop->body->args[0]}, 2,
                          &(lm_attr){.imm = {0, 1}, .n_imm = 2}, NULL);
  }
  bool ok = body_run(u, x, &axes, values);
  if (loop && ok) {
    lm_loop_end(&e->b, loop, NULL, 0, values, n + 1);
    for (uint32_t k = 0; k <= n; k++)
      values[k] = loop->out[k];
  }
  for (uint32_t k = 0; ok && k <= n; k++)
    if (!k || !x->states.v[k - 1].has_own_axes)
      values[k] = lm_matrix_unview(e, m, values[k], whole);
  return ok;
}

// ---- states

// The state that holds the trained weights while the parameter has those of evaluations. No state
// of the language has such a name.
static const char TRAINED[] = "trained-weights";

// Adds the states of instances from … from + n - 1 of a parameter, whose index is that of the
// innermost stacked axis unless they are all.
static void states_add(updater *u, uint32_t global, const use *x, const lm_matrix *m, int64_t from,
                       int64_t n) {
  lm_elab *e = u->e;
  const lm_lowered_state trained = {
      .name = LM_SYM(e->c, TRAINED),
      .is_param = true,
  };
  for (uint32_t k = 0; k < x->states.n + (x->eval != NULL); k++) {
    const lm_lowered_state *s = k < x->states.n ? &x->states.v[k] : &trained;
    const lm_global *g = &e->m->globals[global];
    lm_type t = g->type;
    bool part = n < g->n_paths;
    t.rank = s->has_own_axes ? (uint8_t)g->n_stack : t.rank;
    if (part)
      t.axis[g->n_stack - 1] = lm_axis_shared(e->m, LM_SYM(e->c, "instances"), n, g->type);
    if (s->has_own_axes && m && m->merged[LM_MATRIX_BATCH])
      t.axis[t.rank++] = m->merged[LM_MATRIX_BATCH];
    for (int a = 0; s->has_own_axes && a < 2; a++)
      if (s->axis[a])
        t.axis[t.rank++] = m->merged[LM_MATRIX_IN + a];
    memset(t.axis + t.rank, 0, sizeof t.axis - t.rank * sizeof *t.axis);
    const char *name = part ? lm_arena_printf(e->a, "%s/%s/%lld", s->name, g->name, (long long)from)
                            : lm_arena_printf(e->a, "%s/%s", s->name, g->name);
    lm_global *state = lm_global_add(e->m, LM_GLOBAL_STATE, LM_SYM(e->c, name), t, g->n_stack);
    g = &e->m->globals[global];
    state->of = g->name;
    state->is_param = s->is_param;
    state->first = part ? from : 0;
    state->loc = x->update->loc;
    for (int64_t i = 0; i < n; i++) {
      const char *path = lm_arena_printf(e->a, "%s.%s", s->name, g->paths[from + i]);
      state->paths[i] = LM_SYM(e->c, path);
      if (s->value != 0)
        state->init[i] = (lm_init){
            .kind = LM_INIT_CONST,
            .a = s->value,
        };
    }
  }
}

// ---- the update of a parameter

// Instances of a parameter with the same optimizer and arguments: all, or those with the indices
// `first` of the stacked axes, and `count` along the innermost one.
typedef struct instances {
  bool all;
  int64_t first[LM_RANK], count;
} instances;

// The values of a parameter at the indices of `at`: p, the scaled gradient, the states.
static lm_value **values_read(updater *u, const lm_global *g, const lm_attr *at,
                              lm_value *const *index, uint32_t *out_n) {
  lm_elab *e = u->e;
  uint32_t n = (uint32_t)g->n_stack;
  const lm_global **states = LM_NEW_N(e->a, const lm_global *, e->m->n_globals + 1);
  *out_n = lm_global_states(e->m, g, at, states);
  lm_value **v = LM_NEW_N(e->a, lm_value *, *out_n + 2);
  v[0] = lm_emit(&e->b, LM_OP_PARAM, index, n, at, NULL);
  v[1] = v[0];
  if (u->task == UPDATE) {
    lm_value *g = lm_emit(&e->b, LM_OP_GRADIENT, index, n, at, NULL);
    v[1] = lm_emit2(&e->b, LM_OP_MUL, g, u->scale);
  }
  for (uint32_t k = 0; k < *out_n; k++) {
    lm_attr own = *at;
    own.sym = states[k]->name;
    if (n)
      own.imm[2 * n - 2] -= states[k]->first;
    v[2 + k] = lm_emit(&e->b, LM_OP_PARAM, index, n, &own, NULL);
  }
  return v;
}

// Value k of the parameter (0) and its states after the update: the old one if the step is skipped,
// for which grad_scale is NaN.
static lm_value *updated(updater *u, const use *x, lm_value *const *new, lm_value *const *old,
                         uint32_t k) {
  lm_elab *e = u->e;
  lm_value *before = old[k ? k + 1 : 0];
  if (k > x->states.n)
    return before; // the trained weights
  lm_value *good = lm_emit2(&e->b, LM_OP_EQ, u->scale, u->scale);
  return lm_emit_select(&e->b, good, new[k], before);
}

// The same after an exchange of the trained weights, which are the last state, for those of
// evaluations, or back.
static lm_value *exchanged(const updater *u, lm_value *const *new, lm_value *const *old, uint32_t n,
                           uint32_t k) {
  if (k == 0)
    return u->task == TO_EVAL ? new[0] : old[n];
  return k + 1 == n && u->task == TO_EVAL ? old[0] : old[k + 1];
}

static void values_write(updater *u, const use *x, const lm_attr *at, lm_value *const *index,
                         lm_value *const *new, lm_value *const *old, uint32_t n) {
  lm_elab *e = u->e;
  uint32_t n_index = at->n_imm / 2u;
  lm_value **in = LM_NEW_N(e->a, lm_value *, n_index + n);
  memcpy(in, index, sizeof *in * n_index);
  for (uint32_t k = 0; k < n; k++)
    in[n_index + k] = u->task == UPDATE ? updated(u, x, new, old, k) : exchanged(u, new, old, n, k);
  lm_emit_op(&e->b, LM_OP_ASSIGN, in, n_index + n, at, NULL);
}

static bool instances_update(updater *u, uint32_t global, const use *x, const lm_matrix *m,
                             const instances *some) {
  lm_elab *e = u->e;
  const lm_global *g = &e->m->globals[global];
  lm_attr at = {
      .sym = g->name,
      .n_imm = (uint8_t)(2 * g->n_stack),
  };
  lm_value *index[LM_RANK];
  lm_op *loops[LM_RANK] = {0};
  uint32_t n;
  for (int s = 0; s < g->n_stack; s++) {
    int64_t count = some->all             ? lm_axis_size(e->m, g->type.axis[s])
                    : s + 1 == g->n_stack ? some->count
                                          : 1;
    at.imm[2 * s] = some->all ? 0 : some->first[s];
    at.imm[2 * s + 1] = 1;
    loops[s] = count > 1 ? lm_loop_begin(&e->b, count, 0, NULL, 0) : NULL;
    index[s] =
        loops[s] ? loops[s]->body->args[0] : lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
  }
  lm_value **old = values_read(u, g, &at, index, &n);
  lm_value **new = LM_NEW_N(e->a, lm_value *, n + 2);
  memcpy(new, old, sizeof *new *(n + 2));
  bool ok = true;
  if (u->task != TO_TRAIN)
    ok = m ? matrix_run(u, x, g, m, new) : tensor_run(u, x, g, new);
  if (ok)
    values_write(u, x, &at, index, new, old, n + 1);
  for (int s = g->n_stack - 1; ok && s >= 0; s--)
    if (loops[s])
      lm_loop_end(&e->b, loops[s], NULL, 0, NULL, 0);
  return ok;
}

static int64_t inner_size(const lm_elab *e, const lm_global *g) {
  return g->n_stack ? lm_axis_size(e->m, g->type.axis[g->n_stack - 1]) : 1;
}

// The instances of a parameter after `from` that have the same key as it, along the innermost
// stacked axis unless all have it.
static int64_t run_length(const lm_elab *e, const lm_global *g, const int *key, int64_t from) {
  int64_t n = 1, inner = inner_size(e, g);
  while (!from && n < g->n_paths && key[n] == key[0])
    n++;
  if (n == g->n_paths)
    return n;
  for (n = 1; (from + n) % inner && key[from + n] == key[from];)
    n++;
  return n;
}

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

// The states of all instances of a parameter. calls: by instance, a set with the same optimizer.
static bool global_states_add(updater *u, uint32_t global, const int *calls, lm_matrix *const *m) {
  lm_elab *e = u->e;
  int64_t n_paths = e->m->globals[global].n_paths, n;
  for (int64_t from = 0; from < n_paths; from += n) {
    const lm_global *g = &e->m->globals[global];
    n = run_length(e, g, calls, from);
    if (n < n_paths && g->n_stack > 1)
      return EL_REJECT(e, u->uses[calls[from]].call->loc, E900,
                       lm_arena_printf(e->a,
                                       "different optimizers for the instances of %s, which "
                                       "is in nested repetitions,",
                                       g->name));
    states_add(u, global, &u->uses[calls[from]], m[calls[from]], from, n);
  }
  return true;
}

// Finds the matrices of a parameter, and adds its states. False: reported.
static bool parameter_prepare(updater *u, parameter *p) {
  lm_elab *e = u->e;
  int64_t n_paths = e->m->globals[p->global].n_paths;
  int *calls = LM_NEW_N(e->a, int, n_paths), most = 0;
  for (int64_t i = 0; i < n_paths; i++)
    most = p->sets[i] > most ? p->sets[i] : most;
  p->m = LM_NEW_N(e->a, lm_matrix *, most + 1);
  for (int64_t i = 0; i < n_paths; i++) {
    int set = p->sets[i];
    const use *x = &u->uses[set];
    while (u->uses[calls[i]].call != x->call)
      calls[i]++;
    if (x->type.form != LM_UPDATE_MATRIX || p->m[set])
      continue;
    const lm_global *g = &e->m->globals[p->global];
    p->m[set] = LM_NEW(e->a, lm_matrix);
    if (!lm_matrix_find(e, x->call, g, &x->type, p->m[set]))
      return false;
    p->m[calls[i]] = p->m[set];
  }
  return global_states_add(u, p->global, calls, p->m);
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
    if (!parameter_prepare(u, p))
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
    n = run_length(e, g, p->sets, from);
    instances some = instances_of(e, g, from, n);
    bool concerns = u->task == UPDATE || x->eval;
    if (concerns && !instances_update(u, p->global, x, p->m[set], &some))
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
    any |= u->uses[s].eval != NULL;
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
    ok = use_make(u, c->sets[s], rate, &u->uses[s], &lr);
    if (!s)
      *out_lr = lr;
  }
  return ok;
}

void lm_lower_tensors(lm_elab *e, const lm_recipe *r, const lm_group_sets *c, lm_lowered *out) {
  lm_type number = lm_type_make(LM_F64, NULL, 0);
  out->by_tensor = true;
  lm_func *rates = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_RATES});
  lm_func *update = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_UPDATE});
  lm_value *step = lm_arg_add(e->m, rates->body, number, lm_port_name(e, LM_PORT_STEP));
  lm_value *run = lm_arg_add(e->m, rates->body, number, lm_port_name(e, LM_PORT_RUN));
  updater u = {
      .e = e,
      .r = r,
      .step = lm_host_scalar(step),
  };
  u.scale = lm_arg_add(e->m, update->body, lm_type_make(LM_F32, NULL, 0),
                       lm_port_name(e, LM_PORT_GRAD_SCALE));
  e->b = (lm_builder){
      .m = e->m,
      .at = update->body,
      .loc = r->optimizer.loc,
  };
  el_val rate = lm_lower_schedule(e, r, u.step, lm_host_scalar(run)), lr;
  if (rate.k == V_ERROR || !uses_make(&u, c, &rate, &lr))
    return;
  if (lr.k != V_ERROR)
    lr = el_as_tensor(e, &lr, r->optimizer.loc);
  if (!parameters_prepare(&u, out) || !func_emit(&u, update, UPDATE))
    return;
  bool host = lr.k == V_TENSOR && lr.v && lr.v->type.dtype == LM_F64 && !lr.v->type.rank;
  lm_lower_rates(e, rates, update, host ? lr.v : NULL);
  exchanges_emit(&u, c);
}
