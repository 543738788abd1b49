// groups.c - the groups of a recipe: which parameters of the model each one matches, and the
// optimizer's parameters that it sets.
//
//   group @**.{n1,n2,norm} = (decay = 0)
//   ->
//   %decay = select(%group == 1, 0, %rate.3)  : f32[blk]
//
// `group` is the index of a block's set of groups. An optimizer parameter with one value for all
// sets is a scalar.
#include "dsl/elab/edit.h"
#include "dsl/lower/optimizer.h"
#include <limits.h>
#include <string.h>

enum {
  MAX_GROUPS = 63
};

static bool group_sets(const lm_recipe_group *g, lm_sym name) {
  for (uint32_t i = 0; i < g->n_args; i++)
    if (g->args[i].name == name)
      return true;
  return false;
}

// The index of a set in the list of sets, to which it is added if it is new.
static int set_index(lm_elab *e, lm_group_sets *c, uint64_t set) {
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

// The set of groups that match a parameter.
static uint64_t set_of(lm_elab *e, const lm_recipe *r, lm_sym path, uint32_t *hits) {
  uint64_t set = 0;
  for (uint32_t k = 0; k < r->n_groups && k < MAX_GROUPS; k++)
    if (lm_pattern_match(e->c, r->groups[k].pattern, path, NULL)) {
      set |= 1ull << k;
      hits[k]++;
    }
  return set;
}

static bool has_param(const ast_sig *sig, lm_sym name) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (sig->params[i].name.text == name)
      return true;
  return false;
}

// True if the optimizer of the call, or one that is an argument of it, has the parameter.
static bool call_has(const lm_recipe_call *call, lm_sym name) {
  const ast_decl *d = call->target.decl;
  bool found = !d || has_param(&d->sig, name);
  for (uint32_t i = 0; !found && call->inner && i < d->sig.n_params; i++)
    found = call->inner[i].name && call_has(&call->inner[i], name);
  return found;
}

bool lm_groups_check(lm_elab *e, const lm_recipe *r, const lm_group_sets *c) {
  bool ok = true;
  for (uint32_t g = 0; g < r->n_groups && g < MAX_GROUPS; g++)
    for (uint32_t i = 0; i < r->groups[g].n_args; i++) {
      const ast_arg *a = &r->groups[g].args[i];
      bool taken = false;
      uint32_t from;
      for (int s = 0; s < c->n; s++) {
        const lm_recipe_call *call = lm_groups_optimizer(r, c->sets[s], &from);
        taken |= c->sets[s] >> g & 1 && call_has(call, a->name);
      }
      if (!taken && c->n > 1)
        EL_ERR(e, a->name_loc, E0EE, r->groups[g].pattern, a->name);
      ok &= taken || c->n <= 1;
    }
  return ok;
}

lm_group_sets lm_groups_assign(lm_elab *e, const lm_recipe *r, lm_lowered *out) {
  lm_group_sets c = {0};
  set_index(e, &c, 0);
  if (r->n_groups > MAX_GROUPS)
    EL_ERR(e, r->groups[MAX_GROUPS].loc, E0B1, MAX_GROUPS);
  for (uint32_t i = 0; i < r->n_groups; i++)
    el_pattern_check(e, r->groups[i].pattern, r->groups[i].loc, INT_MAX, NULL);
  uint32_t hits[MAX_GROUPS] = {0};
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; g->kind == LM_GLOBAL_PARAM && j < g->n_paths; j++) {
      uint64_t set = g->untrained ? 0 : set_of(e, r, g->paths[j], hits);
      lm_lowered_path *p = &LM_PUSH(e->a, out->paths, out->n_paths, out->cap_paths);
      *p = (lm_lowered_path){g->paths[j], g->untrained ? -1 : set_index(e, &c, set)};
    }
  }
  for (uint32_t k = 0; k < r->n_groups && k < MAX_GROUPS; k++)
    report_group(e, out, &r->groups[k], hits[k]);
  return c;
}

// ---- values of the optimizer's parameters
// One number for each block: the option whose index is the group of the block.
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
    return EL_FAIL(e, at, E0C8);
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

// The values of an optimizer parameter and their locations, by set of groups.
typedef struct {
  el_val *v;
  lm_loc *at;
} values;

const lm_recipe_call *lm_groups_optimizer(const lm_recipe *r, uint64_t set, uint32_t *out_group) {
  const lm_recipe_call *call = &r->optimizer;
  *out_group = 0;
  for (uint32_t g = 0; g < r->n_groups && g < MAX_GROUPS; g++)
    if (set >> g & 1 && r->groups[g].optimizer.name) {
      call = &r->groups[g].optimizer;
      *out_group = g;
    }
  return call;
}

static el_val evaluate(lm_elab *e, const ast_expr *x, const lm_file *file) {
  const lm_file *was = e->frame->file;
  e->frame->file = file;
  el_val v = el_eval(e, x);
  e->frame->file = was;
  return v;
}

// True if an optimizer around o has the parameter, which groups then set for it alone.
static bool is_taken(const lm_optimizer *o, lm_sym name) {
  for (o = o->up; o; o = o->up)
    if (has_param(&o->inst->decl->sig, name))
      return true;
  return false;
}

// The value of parameter k: of the last group of the set that gives one, but an argument of the
// optimizer's call overrides groups before the one that has the call.
static el_val value_of(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, uint64_t set,
                       uint32_t k, lm_loc *out_at) {
  uint32_t from;
  const el_inst *inst = o->inst;
  const ast_sig *sig = &inst->decl->sig;
  const lm_recipe_call *call = o->call;
  lm_groups_optimizer(r, set, &from);
  const ast_expr *x = el_argument(call->args, call->n_args, sig, k);
  el_val v = evaluate(e, x ? x : sig->params[k].init, x ? call->file : inst->file);
  *out_at = x ? x->loc : call->loc;
  bool taken = is_taken(o, sig->params[k].name.text);
  for (uint32_t g = x ? from : 0; g < r->n_groups && g < MAX_GROUPS && !taken; g++) {
    const lm_recipe_group *group = &r->groups[g];
    if (!(set >> g & 1) || !group_sets(group, sig->params[k].name.text))
      continue;
    const ast_expr *own = el_argument(group->args, group->n_args, sig, k);
    v = evaluate(e, own, group->file);
    *out_at = own->loc;
  }
  return v;
}

static bool values_read(lm_elab *e, const lm_recipe *r, const lm_optimizer *o,
                        const lm_group_sets *c, uint32_t k, values *out) {
  *out = (values){LM_NEW_N(e->a, el_val, c->n), LM_NEW_N(e->a, lm_loc, c->n)};
  for (int s = 0; s < c->n; s++) {
    out->v[s] = value_of(e, r, o, c->sets[s], k, &out->at[s]);
    if (out->v[s].k == V_ERROR)
      return false;
  }
  return true;
}

// True if an argument has the form of the default: a number, a condition, or a tuple of the same
// length. Without a default it may have any of these forms.
static bool values_fits(lm_elab *e, const el_inst *inst, uint32_t k, const el_val *v, lm_loc at) {
  const ast_param *p = &inst->decl->sig.params[k];
  const lm_file *was = e->frame->file;
  e->frame->file = inst->file;
  el_val like = p->init ? el_eval(e, p->init) : *v;
  e->frame->file = was;
  if (v->k == like.k && v->n == like.n && (v->k == V_NUM || v->k == V_BOOL || v->k == V_TUPLE))
    return true;
  lm_diag *d =
      EL_ERR(e, at, E0C9, inst->decl->name.text,
             !p->init ? "a number" : lm_arena_printf(e->a, "a value such as %s", el_show(e, &like)),
             p->name.text, el_show(e, v));
  lm_diag_note(e->c, d, p->name.loc, "declared here");
  return false;
}

// Checks the constraints of the optimizer for each set of groups.
static bool values_check(lm_elab *e, const lm_optimizer *o, const lm_group_sets *c,
                         const values *of) {
  const el_inst *inst = o->inst;
  const ast_sig *sig = &inst->decl->sig;
  const el_bind *was = e->frame->names.last;
  bool all = true;
  for (int s = 0; s < c->n && all; s++) {
    for (uint32_t k = 0; k < sig->n_params; k++)
      if (!o->inner[k] && !values_fits(e, inst, k, &of[k].v[s], of[k].at[s]))
        return false;
    lm_loc *at = LM_NEW_N(e->a, lm_loc, sig->n_params + 1);
    for (uint32_t k = 0; k < sig->n_params; k++) {
      el_bind_name(e, sig->params[k].name.text, of[k].v[s], false);
      at[k] = of[k].at[s];
    }
    all = el_where_check_all(e, &(el_where){sig, inst->decl->name.text, o->call->loc, at});
    el_names_truncate(&e->frame->names, was);
  }
  return all;
}

// The location of a value that differs from the first; no file if all are the same.
static lm_loc differing(const values *h, int n) {
  for (int s = 1; s < n; s++)
    if (h->at[s].line != h->at[0].line || h->at[s].col != h->at[0].col ||
        h->at[s].file != h->at[0].file)
      return h->at[s];
  return (lm_loc){0};
}

static bool same_for_all(const values *h, int n) {
  return !differing(h, n).file;
}

// The value of an argument that is an optimizer.
static el_val optimizer_value(el_inst *inst) {
  return (el_val){
      .k = V_INST,
      .ref = {.inst = inst},
  };
}

// The values of the parameters of one optimizer. False: reported.
static bool all_read(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, const lm_group_sets *c,
                     bool for_eval, values *of) {
  for (uint32_t k = 0; k < o->inst->decl->sig.n_params; k++) {
    if (!o->inner[k] && !values_read(e, r, o, c, k, &of[k]))
      return false;
    if (!o->inner[k])
      continue;
    of[k] = (values){LM_NEW_N(e->a, el_val, c->n), LM_NEW_N(e->a, lm_loc, c->n)};
    for (int s = 0; s < c->n; s++) {
      of[k].v[s] = optimizer_value(for_eval ? o->inner[k]->eval_inst : o->inner[k]->inst);
      of[k].at[s] = o->inner[k]->call->loc;
    }
  }
  return values_check(e, o, c, of);
}

// In a frame of the optimizer.
static bool own_bind(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, bool for_eval,
                     const lm_group_sets *c, lm_value *group, const el_axes *blk,
                     const el_val *rate, el_val *out_lr) {
  el_inst *inst = for_eval ? o->eval_inst : o->inst;
  const ast_sig *sig = &inst->decl->sig;
  values *of = LM_NEW_N(e->a, values, sig->n_params + 1);
  if (!all_read(e, r, o, c, for_eval, of))
    return false;
  for (uint32_t k = 0; k < sig->n_params; k++) {
    lm_sym name = sig->params[k].name.text;
    bool is_lr = name == LM_SYM(e->c, "lr") && !o->inner[k];
    for (int s = 0; s < c->n && is_lr && !for_eval; s++)
      of[k].v[s] = el_binary(e, OP_MUL, &of[k].v[s], rate, r->optimizer.loc);
    if (is_lr && out_lr->k == V_ERROR)
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

static bool tree_bind(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, bool for_eval,
                      const lm_group_sets *c, lm_value *group, const el_axes *blk,
                      const el_val *rate, el_val *out_lr) {
  el_ref self;
  el_frame frame = lm_optimizer_frame(o->inst, &self), *was = e->frame;
  e->frame = &frame;
  bool ok = own_bind(e, r, o, for_eval, c, group, blk, rate, out_lr);
  e->frame = was;
  for (uint32_t k = 0; k < o->inst->decl->sig.n_params && ok; k++)
    ok = !o->inner[k] || tree_bind(e, r, o->inner[k], for_eval, c, group, blk, rate, out_lr);
  return ok;
}

bool lm_groups_bind(lm_elab *e, const lm_recipe *r, const lm_optimizer *o, bool for_eval,
                    const lm_group_sets *c, lm_value *group, const el_axes *blk, const el_val *rate,
                    el_val *out_lr) {
  *out_lr = el_error();
  return tree_bind(e, r, o, for_eval, c, group, blk, rate, out_lr);
}
