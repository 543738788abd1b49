// optimizer.c - the optimizers of a call: the one that it names, and those that are arguments of
// it.
//
//   optimizer = lookahead(adamw(lr = 1e-3), k = 5)
//   ->
//   lookahead            states: slow
//     inner: adamw       states: inner.m, inner.v
#include "dsl/lower/optimizer.h"

el_frame lm_optimizer_frame(el_inst *inst, el_ref *self) {
  *self = (el_ref){.inst = inst};
  return (el_frame){
      .file = inst->file,
      .self = self,
      .real = K_REAL,
      .what = inst->decl->name.text,
  };
}

static el_inst *inst_of(lm_elab *e, const lm_recipe_call *call) {
  el_inst *inst = LM_NEW(e->a, el_inst);
  *inst = (el_inst){
      .decl = call->target.decl,
      .file = call->target.file,
      .path = LM_SYM(e->c, ""),
  };
  return inst;
}

static const lm_optimizer *outermost_of_matrices(const lm_optimizer *o) {
  const lm_optimizer *found = NULL;
  for (o = o->up; o; o = o->up)
    if (o->type.form == LM_UPDATE_MATRIX)
      found = o;
  return found;
}

// The declaration of o, and its own states. False: reported.
static bool declaration_read(lm_elab *e, lm_optimizer *o, lm_optimizers *all) {
  const ast_decl *d = o->call->target.decl;
  el_ref self;
  el_frame frame = lm_optimizer_frame(o->inst, &self), *was = e->frame;
  e->frame = &frame;
  o->update = lm_optimizer_members(e, d);
  if (o->update) {
    o->eval = lm_optimizer_eval(d);
    o->extra = lm_optimizer_extra_method(d);
    o->type = o->merged = lm_update_type_of(d, o->update);
    lm_optimizer_states(e, d, o->prefix, &all->states);
  }
  e->frame = was;
  if (!o->update)
    return false;
  const lm_optimizer *outer = outermost_of_matrices(o);
  if (outer && o->type.form == LM_UPDATE_TENSOR)
    return EL_REJECT(e, o->call->loc, E337, outer->inst->decl->name.text, d->name.text);
  for (int k = 0; outer && o->type.form == LM_UPDATE_MATRIX && k < 2; k++)
    o->merged.axes[k] = outer->merged.axes[k];
  return true;
}

static lm_optimizer *add(lm_elab *e, const lm_recipe_call *call, lm_optimizer *up, lm_sym name,
                         lm_optimizers *all) {
  const ast_decl *d = call->target.decl;
  lm_optimizer *o = LM_NEW(e->a, lm_optimizer);
  *o = (lm_optimizer){
      .call = call,
      .up = up,
      .inst = inst_of(e, call),
      .eval_inst = inst_of(e, call),
      .prefix = up ? lm_arena_printf(e->a, "%s%s.", up->prefix, name) : "",
      .id = all->n,
      .first = all->states.n,
  };
  LM_PUSH(e->a, all->v, all->n, all->cap) = o;
  el_visit(e, d);
  if (!declaration_read(e, o, all))
    return NULL;
  o->own = all->states.n - o->first;
  o->inner = LM_NEW_N(e->a, lm_optimizer *, d->sig.n_params + 1);
  for (uint32_t i = 0; call->inner && i < d->sig.n_params; i++) {
    if (!call->inner[i].name)
      continue;
    o->inner[i] = add(e, &call->inner[i], o, d->sig.params[i].name.text, all);
    if (!o->inner[i])
      return NULL;
  }
  o->n = all->states.n - o->first;
  return o;
}

lm_optimizer *lm_optimizer_of_state(const lm_optimizers *all, uint32_t k) {
  for (uint32_t i = 0; i < all->n; i++)
    if (k >= all->v[i]->first && k - all->v[i]->first < all->v[i]->own)
      return all->v[i];
  LM_BUG("state %u of no optimizer", k);
}

lm_optimizer *lm_optimizer_view(lm_optimizer *o) {
  lm_optimizer *found = o->eval ? o : NULL;
  for (uint32_t i = 0; i < o->inst->decl->sig.n_params && !found; i++)
    found = o->inner[i] ? lm_optimizer_view(o->inner[i]) : NULL;
  return found;
}

// Two arguments of an optimizer without `eval` would give two views. False: reported.
static bool views_check(lm_elab *e, lm_optimizer *o) {
  const lm_optimizer *view = NULL;
  for (uint32_t i = 0; i < o->inst->decl->sig.n_params; i++) {
    const lm_optimizer *own = o->inner[i] ? lm_optimizer_view(o->inner[i]) : NULL;
    if (own && view && !o->eval)
      return EL_REJECT(e, o->call->loc, E338, view->inst->decl->name.text,
                       own->inst->decl->name.text, "have `eval`", o->inst->decl->name.text);
    view = own ? own : view;
    if (o->inner[i] && !views_check(e, o->inner[i]))
      return false;
  }
  return true;
}

bool lm_optimizers_make(lm_elab *e, const lm_recipe_call *call, lm_optimizers *out) {
  *out = (lm_optimizers){0};
  if (!add(e, call, NULL, NULL, out))
    return false;
  for (uint32_t i = 0; i < out->n; i++) {
    lm_optimizer *o = out->v[i];
    if (!o->extra)
      continue;
    if (out->extra)
      return EL_REJECT(e, call->loc, E338, out->extra->inst->decl->name.text,
                       o->inst->decl->name.text, "take an extra gradient",
                       call->target.decl->name.text);
    out->extra = o;
  }
  out->view = lm_optimizer_view(out->v[0]);
  return views_check(e, out->v[0]);
}
