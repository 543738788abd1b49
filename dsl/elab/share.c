// share.c - see share.h.
#include "dsl/elab/share.h"

#include <string.h>

#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/source.h"

// ---- forms

el_form *el_form_of(lm_elab *e, el_form *owner, const ast_expr *call, lm_sym path) {
  el_form **list = owner ? &owner->parts : &e->forms;
  for (el_form *f = *list; f; f = f->next)
    if (f->call == call && f->path == path)
      return f;
  el_form *f = LM_NEW(e->a, el_form);
  *f = (el_form){
      .call = call,
      .path = path,
      .next = *list,
  };
  *list = f;
  return f;
}

static bool is_base(const lm_elab *e, lm_sym name) {
  for (const el_family *f = e->families; f; f = f->up)
    if (f->base == name)
      return true;
  return false;
}

// Of parameters with the same path, which are of branches of an `if` or of other shapes, the first
// has the name without suffix.
static lm_sym base_new(lm_elab *e, const el_inst *inst, lm_sym name) {
  const char *plain = lm_arena_printf(e->a, "%s%s%s", inst->path, inst->path[0] ? "." : "", name);
  lm_sym base = LM_SYM(e->c, plain);
  for (int kind = 1; is_base(e, base); kind++)
    base = LM_SYM(e->c, lm_arena_printf(e->a, "%s.kind%d", plain, kind));
  return base;
}

// The type of the parameter in one instance.
static lm_type own_type(lm_elab *e, const el_inst *inst, const el_param *p) {
  lm_axis axes[LM_RANK];
  el_frame frame = {.up = e->frame}, *was = e->frame;
  e->frame = &frame; // IR names must differ only among the axes of this parameter
  for (el_axis_bind *b = inst->axes; b; b = b->up)
    el_axes_push(e, &frame.live, b->axis);
  for (uint32_t k = 0; k < p->axes.n; k++)
    axes[k] = el_axis_ir(e, p->axes.v[k]);
  e->frame = was;
  return lm_type_make(LM_F32, axes, (int)p->axes.n);
}

static el_family *family_find(const el_form *form, lm_sym name, lm_type own) {
  el_family *f = form->families;
  while (f && (f->name != name || !lm_type_equal(f->own, own)))
    f = f->next;
  return f;
}

static el_family *family_add(lm_elab *e, const el_inst *inst, const el_param *p, lm_type own) {
  el_family *f = LM_NEW(e->a, el_family);
  *f = (el_family){
      .name = p->name,
      .base = base_new(e, inst, p->name),
      .own = own,
      .next = inst->form->families,
      .up = e->families,
  };
  el_count_check(e, e->n_families++, "parameters", p->loc);
  e->families = f;
  inst->form->families = f;
  return f;
}

void el_share_declare(lm_elab *e, el_inst *inst) {
  uint32_t param = inst->n_params - 1;
  el_param *p = &inst->params[param];
  if (e->exhausted) // the program is refused, and the model is not used
    return;
  if (inst->n_stack + p->axes.n > LM_RANK) {
    EL_ERR(e, p->loc, E06C, LM_RANK);
    return;
  }
  lm_type own = own_type(e, inst, p);
  p->family = family_find(inst->form, p->name, own);
  if (!p->family)
    p->family = family_add(e, inst, p, own);
  p->global = p->family->base;
  LM_PUSH(e->a, e->declared, e->n_declared, e->cap_declared) = (el_declared){inst, param};
}

// ---- shares

static void share_add(lm_elab *e, el_share *s, el_inst *inst) {
  LM_PUSH(e->a, s->of, s->n, s->cap) = inst;
}

static el_share *share_new(lm_elab *e, int edits, el_share *next) {
  el_share *s = LM_NEW(e->a, el_share);
  *s = (el_share){
      .edits = edits,
      .next = next,
  };
  return s;
}

static void share_join(lm_elab *e, const el_declared *d) {
  el_param *p = &d->inst->params[d->param];
  int edits = el_edit_class(e, d->inst, p);
  el_share *s = p->family->shares;
  while (s && s->edits != edits)
    s = s->next;
  if (!s)
    s = p->family->shares = share_new(e, edits, p->family->shares);
  share_add(e, s, d->inst);
}

// Sets the ranks along level k; returns the number of different indices.
static int64_t level_rank(lm_elab *e, el_share *s, int k) {
  int64_t limit = 0;
  int64_t n = 0;
  for (uint32_t i = 0; i < s->n; i++)
    if (s->of[i]->stack[k] > limit)
      limit = s->of[i]->stack[k];
  int64_t *rank = LM_NEW_N(e->a, int64_t, limit + 1);
  for (uint32_t i = 0; i < s->n; i++)
    rank[s->of[i]->index[k]] = 1;
  for (int64_t i = 0; i <= limit; i++) {
    int64_t has = rank[i];
    rank[i] = n;
    n += has;
  }
  s->limit[k] = limit;
  s->rank[k] = rank;
  return n;
}

static bool is_grid(lm_elab *e, el_share *s) {
  int64_t n = 1;
  for (int k = 0; k < s->of[0]->n_stack; k++)
    n *= s->size[k] = level_rank(e, s, k);
  return n == s->n;
}

// The grids that s consists of, divided by the index at level k and inwards. *end is the last
// link.
static void divide(lm_elab *e, el_share *s, int k, el_share ***end) {
  if (is_grid(e, s)) {
    **end = s;
    *end = &s->next;
    return;
  }
  for (int64_t i = 0; i < s->limit[k]; i++) {
    el_share *part = share_new(e, s->edits, NULL);
    for (uint32_t j = 0; j < s->n; j++)
      if (s->of[j]->index[k] == i)
        share_add(e, part, s->of[j]);
    if (part->n)
      divide(e, part, k + 1, end);
  }
}

// The trained parameters of the model, and those of the first edit that gives an adapter to some,
// have the name without suffix.
static const char *share_name(lm_elab *e, const el_family *f, const el_share *s) {
  const char *frozen = s->edits % 2 ? ".frozen" : "";
  bool first = true;
  for (const el_share *x = f->shares; x; x = x->next)
    first &= s->edits <= x->edits;
  if (!f->shares->next || (first && s->edits != 1))
    return f->base;
  return s->edits < 2 ? lm_arena_printf(e->a, "%s%s", f->base, frozen)
                      : lm_arena_printf(e->a, "%s.%d%s", f->base, s->edits / 2, frozen);
}

static el_param *param_of(const el_inst *inst, lm_sym name) {
  for (uint32_t i = 0; i < inst->n_params; i++)
    if (inst->params[i].name == name)
      return &inst->params[i];
  return NULL;
}

static void family_divide(lm_elab *e, const el_family *f) {
  el_share *next;
  for (el_share *s = f->shares; s; s = next) {
    const char *name = share_name(e, f, s);
    el_share *parts = NULL;
    el_share **end = &parts;
    next = s->next;
    s->next = NULL;
    divide(e, s, 0, &end);
    int n = 0;
    for (el_share *x = parts; x; x = x->next, n++) {
      x->global = LM_SYM(e->c, n ? lm_arena_printf(e->a, "%s.part%d", name, n) : name);
      for (uint32_t i = 0; i < x->n; i++)
        param_of(x->of[i], f->name)->share = x;
    }
    s->next = next;
  }
}

// ---- globals

// The axis of the repetition at level k, over the instances of the share.
static lm_axis stack_axis(lm_elab *e, const el_inst *inst, const el_share *s, int k) {
  const char *text = lm_arena_printf(e->a, "stack.%s", inst->stack_name[k]);
  if (s->size[k] != inst->stack[k])
    text = lm_arena_printf(e->a, "%s.%lld", text, (long long)s->size[k]);
  lm_axis axis = lm_axis_find(e->m, LM_SYM(e->c, text));
  bool fits = axis && lm_axis_size(e->m, axis) == s->size[k];
  return fits ? axis : lm_axis_add(e->m, LM_SYM(e->c, text), s->size[k], 0);
}

static int64_t index_in_share(const el_share *s, const el_inst *inst) {
  int64_t index = 0;
  for (int k = 0; k < inst->n_stack; k++)
    index = index * s->size[k] + s->rank[k][inst->index[k]];
  return index;
}

// Frozen parameters have the type they are computed with. Trained ones are f32, or those of type
// `real` of the type that the recipe chooses.
static lm_dtype stored_dtype(const lm_elab *e, const el_param *p) {
  bool frozen = p->share->edits % 2;
  if (frozen)
    return el_dtype(e, p->kind);
  return p->kind == K_REAL && !p->is_state ? e->master : LM_F32;
}

static lm_type global_type(lm_elab *e, const el_inst *inst, const el_param *p) {
  lm_type own = p->family->own, t = {0};
  for (int k = 0; k < inst->n_stack; k++)
    t.axis[t.rank++] = stack_axis(e, inst, p->share, k);
  for (int k = 0; k < own.rank; k++)
    t.axis[t.rank++] = own.axis[k];
  return lm_type_make(stored_dtype(e, p), t.axis, t.rank);
}

static lm_global *global_add(lm_elab *e, const el_inst *inst, const el_param *p) {
  lm_type type = global_type(e, inst, p);
  if (!el_size_check(e, type, p->loc))
    return NULL;
  bool frozen = p->share->edits % 2;
  lm_global *g = lm_global_add(e->m, frozen ? LM_GLOBAL_FIXED : LM_GLOBAL_PARAM, p->share->global,
                               type, inst->n_stack);
  const el_edit *by = el_edit_of_param(e, inst, p->name);
  g->n_paths = p->share->n;
  g->paths = LM_NEW_N(e->a, lm_sym, g->n_paths);
  g->init = LM_NEW_N(e->a, lm_init, g->n_paths);
  g->added = by ? by->number + 1 : 0;
  g->untrained = p->is_state && !frozen;
  g->loc = p->loc;
  return g;
}

static void declared_register(lm_elab *e, const el_declared *d) {
  const el_inst *inst = d->inst;
  el_param *p = &d->inst->params[d->param];
  p->global = p->share->global;
  if (p->share->edits % 2 == 0 && el_source_of(inst))
    el_source_of(inst)->trained = true;
  lm_global *g = lm_global_find(e->m, p->global);
  if (!g && !(g = global_add(e, inst, p)))
    return;
  int64_t index = index_in_share(p->share, inst);
  g->paths[index] = el_inst_path(e, inst, p->name);
  g->init[index] = p->init;
}

void el_shares_make(lm_elab *e) {
  uint32_t n = e->n_declared; // the adapters declare more
  for (uint32_t i = 0; i < n; i++)
    el_adapters_add(e, e->declared[i].inst, e->declared[i].param);
  for (uint32_t i = 0; i < e->n_declared; i++)
    share_join(e, &e->declared[i]);
  for (const el_family *f = e->families; f; f = f->up)
    family_divide(e, f);
  for (uint32_t i = 0; i < e->n_declared; i++)
    declared_register(e, &e->declared[i]);
}

lm_sym el_share_base(const lm_elab *e, lm_sym global) {
  for (uint32_t i = 0; i < e->n_declared; i++) {
    const el_param *p = &e->declared[i].inst->params[e->declared[i].param];
    if (p->global == global)
      return p->family->base;
  }
  return global;
}

// ---- equal instances

static bool adapters_agree(const el_adapter *a, const el_adapter *b) {
  for (; a && b; a = a->next, b = b->next)
    if (a->by != b->by || !el_insts_agree(a->inst, b->inst))
      return false;
  return !a && !b;
}

static bool inserted_agree(const el_inserted *a, const el_inserted *b) {
  for (; a && b; a = a->next, b = b->next)
    if (a->by != b->by || a->site != b->site || !el_insts_agree(a->inst, b->inst))
      return false;
  return !a && !b;
}

static bool lists_agree(const el_insts *a, const el_insts *b) {
  bool same = a && b ? a->n == b->n : a == b;
  for (int64_t k = 0; same && a && k < a->n; k++)
    same = el_insts_agree(a->of[k], b->of[k]);
  return same;
}

bool el_insts_same_kind(const el_inst *x, const el_inst *y) {
  if (x->form != y->form || x->n_params != y->n_params || x->n_subs != y->n_subs)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++)
    if (x->params[i].family != y->params[i].family)
      return false;
  for (uint32_t i = 0; i < x->n_subs; i++) {
    const el_insts *a = x->subs[i].many;
    const el_insts *b = y->subs[i].many;
    bool same = a && b ? a->n == b->n : a == b;
    for (int64_t k = 0; same && a && k < a->n; k++)
      same = el_insts_same_kind(a->of[k], b->of[k]);
    if (same && x->subs[i].one && y->subs[i].one)
      same = el_insts_same_kind(x->subs[i].one, y->subs[i].one);
    if (!same)
      return false;
  }
  return true;
}

bool el_insts_agree(const el_inst *x, const el_inst *y) {
  if (x->form != y->form || x->n_params != y->n_params || x->n_subs != y->n_subs)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++)
    if (x->params[i].share != y->params[i].share ||
        !adapters_agree(x->params[i].adapters, y->params[i].adapters))
      return false;
  for (uint32_t i = 0; i < x->n_subs; i++) {
    const struct el_sub *a = &x->subs[i];
    const struct el_sub *b = &y->subs[i];
    bool same = a->one && b->one ? el_insts_agree(a->one, b->one) : a->one == b->one;
    if (!same || !lists_agree(a->many, b->many))
      return false;
  }
  return inserted_agree(x->inserted, y->inserted);
}

el_index el_share_index(const el_ref *ref, const el_param *p, int k) {
  const el_share *s = p->share;
  el_index at = ref->at[k];
  int64_t next = at.first + at.step;
  bool steps = at.loop && next < s->limit[k];
  at.first = s->rank[k][at.first];
  if (steps)
    at.step = s->rank[k][next] - at.first;
  return at;
}
