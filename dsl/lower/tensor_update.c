// tensor_update.c - the update of one parameter (tensors.h).
#include "dsl/elab/call.h"
#include "dsl/lower/tensors.h"
#include <math.h>
#include <string.h>

// ---- the optimizers

// The steps between two extra gradients, a whole number. False: reported.
static bool every_find(lm_elab *e, const ast_member *extra, int64_t *out) {
  const ast_expr *every = lm_optimizer_extra_every(extra);
  bool has_unit = every->kind == EX_QUANTITY && !strcmp(every->unit, "steps");
  el_val v = has_unit ? el_number(e, every->num) : el_eval(e, every);
  double n = 0;
  bool known = el_number_value(&v, &n);
  *out = known && n >= 1 && n <= 1e15 && n == floor(n) ? (int64_t)n : 0;
  return *out || v.k == V_ERROR || EL_REJECT(e, extra->loc, E330);
}

// The extra gradient of the optimizers of x, if one takes it. False: reported.
static bool extra_find(updater *u, use *x) {
  lm_elab *e = u->e;
  const lm_optimizer *o = x->all.extra;
  if (!o)
    return true;
  const ast_decl *d = o->inst->decl;
  const ast_member *extra = lm_optimizer_extra(d);
  lm_lowered_extra own = {
      .at = o->call->loc,
      .of = d->name.text,
      .name = extra->names.v[0].text,
  };
  x->perturbs = o->extra->sig.ret;
  el_ref self;
  el_frame frame = lm_optimizer_frame(o->inst, &self), *was = e->frame;
  e->frame = &frame;
  bool ok = every_find(e, extra, &own.every);
  e->frame = was;
  if (!ok)
    return false;
  if (!u->extra->name)
    *u->extra = own;
  if (own.name != u->extra->name || own.every != u->extra->every)
    return EL_REJECT(e, own.at, E333, u->extra->name, (long long)u->extra->every, own.name,
                     (long long)own.every);
  return true;
}

bool lm_use_make(updater *u, uint64_t set, const el_val *rate, use *out, el_val *out_lr) {
  lm_elab *e = u->e;
  uint32_t group;
  const lm_recipe_call *call = lm_groups_optimizer(u->r, set, &group);
  lm_group_sets one = {&set, 1};
  el_val unused;
  *out = (use){0};
  if (!call->target.decl || !lm_optimizers_make(e, call, &out->all))
    return false;
  out->root = out->all.v[0];
  for (uint32_t i = 0; i < out->all.n; i++)
    out->matrices |= out->all.v[i]->type.form == LM_UPDATE_MATRIX;
  return lm_groups_bind(e, u->r, out->root, false, &one, NULL, NULL, rate, out_lr) &&
         lm_groups_bind(e, u->r, out->root, true, &one, NULL, NULL, NULL, &unused) &&
         extra_find(u, out);
}

// ---- types

lm_type lm_without_stack(const lm_global *g, lm_type t) {
  return lm_type_make((lm_dtype)t.dtype, t.axis + g->n_stack, t.rank - g->n_stack);
}

lm_type lm_own_type(const lm_global *g) {
  return lm_without_stack(g, g->type);
}

el_axes lm_element_axes(lm_elab *e, const lm_global *g, const use *x) {
  el_axes axes = lm_tensor_axes(e, g);
  for (uint32_t k = 0; x->root->type.form == LM_UPDATE_ELEMENT && k < axes.n; k++)
    axes.v[k]->element = true;
  return axes;
}

// ---- one evaluation of `update`

bool lm_update_body(updater *u, const use *x, lm_matrix *const *m, const el_axes *axes,
                    lm_value **values) {
  el_axes none = {0};
  el_val out;
  bool is_eval = u->task == TO_EVAL, is_extra = u->task == EXTRA;
  lm_optimizer_values in = {
      .all = &x->all,
      .o = is_eval    ? x->all.view
           : is_extra ? x->all.extra
                      : x->root,
      .method = is_eval    ? LM_METHOD_EVAL
                : is_extra ? LM_METHOD_EXTRA
                           : LM_METHOD_UPDATE,
      .args = {el_tensor(K_F32, axes, values[0]), el_tensor(K_F32, axes, values[1]), u->step,
               el_tensor(K_F32, &none, u->norm), el_tensor(K_F32, &none, u->weight)},
      .state = values + 2,
      .m = m,
  };
  if (!lm_optimizer_run(u->e, &in, &out))
    return false;
  values[0] = out.v;
  return true;
}

// ---- the update of a parameter

static bool takes_gradient(const updater *u) {
  return u->task == UPDATE || u->task == EXTRA;
}

// The contents of memory at the indices of `at`: p, the gradient, the states.
static lm_value **values_read(updater *u, const use *x, const lm_global *g, const lm_attr *at,
                              lm_value *const *index, uint32_t *out_n) {
  lm_elab *e = u->e;
  uint32_t n = (uint32_t)g->n_stack;
  const lm_global **states = LM_NEW_N(e->a, const lm_global *, e->m->n_globals + 1);
  *out_n = lm_global_states(e->m, g, at, states);
  lm_value **v = LM_NEW_N(e->a, lm_value *, *out_n + 2);
  v[0] = lm_emit(&e->b, LM_OP_PARAM, index, n, at, NULL);
  v[1] = v[0];
  if (takes_gradient(u))
    v[1] = lm_emit(&e->b, LM_OP_GRADIENT, index, n, at, NULL);
  for (uint32_t k = 0; k < *out_n; k++) {
    lm_attr own = *at;
    own.sym = states[k]->name;
    if (n)
      own.imm[2 * n - 2] -= states[k]->first;
    v[2 + k] = lm_emit(&e->b, LM_OP_PARAM, index, n, &own, NULL);
  }
  if (x->perturbs && takes_gradient(u))
    v[0] = v[1 + *out_n - (x->all.view != NULL)]; // the unperturbed weights
  return v;
}

// What the body of an optimizer computes with: the values of `stored` decoded, and in blocks if
// `blocks` has axes.
static lm_value **values_decode(updater *u, const use *x, const lm_moment *moments, lm_type blocks,
                                lm_value *const *stored) {
  lm_elab *e = u->e;
  lm_value **v = LM_NEW_N(e->a, lm_value *, x->all.states.n + 2);
  uint32_t at = 2;
  for (uint32_t k = 0; k < x->all.states.n + 2; k++) {
    const lm_moment *form = k < 2 ? NULL : &moments[k - 2];
    bool own_axes = k >= 2 && x->all.states.v[k - 2].has_own_axes;
    if (form && form->block) {
      v[k] = lm_moment_decode(e, form, stored[at], stored[at + 1]);
      v[k] = blocks.rank ? v[k] : lm_moment_join(e, v[k], stored[0]->type);
      at += 2;
      continue;
    }
    v[k] = lm_emit_cast(&e->b, form ? stored[at++] : stored[k], LM_F32);
    if (blocks.rank && !own_axes)
      v[k] = lm_moment_divide(e, v[k], blocks);
    if (k == 1 && takes_gradient(u))
      v[k] = lm_emit2(&e->b, LM_OP_MUL, v[k], u->scale);
  }
  return v;
}

// The inverse for state k after the update: appends one or two values to `out`. old_scale: of a
// state in blocks.
static uint32_t state_encode(updater *u, const lm_moment *form, lm_value *x, lm_value *good,
                             lm_value *const *stored, lm_value **out) {
  lm_elab *e = u->e;
  lm_type own = stored[0]->type;
  if (form->block) {
    lm_type blocks = stored[0]->type;
    if (!lm_type_equal(x->type, lm_type_make(LM_F32, blocks.axis, blocks.rank))) {
      blocks.dtype = LM_F32;
      x = lm_moment_divide(e, x, blocks);
    }
    lm_moment_encode(e, form, x, good, stored[1], &out[0], &out[1]);
    return 2;
  }
  if (!lm_type_same_axes(x->type, own))
    x = lm_moment_join(e, x, own);
  out[0] = lm_emit_cast(&e->b, x, form->dtype);
  return 1;
}

// The row-major index of the stacked axes of a parameter.
static lm_value *instance_of(updater *u, const lm_global *g, const lm_attr *at,
                             lm_value *const *index) {
  lm_builder *b = &u->e->b;
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  lm_value *all = lm_emit_const(b, number, 0);
  for (int s = 0; s < g->n_stack; s++) {
    lm_value *first = lm_emit_const(b, number, (double)at->imm[2 * s]);
    lm_value *own = lm_emit2(b, LM_OP_ADD, index[s], first);
    double size = (double)lm_axis_size(u->e->m, g->type.axis[s]);
    lm_value *outer = lm_emit2(b, LM_OP_MUL, all, lm_emit_const(b, number, size));
    all = s ? lm_emit2(b, LM_OP_ADD, outer, own) : own;
  }
  return all;
}

// The new contents of the parameter and its states. new, old: p, g and the states, as the body sees
// them. The old ones remain if the step is skipped, for which grad_scale
// is NaN. draw: for a parameter in bf16.
static void update_encode(updater *u, const use *x, const lm_moment *moments, lm_value *const *new,
                          lm_value *const *old, lm_value *const *stored, const lm_master_draw *draw,
                          lm_value **out) {
  lm_elab *e = u->e;
  uint32_t at = 1;
  for (uint32_t k = 0; k <= x->all.states.n; k++) {
    lm_value *good = lm_emit2(&e->b, LM_OP_EQ, u->scale, u->scale);
    lm_value *v = lm_emit_select(&e->b, good, new[k ? k + 1 : 0], old[k ? k + 1 : 0]);
    const lm_moment of_param = {.dtype = (lm_dtype)stored[0]->type.dtype};
    bool keeps = !k && u->task == EXTRA && !x->perturbs;
    if (!k && of_param.dtype == LM_BF16 && !keeps)
      v = lm_master_round(u->e, v, draw);
    if (k)
      at += state_encode(u, &moments[k - 1], v, good, stored + at + 1, out + at);
    else if (keeps)
      out[0] = stored[0];
    else
      state_encode(u, &of_param, v, good, stored, out);
  }
  if (x->perturbs) {
    out[at] = u->task == EXTRA ? stored[0] : out[0]; // the unperturbed weights
    at++;
  }
  if (x->all.view)
    out[at] = stored[at + 1]; // the trained weights
}

// The contents after an exchange of the trained weights, which are the last state, for those of
// evaluations, p, or back. n: the parameter and its states.
static void exchange(const updater *u, lm_value *p, lm_value *const *stored, uint32_t n,
                     lm_value **out) {
  for (uint32_t k = 0; k < n; k++)
    out[k] = stored[k ? k + 1 : 0];
  if (u->task == TO_EVAL)
    out[n - 1] = stored[0];
  out[0] = u->task == TO_EVAL ? p : stored[n];
}

static void values_assign(updater *u, const lm_attr *at, lm_value *const *index,
                          lm_value *const *values, uint32_t n) {
  uint32_t n_index = at->n_imm / 2u;
  lm_value **in = LM_NEW_N(u->e->a, lm_value *, n_index + n);
  memcpy(in, index, sizeof *in * n_index);
  memcpy(in + n_index, values, sizeof *in * n);
  lm_emit_op(&u->e->b, LM_OP_ASSIGN, in, n_index + n, at, NULL);
}

// The blocks in which the body of an optimizer sees a parameter: those of its states, if they
// divide the parameter evenly and the optimizer sees no matrix.
static lm_type blocks_of(updater *u, const use *x, const lm_moment *moments, lm_type own) {
  lm_type none = {0};
  for (uint32_t k = 0; k < x->all.states.n; k++) {
    int64_t block = moments[k].block;
    if (block && !x->matrices && lm_type_elements(u->e->m, own) % block == 0)
      return lm_moment_blocks(u->e, own, block);
  }
  return none;
}

// Emits the task for values at `at`. False: reported.
static bool values_update(updater *u, const use *x, const lm_global *g, lm_matrix *const *m,
                          const lm_moment *moments, const lm_attr *at, lm_value *const *index) {
  lm_elab *e = u->e;
  uint32_t n;
  lm_value **stored = values_read(u, x, g, at, index, &n);
  lm_type own = stored[0]->type, blocks = blocks_of(u, x, moments, own);
  lm_value **out = LM_NEW_N(e->a, lm_value *, n + 1);
  if (u->task == TO_TRAIN) {
    exchange(u, NULL, stored, n + 1, out);
    values_assign(u, at, index, out, n + 1);
    return true;
  }
  lm_value **old = values_decode(u, x, moments, blocks, stored);
  lm_value **new = LM_NEW_N(e->a, lm_value *, x->all.states.n + 2);
  memcpy(new, old, sizeof *new *(x->all.states.n + 2));
  el_axes axes = blocks.rank ? lm_moment_axes(e, blocks, x->root->type.form == LM_UPDATE_ELEMENT)
                             : lm_element_axes(e, g, x);
  if (!lm_update_body(u, x, m, &axes, new))
    return false;
  if (takes_gradient(u)) {
    lm_master_draw draw = {
        .name = g->name,
        .step = u->step_number,
    };
    if (own.dtype == LM_BF16)
      draw.instance = instance_of(u, g, at, index);
    update_encode(u, x, moments, new, old, stored, &draw, out);
  } else {
    lm_value *p = blocks.rank ? lm_moment_join(e, new[0], own) : new[0];
    exchange(u, lm_emit_cast(&e->b, p, (lm_dtype)own.dtype), stored, n + 1, out);
  }
  values_assign(u, at, index, out, n + 1);
  return true;
}

bool lm_instances_update(updater *u, uint32_t global, const use *x, lm_matrix *const *m,
                         const lm_moment *moments, const instances *some) {
  lm_elab *e = u->e;
  const lm_global *g = &e->m->globals[global];
  lm_attr at = {
      .sym = g->name,
      .n_imm = (uint8_t)(2 * g->n_stack),
  };
  lm_value *index[LM_RANK];
  lm_op *loops[LM_RANK] = {0};
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
  bool ok = values_update(u, x, g, m, moments, &at, index);
  for (int s = g->n_stack - 1; ok && s >= 0; s--)
    if (loops[s])
      lm_loop_end(&e->b, loops[s], NULL, 0, NULL, 0);
  return ok;
}
