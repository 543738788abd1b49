// optim.c - the optimizer and the schedule as functions @norm, @rates and @update.
//
// The optimizer's body runs once over the whole parameter arena, f32[blk, el] (update.c).
// What depends on no element (bias corrections, the schedule) is a float64 scalar and moves to
// @rates (rates.c). An argument that groups override is chosen block by block:
//   %decay = select(%group == 1, 0, %rate.3)  : f32[blk]
#include "dsl/lower/internal.h"
#include "runtime/plan/plan.h"
#include <string.h>

// ---- groups
static bool group_sets(const lm_recipe_group *g, lm_sym name) {
  for (uint32_t i = 0; i < g->n_args; i++)
    if (g->args[i].name == name)
      return true;
  return false;
}

// Arguments of optimizer parameter `k` of every combination are few: each path belongs to the set
// of groups that match it. A set is numbered in the order of its first block.
typedef struct {
  uint64_t *sets;
  int n;
} combos;

static int combo_of(lm_elab *e, combos *c, uint64_t set) {
  for (int i = 0; i < c->n; i++)
    if (c->sets[i] == set)
      return i;
  uint64_t *now = LM_NEW_N(e->a, uint64_t, c->n + 1);
  if (c->n)
    memcpy(now, c->sets, sizeof *now * (size_t)c->n);
  c->sets = now;
  now[c->n] = set;
  return c->n++;
}

static void report_group(lm_elab *e, lm_lowered *out, const lm_recipe_group *g, uint32_t hits) {
  (void)LM_PUSH(e->a, out->resolved, out->n_resolved, out->cap_resolved);
  out->resolved[out->n_resolved - 1].pattern = g->pattern;
  out->resolved[out->n_resolved - 1].what = "group";
  out->resolved[out->n_resolved - 1].n = hits;
}

// Every alternative of a pattern must match some parameter.
static void check_pattern(lm_elab *e, const char *pattern, lm_loc at) {
  int n;
  const char **alts = lm_pattern_expand(e->c, pattern, &n);
  for (int k = 0; k < n; k++) {
    bool hit = false;
    const char *last = strrchr(alts[k], '.'), *nearest = NULL;
    const char *names[256];
    int m = 0;
    for (uint32_t i = 0; i < e->m->n_globals && !hit; i++) {
      const lm_global *g = &e->m->globals[i];
      for (int64_t j = 0; g->kind == LM_GLOBAL_PARAM && j < g->n_paths && !hit; j++)
        hit = lm_pattern_match(e->c, alts[k], g->paths[j], NULL);
      const char *own = strrchr(g->name, '.');
      if (m < 256)
        names[m++] = own ? own + 1 : g->name;
    }
    if (hit)
      continue;
    nearest = lm_nearest(last ? last + 1 : alts[k] + 1, names, m);
    lm_diag *d =
        el_err(e, at, "E0B0", n > 1 ? "%s: '%s' matches no parameter" : "'%s' matches no parameter",
               pattern, alts[k]);
    if (nearest)
      lm_diag_help(e->c, d, "there is a parameter '%s'", nearest);
  }
}

static combos assign_groups(lm_elab *e, lm_recipe *r, lm_lowered *out) {
  combos c = {0};
  combo_of(e, &c, 0);
  if (r->n_groups > 63)
    el_err(e, r->groups[63].loc, "E0B1", "more than 63 groups");
  for (uint32_t i = 0; i < r->n_groups; i++)
    check_pattern(e, r->groups[i].pattern, r->groups[i].loc);
  uint32_t hits[64] = {0};
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; g->kind == LM_GLOBAL_PARAM && j < g->n_paths; j++) {
      uint64_t set = 0;
      for (uint32_t k = 0; k < r->n_groups && k < 63; k++)
        if (lm_pattern_match(e->c, r->groups[k].pattern, g->paths[j], NULL)) {
          set |= 1ull << k;
          hits[k]++;
        }
      lm_lowered_path *p = &LM_PUSH(e->a, out->paths, out->n_paths, out->cap_paths);
      *p = (lm_lowered_path){g->paths[j], combo_of(e, &c, set)};
    }
  }
  for (uint32_t k = 0; k < r->n_groups && k < 63; k++)
    report_group(e, out, &r->groups[k], hits[k]);
  return c;
}

// ---- numbers that no element enters
static el_val host_scalar(lm_value *v) {
  el_axes none = {0};
  return el_tensor(K_NUM, &none, v);
}

// schedule(step, run, …)
static el_val schedule(lm_elab *e, const lm_recipe *r, el_val step, el_val run) {
  if (!r->schedule.name || !r->schedule.target.decl)
    return el_whole(e, 1);
  const ast_decl *d = r->schedule.target.decl;
  if (d->kind != DC_FN || d->sig.n_params < 2)
    return el_fail(e, r->schedule.loc, "E0B2",
                   "a schedule is an fn (step: f32, run: f32, …) -> f32");
  ast_expr *call = LM_NEW(e->a, ast_expr);
  ast_expr *name = LM_NEW(e->a, ast_expr);
  *name = (ast_expr){.kind = EX_NAME, .text = d->name.text, .loc = r->schedule.loc};
  *call = (ast_expr){
      .kind = EX_CALL, .a = name, .loc = r->schedule.loc, .n_args = r->schedule.n_args + 2};
  call->args = LM_NEW_N(e->a, ast_arg, call->n_args);
  for (int i = 0; i < 2; i++) {
    lm_sym hidden = LM_SYM(e->c, i ? LM_SCHEDULE_RUN : LM_SCHEDULE_STEP);
    ast_expr *x = LM_NEW(e->a, ast_expr);
    *x = (ast_expr){.kind = EX_NAME, .text = hidden, .loc = r->schedule.loc};
    call->args[i] = (ast_arg){.kind = ARG_POS, .loc = r->schedule.loc, .expr = x};
    el_bind_name(e, hidden, i ? run : step, false);
  }
  if (r->schedule.n_args)
    memcpy(call->args + 2, r->schedule.args, sizeof(ast_arg) * r->schedule.n_args);
  const lm_file *was = e->frame->file;
  e->frame->file = r->schedule.target.file;
  el_val v = el_eval(e, call);
  e->frame->file = was;
  if (v.k != V_ERROR && v.k != V_NUM && (v.k != V_TENSOR || v.axes.n))
    return el_fail(e, r->schedule.loc, "E0B2", "the schedule gives %s, not a number",
                   el_show(e, &v));
  return v;
}

// One number for each block: of n options the one whose index is the block's group.
static el_val choose_number(lm_elab *e, const el_val *options, int n, lm_value *group,
                            const el_axes *blk, lm_loc at) {
  lm_value *v = NULL;
  lm_type scalar = lm_type_make(LM_INT, NULL, 0);
  for (int i = 0; i < n; i++) {
    el_val o = el_adapt(e, &options[i], K_F32, at);
    if (o.k != V_TENSOR)
      return el_error();
    if (!v) {
      v = lm_emit_expand(&e->b, o.v, el_ir_type(e, K_F32, blk));
      continue;
    }
    lm_value *is = lm_emit2(&e->b, LM_OP_EQ, group, lm_emit_const(&e->b, scalar, i));
    v = lm_emit_select(&e->b, is, o.v, v);
  }
  return el_tensor(K_F32, blk, v);
}

static el_val choose_by_block(lm_elab *e, const el_val *options, int n, lm_value *group,
                              const el_axes *blk, lm_loc at) {
  if (options[0].k == V_BOOL)
    return el_fail(e, at, "E073", "a condition of an optimizer is the same for all groups");
  if (options[0].k != V_TUPLE)
    return choose_number(e, options, n, group, blk, at);
  el_val all = el_tuple(e, options[0].items, options[0].n);
  el_val *one = LM_NEW_N(e->a, el_val, n);
  for (uint32_t k = 0; k < all.n; k++) {
    for (int i = 0; i < n; i++)
      one[i] = options[i].items[k];
    all.items[k] = choose_number(e, one, n, group, blk, at);
    if (all.items[k].k == V_ERROR)
      return el_error();
  }
  return all;
}

// Values of the optimizer's parameters, by combination of groups, and where they stand.
typedef struct {
  el_val *v;
  lm_loc *at;
} hyper;

static bool base_value(lm_elab *e, const lm_recipe *r, el_inst *inst, uint32_t k, el_val *out,
                       lm_loc *out_at) {
  const ast_param *p = &inst->decl->sig.params[k];
  const ast_expr *x = el_argument(r->optimizer.args, r->optimizer.n_args, &inst->decl->sig, k);
  const lm_file *was = e->frame->file;
  e->frame->file = x ? r->optimizer.file : inst->file;
  *out = el_eval(e, x ? x : p->init);
  *out_at = x ? x->loc : r->optimizer.loc;
  e->frame->file = was;
  return out->k != V_ERROR;
}

// The last group of the set that gives the parameter.
static void group_value(lm_elab *e, const lm_recipe *r, const ast_sig *sig, uint64_t set,
                        uint32_t k, el_val *out, lm_loc *out_at) {
  const lm_file *was = e->frame->file;
  for (uint32_t g = 0; g < r->n_groups && g < 63; g++) {
    if (!(set >> g & 1) || !group_sets(&r->groups[g], sig->params[k].name.text))
      continue;
    const ast_expr *x = el_argument(r->groups[g].args, r->groups[g].n_args, sig, k);
    e->frame->file = r->groups[g].file;
    *out = el_eval(e, x);
    *out_at = x->loc;
  }
  e->frame->file = was;
}

static bool hyper_read(lm_elab *e, const lm_recipe *r, el_inst *inst, const combos *c, uint32_t k,
                       hyper *out) {
  *out = (hyper){LM_NEW_N(e->a, el_val, c->n), LM_NEW_N(e->a, lm_loc, c->n)};
  if (!base_value(e, r, inst, k, &out->v[0], &out->at[0]))
    return false;
  for (int s = 1; s < c->n; s++) {
    out->v[s] = out->v[0];
    out->at[s] = out->at[0];
    group_value(e, r, &inst->decl->sig, c->sets[s], k, &out->v[s], &out->at[s]);
    if (out->v[s].k == V_ERROR)
      return false;
  }
  return true;
}

// An argument is of its default's form: a number, a condition, so many numbers. Without a default
// it is any of these.
static bool hyper_fits(lm_elab *e, const el_inst *inst, uint32_t k, const el_val *v, lm_loc at) {
  const ast_param *p = &inst->decl->sig.params[k];
  const lm_file *was = e->frame->file;
  e->frame->file = inst->file;
  el_val like = p->init ? el_eval(e, p->init) : *v;
  e->frame->file = was;
  if (v->k == like.k && v->n == like.n && (v->k == V_NUM || v->k == V_BOOL || v->k == V_TUPLE))
    return true;
  lm_diag *d =
      el_err(e, at, "E073", "%s takes %s for %s; got %s", inst->decl->name.text,
             !p->init ? "a number" : lm_arena_printf(e->a, "a value such as %s", el_show(e, &like)),
             p->name.text, el_show(e, v));
  lm_diag_note(e->c, d, p->name.loc, "declared here");
  return false;
}

// The optimizer's constraints, for each combination.
static bool hyper_check(lm_elab *e, const lm_recipe *r, const el_inst *inst, const combos *c,
                        const hyper *of) {
  const ast_sig *sig = &inst->decl->sig;
  const el_bind *was = e->frame->names.last;
  bool all = true;
  for (int s = 0; s < c->n && all; s++) {
    for (uint32_t k = 0; k < sig->n_params; k++)
      if (!hyper_fits(e, inst, k, &of[k].v[s], of[k].at[s]))
        return false;
    lm_loc *at = LM_NEW_N(e->a, lm_loc, sig->n_params + 1);
    for (uint32_t k = 0; k < sig->n_params; k++) {
      el_bind_name(e, sig->params[k].name.text, of[k].v[s], false);
      at[k] = of[k].at[s];
    }
    all = el_where_check_all(e, &(el_where){sig, inst->decl->name.text, r->optimizer.loc, at});
    el_names_truncate(&e->frame->names, was);
  }
  return all;
}

// Where a group gives another value than the optimizer; no place if none does.
static lm_loc differing(const hyper *h, int n) {
  for (int s = 1; s < n; s++)
    if (h->at[s].line != h->at[0].line || h->at[s].col != h->at[0].col ||
        h->at[s].file != h->at[0].file)
      return h->at[s];
  return (lm_loc){0};
}

static bool same_for_all(const hyper *h, int n) {
  return !differing(h, n).file;
}

// The optimizer's parameters as values: numbers; or, where groups set them, one of several for each
// block. lr is what the schedule makes of it; *out_lr that of no group, an error if the optimizer
// has none.
static bool bind_hyperparameters(lm_elab *e, const lm_recipe *r, el_inst *inst, const combos *c,
                                 lm_value *group, const el_axes *blk, const el_val *rate,
                                 el_val *out_lr) {
  const ast_sig *sig = &inst->decl->sig;
  hyper *of = LM_NEW_N(e->a, hyper, sig->n_params + 1);
  *out_lr = el_error();
  for (uint32_t k = 0; k < sig->n_params; k++)
    if (!hyper_read(e, r, inst, c, k, &of[k]))
      return false;
  if (!hyper_check(e, r, inst, c, of))
    return false;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    lm_sym name = sig->params[k].name.text;
    bool is_lr = name == LM_SYM(e->c, "lr");
    for (int s = 0; s < c->n && is_lr; s++)
      of[k].v[s] = el_binary(e, OP_MUL, &of[k].v[s], rate, r->optimizer.loc);
    if (is_lr)
      *out_lr = of[k].v[0];
    el_val v = same_for_all(&of[k], c->n)
                   ? of[k].v[0]
                   : choose_by_block(e, of[k].v, c->n, group, blk, differing(&of[k], c->n));
    el_names_add(e, &inst->vals, name, v, false);
    if (v.k == V_ERROR)
      return false;
  }
  return true;
}

// ---- the schedule against the length of the run. One that --set or --steps made shorter is a
// trial, which may well end while the rate still grows.
static bool is_trial(const lm_recipe *r) {
  const char *near;
  const lm_recipe_origin *o = lm_recipe_origin_find(r, "run", &near);
  return o && !strcmp(o->who, "--set");
}

void lm_lower_schedule_check(lm_ctx *c, lm_program *prog, const lm_recipe *r, int64_t steps) {
  if (!r->schedule.name || is_trial(r))
    return;
  lm_elab *e = lm_elab_create(c, prog, lm_module_create(c));
  el_frame frame = {.file = r->schedule.target.file, .real = K_REAL};
  e->frame = &frame;
  e->mode = EL_UPDATE;
  e->b = (lm_builder){.m = e->m, .at = lm_func_add(e->m, LM_SYM(c, "schedule"))->body};
  schedule(e, r, el_whole(e, 1), el_whole(e, steps));
}

// ---- @norm and @update
static lm_value *arena_arg(lm_elab *e, lm_func *f, const el_axes *axes, lm_sym name) {
  return lm_arg_add(e->m, f->body, el_ir_type(e, K_F32, axes), name);
}

static void make_norm(lm_elab *e, const el_axes *axes) {
  lm_func *f = lm_func_add(e->m, LM_SYM(e->c, "norm"));
  lm_value *g = arena_arg(e, f, axes, LM_SYM(e->c, "g"));
  lm_builder b = {.m = e->m, .at = f->body};
  lm_value *sum = lm_emit_reduce(&b, LM_OP_SUM, lm_emit2(&b, LM_OP_MUL, g, g), g->type.axis, 2);
  lm_value *norm = lm_emit1(&b, LM_OP_SQRT, sum);
  lm_emit_op(&b, LM_OP_RETURN, &norm, 1, NULL, NULL);
  f->out_names = LM_NEW(e->a, lm_sym);
  f->out_names[0] = LM_SYM(e->c, "norm");
  f->n_out = 1;
}

// A scale that is not a number is a bad step's: what would be returned gives way to what was there.
// That shows in each element of the scaled gradient, so the question costs no loop of its own; a
// good step has a finite norm, so no such element. The arguments p and states stand in the order of
// the results, with g behind p.
static void bad_step_keep(lm_elab *e, lm_value *scaled, lm_region *body, lm_value **results,
                          int n) {
  lm_value *good = lm_emit2(&e->b, LM_OP_EQ, scaled, scaled);
  for (int i = 0; i < n; i++)
    results[i] = lm_emit_select(&e->b, good, results[i], body->args[i ? i + 1 : 0]);
}

static el_axis *element_axis(lm_elab *e, const char *name, int64_t size) {
  el_axis *x = el_axis_new(e, LM_SYM(e->c, name), lm_size_number(e->a, size), 0);
  x->element = true;
  return x;
}

// @update's results, in the order of its arguments p and states.
static void update_return(lm_elab *e, lm_func *f, const lm_lowered *l, const el_val *new,
                          lm_value *scaled) {
  uint32_t n = (uint32_t)l->n_states + 1;
  lm_value **results = LM_NEW_N(e->a, lm_value *, n);
  f->out_names = LM_NEW_N(e->a, lm_sym, n);
  f->n_out = n;
  for (uint32_t i = 0; i < n; i++) {
    results[i] = new[i].v;
    f->out_names[i] = i ? l->states[i - 1].name : LM_SYM(e->c, "p");
  }
  bad_step_keep(e, scaled, f->body, results, (int)n);
  lm_emit_op(&e->b, LM_OP_RETURN, results, n, NULL, NULL);
}

static bool is_host_scalar(const el_val *v) {
  return v->k == V_TENSOR && v->v && v->v->type.dtype == LM_F64 && v->v->type.rank == 0;
}

// The functions that are made, and their arguments.
typedef struct made {
  el_axes elements, blocks;
  lm_func *rates, *update;
  lm_value *step, *run;            // of @rates
  lm_value *p, *g, *scale, *group; // of @update; group: NULL if there is one
  lm_lowered_states states;
  el_val *state;
} made;

static void axes_make(lm_elab *e, const lm_lowered *l, made *m) {
  el_axis *b = element_axis(e, "blk", lm_lowered_blocks(l));
  el_axes_push(e, &m->elements, b);
  el_axes_push(e, &m->elements, element_axis(e, "el", LM_BLOCK));
  el_axes_push(e, &m->blocks, b);
}

static void rates_begin(lm_elab *e, made *m) {
  lm_type number = lm_type_make(LM_F64, NULL, 0);
  m->rates = lm_func_add(e->m, LM_SYM(e->c, "rates"));
  m->step = lm_arg_add(e->m, m->rates->body, number, LM_SYM(e->c, "step"));
  m->run = lm_arg_add(e->m, m->rates->body, number, LM_SYM(e->c, "run"));
}

// Arguments: p, g, the states, grad_scale, group.
static void update_begin(lm_elab *e, const ast_decl *d, bool groups, lm_loc at, made *m) {
  lm_func *f = m->update = lm_func_add(e->m, LM_SYM(e->c, "update"));
  m->p = arena_arg(e, f, &m->elements, LM_SYM(e->c, "p"));
  m->g = arena_arg(e, f, &m->elements, LM_SYM(e->c, "g"));
  e->b = (lm_builder){.m = e->m, .at = f->body, .loc = at};
  m->states = lm_optimizer_states(e, d);
  m->state = LM_NEW_N(e->a, el_val, m->states.n + 1);
  for (uint32_t i = 0; i < m->states.n; i++) {
    lm_value *arg = arena_arg(e, f, &m->elements, m->states.v[i].name);
    m->state[i] = el_tensor(K_F32, &m->elements, arg);
  }
  m->scale = lm_arg_add(e->m, f->body, lm_type_make(LM_F32, NULL, 0), LM_SYM(e->c, "grad_scale"));
  lm_type ints = el_ir_type(e, K_INT, &m->blocks);
  m->group = groups ? lm_arg_add(e->m, f->body, ints, LM_SYM(e->c, "group")) : NULL;
}

static void optimizer_make(lm_elab *e, lm_recipe *r, el_inst *inst, const ast_member *method,
                           const combos *c, lm_lowered *out) {
  made m = {0};
  el_val lr;
  axes_make(e, out, &m);
  make_norm(e, &m.elements);
  rates_begin(e, &m);
  update_begin(e, inst->decl, c->n > 1, method->loc, &m);
  out->states = m.states.v;
  out->n_states = (int)m.states.n;
  el_val rate = schedule(e, r, host_scalar(m.step), host_scalar(m.run));
  if (rate.k == V_ERROR)
    return;
  if (!bind_hyperparameters(e, r, inst, c, m.group, &m.blocks, &rate, &lr))
    return;
  if (lr.k != V_ERROR)
    lr = el_as_tensor(e, &lr, method->loc);
  lm_value *scaled = lm_emit2(&e->b, LM_OP_MUL, m.g, m.scale);
  el_val p = el_tensor(K_F32, &m.elements, m.p), g = el_tensor(K_F32, &m.elements, scaled);
  lm_optimizer_values in = {method, &m.elements, {p, g, host_scalar(m.step)}, m.states, m.state};
  el_val *now = LM_NEW_N(e->a, el_val, m.states.n + 1);
  if (!lm_optimizer_run(e, &in, now))
    return;
  update_return(e, m.update, out, now, scaled);
  lm_lower_rates(e, m.rates, m.update, is_host_scalar(&lr) ? lr.v : NULL);
}

void lm_lower_optimizer(lm_elab *e, lm_recipe *r, lm_lowered *out) {
  combos c = assign_groups(e, r, out);
  ast_decl *d = r->optimizer.target.decl;
  if (!d || d->kind != DC_OPTIMIZER)
    return;
  el_visit(e, d);
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){.decl = d, .file = r->optimizer.target.file, .path = LM_SYM(e->c, "")};
  el_ref self = {.inst = inst};
  el_frame frame = {.file = inst->file, .self = &self, .real = K_REAL, .what = d->name.text};
  e->frame = &frame;
  e->n_loops = 0;
  e->mode = EL_UPDATE;
  const ast_member *method = lm_optimizer_members(e, d);
  if (method)
    optimizer_make(e, r, inst, method, &c, out);
}
