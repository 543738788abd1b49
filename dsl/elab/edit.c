// edit.c - see edit.h.
//
//   sub layers[i < 4] = Layer(…) with { freeze @layers.{0,1}.wq }
//   ->
//   fixed @layers.wq.frozen : real[stack.layers.2, d, e] stacked 1 as (layers.0.wq, layers.1.wq)
//   param @layers.wq : f32[stack.layers.2, d, e] stacked 1 as (layers.2.wq, layers.3.wq)
//
// A loop over such a repetition becomes one loop for each run of instances that read the same
// globals (el_insts_segment).
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include <string.h>

const char *const el_edit_names[EL_EDITS] = {
#define EDIT(ID, NAME, FORM) #NAME,
#include "dsl/elab/edits.def"
#undef EDIT
};
static const char *const forms[EL_EDITS] = {
#define EDIT(ID, NAME, FORM) FORM,
#include "dsl/elab/edits.def"
#undef EDIT
};

// ---- reading

static int kind_find(const char *name) {
  for (int k = 0; k < EL_EDITS; k++)
    if (!strcmp(el_edit_names[k], name))
      return k;
  return -1;
}

static bool report_planned(lm_elab *e, lm_loc at, const char *name) {
  static const char *const planned[] = {"adapt", "after", "replace", "store", "prune"};
  for (size_t k = 0; k < LM_COUNT(planned); k++)
    if (!strcmp(planned[k], name))
      return !EL_ERR(e, at, E900, lm_arena_printf(e->a, "`%s` in `with`", name));
  return true;
}

static bool report_word(lm_elab *e, lm_loc at, const char *name) {
  if (!report_planned(e, at, name))
    return false;
  const char *near = lm_nearest(name, el_edit_names, EL_EDITS);
  lm_diag *d = EL_ERR(e, at, E300, name);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "%s; %s", forms[EL_EDIT_FREEZE], forms[EL_EDIT_TRAIN]);
  return false;
}

static bool read_item(lm_elab *e, const ast_item *x) {
  if (x->kind == IT_ERROR)
    return false;
  const ast_name *name = x->path.n ? &x->path.v[0] : NULL;
  if (!name)
    return EL_REJECT(e, x->loc, E301, forms[EL_EDIT_FREEZE]);
  int kind = kind_find(name->text);
  if (kind < 0)
    return report_word(e, name->loc, name->text);
  if (x->kind != IT_DO || x->sel->kind != EX_PATTERN)
    return EL_REJECT(e, x->loc, E301, forms[kind]);
  LM_PUSH(e->a, e->edits->v, e->edits->n, e->edits->cap) =
      (el_edit){(el_edit_kind)kind, x->sel->text, x->sel->loc};
  return true;
}

bool el_edits_read(lm_elab *e, const ast_items *items) {
  bool ok = true;
  e->edits = LM_NEW(e->a, el_edits);
  for (uint32_t i = 0; i < items->n; i++)
    ok &= read_item(e, items->v[i]);
  return ok;
}

// ---- divisions

static bool is_frozen(lm_elab *e, const char *path) {
  bool frozen = false;
  for (uint32_t i = 0; i < e->edits->n; i++)
    if (lm_pattern_match(e->c, e->edits->v[i].pattern, path, NULL))
      frozen = e->edits->v[i].kind == EL_EDIT_FREEZE;
  return frozen;
}

// Whether a pattern distinguishes the elements of a repetition.
static bool has_index(const el_edits *all) {
  for (uint32_t i = 0; i < all->n; i++)
    if (strpbrk(all->v[i].pattern, "0123456789"))
      return true;
  return false;
}

// Whether each instance is frozen, in row-major order of the indices.
static bool *frozen_find(lm_elab *e, const el_inst *inst, const el_param *p, int64_t n) {
  bool *frozen = LM_NEW_N(e->a, bool, n + 1);
  el_inst x = *inst;
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i;
    for (int k = x.n_stack - 1; k >= 0; k--) {
      x.index[k] = rest % x.stack[k];
      rest /= x.stack[k];
    }
    frozen[i] = is_frozen(e, el_inst_path(e, &x, p->name));
  }
  return frozen;
}

// Whether the index at `level` alone decides. below: instances for each index at it.
static bool decides(const bool *frozen, int64_t n, int64_t size, int64_t below, bool *out) {
  for (int64_t i = 0; i < n; i++) {
    bool *one = &out[i / below % size];
    if (i / below < size && i % below == 0)
      *one = frozen[i];
    if (*one != frozen[i])
      return false;
  }
  return true;
}

static void divide(lm_elab *e, const el_inst *inst, const bool *frozen, int64_t n, el_division *d) {
  bool equal = true;
  for (int64_t i = 1; i < n; i++)
    equal &= frozen[i] == frozen[0];
  d->level = -1;
  d->frozen = LM_NEW_N(e->a, bool, n + 1);
  d->frozen[0] = frozen[0];
  int64_t below = n;
  for (int k = 0; k < inst->n_stack && !equal && d->level < 0; k++) {
    below /= inst->stack[k];
    if (decides(frozen, n, inst->stack[k], below, d->frozen))
      d->level = k;
  }
  if (d->level < 0)
    return;
  d->rank = LM_NEW_N(e->a, int64_t, inst->stack[d->level] + 1);
  for (int64_t i = 0; i < inst->stack[d->level]; i++)
    d->rank[i] = d->n[d->frozen[i]]++;
  e->edits->divides = true;
}

static lm_loc last_index_pattern(const el_edits *all) {
  lm_loc at = all->v[0].at;
  for (uint32_t i = 0; i < all->n; i++)
    if (strpbrk(all->v[i].pattern, "0123456789"))
      at = all->v[i].at;
  return at;
}

const el_division *el_division_of(lm_elab *e, const el_inst *inst, const el_param *p) {
  if (!e->edits || !e->edits->n)
    return NULL;
  for (el_division *d = e->edits->divisions; d; d = d->next)
    if (d->base == p->global)
      return d;
  int64_t n = 1;
  for (int k = 0; k < inst->n_stack; k++)
    n *= inst->stack[k];
  if (!has_index(e->edits))
    n = 1;
  el_division *d = LM_NEW(e->a, el_division);
  *d = (el_division){.base = p->global, .next = e->edits->divisions};
  e->edits->divisions = d;
  const bool *frozen = frozen_find(e, inst, p, n);
  divide(e, inst, frozen, n, d);
  for (int64_t i = 0; i < n && d->level < 0; i++)
    if (frozen[i] != frozen[0]) {
      lm_diag *g = EL_ERR(e, last_index_pattern(e->edits), E302, p->global);
      lm_diag_note(e->c, g, p->loc, "declared here");
      break;
    }
  return d;
}

bool el_division_is_frozen(const el_division *d, const el_inst *inst) {
  return d && d->frozen[d->level < 0 ? 0 : inst->index[d->level]];
}

bool el_edits_agree(const lm_elab *e, const el_inst *x, const el_inst *y) {
  if (!e->edits || !e->edits->divides)
    return true;
  if (x->n_params != y->n_params || x->n_subs != y->n_subs)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++)
    if (x->params[i].global != y->params[i].global)
      return false;
  for (uint32_t i = 0; i < x->n_subs; i++) {
    const struct el_sub *a = &x->subs[i];
    const struct el_sub *b = &y->subs[i];
    if (a->one && b->one && !el_edits_agree(e, a->one, b->one))
      return false;
    for (int64_t k = 0; a->many && b->many && k < a->many->n && k < b->many->n; k++)
      if (!el_edits_agree(e, a->many->of[k], b->many->of[k]))
        return false;
  }
  return true;
}

// ---- patterns

static bool matches_any(const lm_elab *e, const char *pattern) {
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; lm_global_is_weight(g) && j < g->n_paths; j++)
      if (lm_pattern_match(e->c, pattern, g->paths[j], NULL))
        return true;
  }
  return false;
}

static const char *nearest_param(const lm_elab *e, const char *pattern) {
  const char *names[256], *last = strrchr(pattern, '.');
  uint32_t n = 0;
  for (; n < e->m->n_globals && n < LM_COUNT(names); n++) {
    const char *path = e->m->globals[n].paths[0];
    const char *own = strrchr(path, '.');
    names[n] = own ? own + 1 : path;
  }
  return lm_nearest(last ? last + 1 : pattern + 1, names, (int)n);
}

void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at) {
  int n;
  const char **alts = lm_pattern_expand(e->c, pattern, &n);
  for (int k = 0; k < n; k++) {
    if (matches_any(e, alts[k]))
      continue;
    const char *near = nearest_param(e, alts[k]);
    lm_diag *d = n > 1 ? EL_ERR(e, at, E0BB, pattern, alts[k]) : EL_ERR(e, at, E0B0, pattern);
    if (near)
      lm_diag_help(e->c, d, "there is a parameter '%s'", near);
  }
}

void el_edits_check(lm_elab *e) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++)
    el_pattern_check(e, e->edits->v[i].pattern, e->edits->v[i].at);
}
