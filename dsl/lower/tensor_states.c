// tensor_states.c - the states of each parameter (tensors.h): their types, and how they are stored.
#include "dsl/lower/tensors.h"
#include <math.h>
#include <string.h>

// ---- states

// The state that holds the trained weights while the parameter has those of evaluations, and the
// one that holds the weights while the parameter has those at which an extra gradient asks for the
// gradient of the step. No state of the language has such a name.
static const char TRAINED[] = "trained-weights", UNPERTURBED[] = "unperturbed-weights";

// The type of an f32 state of n instances of a parameter; m: the matrices that its optimizer sees.
static lm_type state_type(updater *u, uint32_t global, const lm_lowered_state *s,
                          const lm_matrix *m, int64_t n) {
  lm_elab *e = u->e;
  const lm_global *g = &e->m->globals[global];
  lm_type t = lm_type_make(LM_F32, g->type.axis, g->type.rank);
  t.rank = s->has_own_axes ? (uint8_t)g->n_stack : t.rank;
  if (n < g->n_paths)
    t.axis[g->n_stack - 1] = lm_axis_shared(e->m, LM_SYM(e->c, "instances"), n, g->type);
  if (s->has_own_axes && m && m->merged[LM_MATRIX_BATCH])
    t.axis[t.rank++] = m->merged[LM_MATRIX_BATCH];
  for (int a = 0; s->has_own_axes && a < 4; a++)
    if (s->axis[a])
      t.axis[t.rank++] = m->merged[LM_MATRIX_IN + a];
  memset(t.axis + t.rank, 0, sizeof t.axis - t.rank * sizeof *t.axis);
  return t;
}

// A tensor of a state: the suffix of its names, its type and its first value.
typedef struct tensor {
  const char *suffix;
  lm_type type;
  double value;
} tensor;

static void state_add(updater *u, uint32_t global, const use *x, const lm_lowered_state *s,
                      const tensor *t, int64_t from, int64_t n) {
  lm_elab *e = u->e;
  const lm_global *g = &e->m->globals[global];
  bool part = n < g->n_paths;
  const char *name =
      part ? lm_arena_printf(e->a, "%s/%s/%lld%s", s->name, g->name, (long long)from, t->suffix)
           : lm_arena_printf(e->a, "%s/%s%s", s->name, g->name, t->suffix);
  lm_global *state = lm_global_add(e->m, LM_GLOBAL_STATE, LM_SYM(e->c, name), t->type, g->n_stack);
  g = &e->m->globals[global];
  state->of = g->name;
  state->is_param = s->is_param;
  state->first = part ? from : 0;
  state->loc = x->root->update->loc;
  for (int64_t i = 0; i < n; i++) {
    const char *path = lm_arena_printf(e->a, "%s.%s%s", s->name, g->paths[from + i], t->suffix);
    state->paths[i] = LM_SYM(e->c, path);
    if (t->value != 0)
      state->init[i] = (lm_init){
          .kind = LM_INIT_CONST,
          .a = t->value,
      };
  }
}

// Adds the states of instances from … from + n - 1 of a parameter, whose index is that of the
// innermost stacked axis unless they are all. A state in blocks is two tensors, of which the one of
// the scales follows the one of the codes.
static void states_add(updater *u, uint32_t global, const use *x, lm_matrix *const *m,
                       const lm_moment *moments, int64_t from, int64_t n) {
  lm_elab *e = u->e;
  lm_lowered_state weights[2];
  uint32_t n_weights = 0;
  if (x->perturbs)
    weights[n_weights++] = (lm_lowered_state){
        .name = LM_SYM(e->c, UNPERTURBED),
        .is_param = true,
    };
  if (x->all.view)
    weights[n_weights++] = (lm_lowered_state){
        .name = LM_SYM(e->c, TRAINED),
        .is_param = true,
    };
  for (uint32_t k = 0; k < x->all.states.n + n_weights; k++) {
    bool of_update = k < x->all.states.n;
    const lm_lowered_state *s = of_update ? &x->all.states.v[k] : &weights[k - x->all.states.n];
    lm_dtype stored = (lm_dtype)e->m->globals[global].type.dtype;
    const lm_moment form = of_update ? moments[k] : (lm_moment){.dtype = stored};
    const lm_matrix *own = of_update ? m[lm_optimizer_of_state(&x->all, k)->id] : NULL;
    lm_type t = state_type(u, global, s, own, n);
    t.dtype = form.dtype;
    if (!form.block) {
      state_add(u, global, x, s, &(tensor){"", t, s->value}, from, n);
      continue;
    }
    const lm_global *g = &e->m->globals[global];
    lm_type blocks = lm_moment_blocks(e, lm_own_type(g), form.block);
    memcpy(&t.axis[g->n_stack], blocks.axis, sizeof *t.axis * 2);
    t.rank = (uint8_t)(g->n_stack + 2);
    memset(t.axis + t.rank, 0, sizeof t.axis - t.rank * sizeof *t.axis);
    double size = form.is_root ? sqrt(fabs(s->value)) : fabs(s->value);
    state_add(u, global, x, s, &(tensor){"", t, s->value < 0 ? -1 : 1}, from, n);
    t = lm_type_make(LM_F32, t.axis, t.rank - 1);
    state_add(u, global, x, s, &(tensor){".scale", t, size}, from, n);
  }
}

// ---- runs of instances

static int64_t inner_size(const lm_elab *e, const lm_global *g) {
  return g->n_stack ? lm_axis_size(e->m, g->type.axis[g->n_stack - 1]) : 1;
}

// The instances of a parameter after `from` that have the same key as it, along the innermost
// stacked axis unless all have it.
int64_t lm_run_length(const lm_elab *e, const lm_global *g, const int *key, int64_t from) {
  int64_t n = 1, inner = inner_size(e, g);
  while (!from && n < g->n_paths && key[n] == key[0])
    n++;
  if (n == g->n_paths)
    return n;
  for (n = 1; (from + n) % inner && key[from + n] == key[from];)
    n++;
  return n;
}

// The states of all instances of a parameter. calls: by instance, a set with the same optimizer.
static bool global_states_add(updater *u, const parameter *p, const int *calls) {
  lm_elab *e = u->e;
  uint32_t global = p->global;
  int64_t n_paths = e->m->globals[global].n_paths, n;
  for (int64_t from = 0; from < n_paths; from += n) {
    const lm_global *g = &e->m->globals[global];
    n = lm_run_length(e, g, calls, from);
    if (n < n_paths && g->n_stack > 1)
      return EL_REJECT(e, u->uses[calls[from]].root->call->loc, E900,
                       lm_arena_printf(e->a,
                                       "different optimizers for the instances of %s, which "
                                       "is in nested repetitions,",
                                       g->name));
    int set = calls[from];
    states_add(u, global, &u->uses[set], p->m[set], p->moments[set], from, n);
  }
  return true;
}

// ---- the parameters

// Which states of a set's optimizer are never negative, for a parameter. The body is evaluated in a
// function that is removed afterwards. False: reported.
static bool never_negative_find(updater *u, const parameter *p, int set, bool *out) {
  lm_elab *e = u->e;
  const use *x = &u->uses[set];
  const lm_global *g = &e->m->globals[p->global];
  uint32_t n = x->all.states.n;
  lm_value **old = LM_NEW_N(e->a, lm_value *, n + 2), **new[2];
  static const task tasks[] = {UPDATE, EXTRA};
  lm_builder was = e->b;
  lm_func *f = lm_func_add(e->m, LM_SYM(e->c, "never-negative"));
  e->b.at = f->body;
  for (uint32_t k = 0; k < n + 2; k++) {
    const lm_lowered_state *s = k < 2 ? NULL : &x->all.states.v[k - 2];
    const lm_matrix *own = s ? p->m[set][lm_optimizer_of_state(&x->all, k - 2)->id] : NULL;
    lm_type t =
        s ? lm_without_stack(g, state_type(u, p->global, s, own, g->n_paths)) : lm_own_type(g);
    t.dtype = LM_F32;
    old[k] = lm_arg_add(e->m, f->body, t, s ? s->name : LM_SYM(e->c, "p"));
  }
  u->norm = lm_arg_add(e->m, f->body, lm_type_make(LM_F32, NULL, 0), LM_SYM(e->c, "norm"));
  u->weight = lm_arg_add(e->m, f->body, lm_type_make(LM_F32, NULL, 0), LM_SYM(e->c, "weight"));
  el_axes axes = lm_element_axes(e, g, x);
  bool ok = true;
  for (int t = 0; t < 1 + (x->all.extra != NULL) && ok; t++) {
    u->task = tasks[t];
    new[t] = LM_NEW_N(e->a, lm_value *, n + 2);
    memcpy(new[t], old, sizeof **new *(n + 2));
    ok = lm_update_body(u, x, p->m[set], &axes, new[t]);
  }
  for (uint32_t k = 0; k < n; k++)
    out[k] = !x->all.states.v[k].is_param && x->all.states.v[k].value >= 0;
  for (uint32_t i = 0; i <= n && ok; i++) // each round but the last one finds a state
    for (int t = 0; t < 1 + (x->all.extra != NULL); t++)
      lm_never_negative(old + 2, new[t] + 2, n, out);
  lm_func_remove(e->m, f);
  e->b = was;
  return ok;
}

// The instances of a parameter with the same optimizer have the same form of its states, whatever
// the arguments. sets: by instance; calls: the first set with the same optimizer.
static void moments_choose(const updater *u, parameter *p, const int *calls, bool *const *never) {
  const lm_global *g = &u->e->m->globals[p->global];
  int64_t elements = lm_type_elements(u->e->m, lm_own_type(g));
  for (int64_t i = 0; i < g->n_paths; i++) {
    const use *x = &u->uses[p->sets[i]];
    for (uint32_t k = 0; k < x->all.states.n; k++)
      never[calls[i]][k] &= never[p->sets[i]][k];
  }
  for (int64_t i = 0; i < g->n_paths; i++) {
    const use *x = &u->uses[p->sets[i]];
    lm_moment *forms = LM_NEW_N(u->e->a, lm_moment, x->all.states.n + 1);
    for (uint32_t k = 0; k < x->all.states.n; k++)
      forms[k] = lm_moment_of(u->r, &x->all.states.v[k], elements, never[calls[i]][k]);
    p->moments[p->sets[i]] = p->moments[calls[i]] = forms;
  }
}

// The matrices of a parameter for a set of groups, and which states are never negative.
static bool set_prepare(updater *u, parameter *p, int set, bool **out_never) {
  lm_elab *e = u->e;
  const use *x = &u->uses[set];
  p->m[set] = LM_NEW_N(e->a, lm_matrix *, x->all.n);
  for (uint32_t i = 0; i < x->all.n; i++) {
    const lm_optimizer *o = x->all.v[i];
    if (o->type.form != LM_UPDATE_MATRIX)
      continue;
    p->m[set][i] = LM_NEW(e->a, lm_matrix);
    if (!lm_matrix_find(e, o->call, &e->m->globals[p->global], &o->merged, p->m[set][i]))
      return false;
  }
  *out_never = LM_NEW_N(e->a, bool, x->all.states.n + 1);
  bool matters = u->r->precision.moments_block != 0;
  return !matters || never_negative_find(u, p, set, *out_never);
}

// Finds the matrices of a parameter and the forms of its states, and adds the states. False:
// reported.
bool lm_parameter_prepare(updater *u, parameter *p) {
  lm_elab *e = u->e;
  int64_t n_paths = e->m->globals[p->global].n_paths;
  int *calls = LM_NEW_N(e->a, int, n_paths), most = 0;
  for (int64_t i = 0; i < n_paths; i++)
    most = p->sets[i] > most ? p->sets[i] : most;
  p->m = LM_NEW_N(e->a, lm_matrix **, most + 1);
  p->moments = LM_NEW_N(e->a, lm_moment *, most + 1);
  bool **never = LM_NEW_N(e->a, bool *, most + 1);
  for (int64_t i = 0; i < n_paths; i++) {
    int set = p->sets[i];
    while (u->uses[calls[i]].root->call != u->uses[set].root->call)
      calls[i]++;
    if (!never[set] && !set_prepare(u, p, set, &never[set]))
      return false;
    p->m[calls[i]] = p->m[set];
    if (!never[calls[i]])
      never[calls[i]] = never[set];
  }
  moments_choose(u, p, calls, never);
  return global_states_add(u, p, calls);
}
