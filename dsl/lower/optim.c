// optim.c - the optimizer and the schedule, as functions @norm, @rates and @update.
//
// If there is one optimizer, of elements, its body is evaluated once, over the arena of all
// parameters, f32[blk, el] (update.c); else for each parameter by itself (tensors.c). Values that
// depend on no element, such as bias corrections and the schedule, are float64 scalars and move to
// @rates (rates.c). An argument that groups set to different values is selected for each block
// (groups.c).
#include "dsl/lower/optimizer.h"
#include "runtime/base/diag_code.h"
#include "runtime/plan/plan.h"
#include <string.h>

// ---- @norm and @update
static lm_value *arena_arg(lm_elab *e, lm_func *f, const el_axes *axes, lm_sym name) {
  return lm_arg_add(e->m, f->body, el_ir_type(e, K_F32, axes), name);
}

// True if blocks have states, which the table `group` gives the group -1 and `own` the factor 0.
static bool has_states(const lm_module *m) {
  for (uint32_t i = 0; i < m->n_globals; i++)
    if (m->globals[i].untrained)
      return true;
  return false;
}

static void make_norm(lm_elab *e) {
  lm_func *f = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_NORM});
  lm_value *g = lm_arg_add(e->m, f->body, lm_type_blocks(e->m, LM_F32), lm_port_name(e, LM_PORT_G));
  lm_builder b = {
      .m = e->m,
      .at = f->body,
  };
  lm_value *square = lm_emit2(&b, LM_OP_MUL, g, g);
  if (has_states(e->m))
    square = lm_emit2(&b, LM_OP_MUL, square,
                      lm_arg_add(e->m, f->body, lm_type_make(LM_F32, g->type.axis, 1),
                                 lm_port_name(e, LM_PORT_OWN)));
  lm_value *sum = lm_emit_reduce(&b, LM_OP_SUM, square, g->type.axis, 2);
  lm_value *norm = lm_emit1(&b, LM_OP_SQRT, sum);
  lm_emit_op(&b, LM_OP_RETURN, &norm, 1, NULL, NULL);
  f->out_names = LM_NEW(e->a, lm_sym);
  f->out_names[0] = lm_port_name(e, LM_PORT_NORM);
  f->n_out = 1;
}

// Returns the old values if the step is skipped, which the caller requests by a scale of NaN. Then
// every element of the scaled gradient is NaN, so the test needs no separate loop. A step that is
// not skipped has a finite norm, so it has no such element. Nor does it update blocks of group -1;
// group: NULL if there are none. The arguments are p, g and the states; the results are p and the
// states.
static void skip_bad_step(lm_elab *e, lm_value *scaled, lm_value *group, lm_region *body,
                          lm_value **results, int n) {
  lm_value *good = lm_emit2(&e->b, LM_OP_EQ, scaled, scaled);
  lm_value *zero = lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
  if (group)
    good = lm_emit2(&e->b, LM_OP_AND, good, lm_emit2(&e->b, LM_OP_GE, group, zero));
  for (int i = 0; i < n; i++)
    results[i] = lm_emit_select(&e->b, good, results[i], body->args[i ? i + 1 : 0]);
}

static el_axis *element_axis(lm_elab *e, lm_axis ir) {
  const lm_axis_info *a = &e->m->axes[ir];
  el_axis *x = el_axis_new(e, a->name, lm_size_number(e->a, a->size), 0);
  x->ir = ir;
  x->element = true;
  return x;
}

typedef struct {
  lm_func *rates, *update;
  lm_value *step, *run; // of @rates
  lm_value *p, *g, *scale, *group;
  lm_value *elements; // of each block, before its padding; NULL: no function reads padding
  lm_value **state;   // by state of the optimizer and its arguments
} functions;

// GEMMs read the rows of padding behind a table (lm_global_stored_rows).
static bool has_padded_rows(const lm_module *m) {
  for (uint32_t i = 0; i < m->n_globals; i++) {
    const lm_global *g = &m->globals[i];
    if (g->kind == LM_GLOBAL_PARAM &&
        lm_global_stored_elements(m, g) * g->n_paths > lm_type_elements(m, g->type))
      return true;
  }
  return false;
}

// Keeps the padding at 0, whatever the optimizer makes of a gradient of 0: sgn(g) = g / |g| is NaN.
static lm_value *padding_clear(lm_elab *e, lm_value *p, lm_value *elements) {
  lm_type all = p->type, line = lm_type_make(LM_INT, &all.axis[1], 1);
  all.dtype = LM_INT;
  lm_value *at = lm_emit(&e->b, LM_OP_IOTA, NULL, 0, NULL, &line);
  lm_value *inside = lm_emit2(&e->b, LM_OP_LT, lm_emit_expand(&e->b, at, all), elements);
  return lm_emit_select(&e->b, inside, p, lm_emit_const(&e->b, lm_type_make(LM_F32, NULL, 0), 0));
}

// @update's results, in the order of its arguments p and states.
static void update_return(lm_elab *e, const functions *x, const lm_lowered *l, lm_value *p,
                          lm_value *scaled) {
  lm_func *f = x->update;
  uint32_t n = (uint32_t)l->n_states + 1;
  lm_value **results = LM_NEW_N(e->a, lm_value *, n);
  f->out_names = LM_NEW_N(e->a, lm_sym, n);
  f->n_out = n;
  for (uint32_t i = 0; i < n; i++) {
    results[i] = i ? x->state[i - 1] : p;
    f->out_names[i] = i ? l->states[i - 1].name : lm_port_name(e, LM_PORT_P);
  }
  if (x->elements)
    results[0] = padding_clear(e, results[0], x->elements);
  skip_bad_step(e, scaled, has_states(e->m) ? x->group : NULL, f->body, results, (int)n);
  lm_emit_op(&e->b, LM_OP_RETURN, results, n, NULL, NULL);
}

static bool is_host_scalar(const el_val *v) {
  return v->k == V_TENSOR && v->v && v->v->type.dtype == LM_F64 && v->v->type.rank == 0;
}

// ---- @rates and @update

static functions functions_begin(lm_elab *e, const lm_lowered_states *states, lm_loc at,
                                 const el_axes *axes, const el_axes *blk, bool has_groups) {
  lm_type number = lm_type_make(LM_F64, NULL, 0);
  functions f = {0};
  f.rates = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_RATES});
  f.update = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_UPDATE});
  lm_region *body = f.update->body;
  f.step = lm_arg_add(e->m, f.rates->body, number, lm_port_name(e, LM_PORT_STEP));
  f.run = lm_arg_add(e->m, f.rates->body, number, lm_port_name(e, LM_PORT_RUN));
  f.p = arena_arg(e, f.update, axes, lm_port_name(e, LM_PORT_P));
  f.g = arena_arg(e, f.update, axes, lm_port_name(e, LM_PORT_G));
  e->b = (lm_builder){
      .m = e->m,
      .at = body,
      .loc = at,
  };
  f.state = LM_NEW_N(e->a, lm_value *, states->n + 1);
  for (uint32_t i = 0; i < states->n; i++)
    f.state[i] = arena_arg(e, f.update, axes, states->v[i].name);
  f.scale =
      lm_arg_add(e->m, body, lm_type_make(LM_F32, NULL, 0), lm_port_name(e, LM_PORT_GRAD_SCALE));
  if (has_groups)
    f.group = lm_arg_add(e->m, body, el_ir_type(e, K_INT, blk), lm_port_name(e, LM_PORT_GROUP));
  if (has_padded_rows(e->m))
    f.elements =
        lm_arg_add(e->m, body, el_ir_type(e, K_INT, blk), lm_port_name(e, LM_PORT_ELEMENTS));
  return f;
}

static void lower_body(lm_elab *e, const lm_recipe *r, const lm_optimizers *tree,
                       const lm_group_sets *c, lm_lowered *out) {
  lm_optimizer *o = tree->v[0];
  lm_loc at = o->update->loc;
  el_axes axes = {0}, blk = {0};
  lm_type all = lm_type_blocks(e->m, LM_F32);
  el_axis *b = element_axis(e, all.axis[0]);
  el_axes_push(e, &axes, b);
  el_axes_push(e, &axes, element_axis(e, all.axis[1]));
  el_axes_push(e, &blk, b);
  functions f = functions_begin(e, &tree->states, at, &axes, &blk, c->n > 1 || has_states(e->m));
  out->states = tree->states.v;
  out->n_states = (int)tree->states.n;
  el_val rate = lm_lower_schedule(e, r, lm_host_scalar(f.step), lm_host_scalar(f.run));
  el_val lr, new;
  if (rate.k == V_ERROR || !lm_groups_bind(e, r, o, false, c, f.group, &blk, &rate, &lr))
    return;
  if (lr.k != V_ERROR)
    lr = el_as_tensor(e, &lr, at);
  lm_value *scaled = lm_emit2(&e->b, LM_OP_MUL, f.g, f.scale);
  el_val p = el_tensor(K_F32, &axes, f.p), g = el_tensor(K_F32, &axes, scaled);
  lm_optimizer_values in = {
      .all = tree,
      .o = o,
      .args = {p, g, lm_host_scalar(f.step)},
      .state = f.state,
  };
  if (!lm_optimizer_run(e, &in, &new))
    return;
  update_return(e, &f, out, new.v, scaled);
  lm_lower_rates(e, f.rates, f.update, is_host_scalar(&lr) ? lr.v : NULL);
}

// True if the recipe's optimizer updates all parameters, each element by itself and by the gradient
// of the step alone, evaluations use the same weights, and all parameters and states are f32.
static bool is_of_elements(const lm_recipe *r, const lm_group_sets *c, const lm_optimizers *all) {
  uint32_t group;
  if (r->precision.moments != LM_RECIPE_MOMENTS_F32 || r->precision.master_bf16)
    return false; // each parameter and its states may have another type
  for (int s = 0; s < c->n; s++)
    if (lm_groups_optimizer(r, c->sets[s], &group) != &r->optimizer)
      return false;
  for (uint32_t i = 0; i < all->n; i++)
    if (all->v[i]->type.form != LM_UPDATE_ELEMENT)
      return false;
  return !all->view && !all->extra;
}

void lm_lower_optimizer(lm_elab *e, const lm_recipe *r, lm_lowered *out) {
  lm_group_sets c = lm_groups_assign(e, r, out);
  ast_decl *d = r->optimizer.target.decl;
  if (!d || d->kind != DC_OPTIMIZER)
    return;
  el_frame frame = {
      .file = r->optimizer.target.file,
      .real = K_REAL,
  };
  el_frame *was = e->frame;
  lm_optimizers all;
  e->frame = &frame;
  e->n_loops = 0;
  e->mode = EL_UPDATE;
  if (lm_optimizers_make(e, &r->optimizer, &all) && lm_groups_check(e, r, &c)) {
    make_norm(e);
    if (is_of_elements(r, &c, &all))
      lower_body(e, r, &all, &c, out);
    else
      lm_lower_tensors(e, r, &c, out);
  }
  e->frame = was;
}
