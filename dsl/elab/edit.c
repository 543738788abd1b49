// edit.c - see edit.h.
//
//   sub layers[i < 4] = Layer(…) with { freeze @layers.{0,1}.wq }
//   ->
//   fixed @layers.wq.frozen : real[stack.layers.2, d, e] stacked 1 as (layers.0.wq, layers.1.wq)
//   param @layers.wq : f32[stack.layers.2, d, e] stacked 1 as (layers.2.wq, layers.3.wq)
//
// A loop over such a repetition becomes one loop for each run of instances that read the same
// globals (share.h, el_insts_segment).
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/source.h"
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

static bool is_planned(const char *name) {
  static const char *const planned[] = {"store", "prune"};
  for (size_t k = 0; k < LM_COUNT(planned); k++)
    if (!strcmp(planned[k], name))
      return true;
  return false;
}

static bool report_word(lm_elab *e, lm_loc at, const char *name) {
  if (is_planned(name))
    return EL_REJECT(e, at, E900, lm_arena_printf(e->a, "`%s` in `with`", name));
  const char *near = lm_nearest(name, el_edit_names, EL_EDITS);
  lm_diag *d = EL_ERR(e, at, E300, name);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "%s; %s; %s", forms[EL_EDIT_FREEZE], forms[EL_EDIT_TRAIN],
                 forms[EL_EDIT_ADAPT]);
  return false;
}

// The call with arguments in percent as numbers.
static const ast_expr *without_percent(lm_elab *e, const ast_expr *call) {
  ast_expr *copy = LM_NEW(e->a, ast_expr);
  *copy = *call;
  copy->args = LM_NEW_N(e->a, ast_arg, call->n_args + 1);
  for (uint32_t i = 0; i < call->n_args; i++) {
    const ast_expr *x = call->args[i].expr;
    copy->args[i] = call->args[i];
    if (!x || x->kind != EX_QUANTITY || strcmp(x->unit, "%"))
      continue;
    ast_expr *number = LM_NEW(e->a, ast_expr);
    *number = (ast_expr){
        .kind = EX_NUMBER,
        .loc = x->loc,
        .num = x->num / 100,
        .height = 1,
    };
    copy->args[i].expr = number;
  }
  return copy;
}

static bool has_apply(const lm_elab *e, const ast_decl *block) {
  const ast_member *m =
      el_method_find(&(el_inst){.decl = (ast_decl *)block}, LM_SYM(e->c, "apply"));
  return m && m->sig.n_params;
}

// The block of `adapt @P = BLOCK(…)`, `after @SITE = BLOCK(…)` or `replace FUNCTION = BLOCK(…)`.
static bool read_block(lm_elab *e, el_edit *x) {
  if (x->call->kind != EX_CALL || x->call->a->kind != EX_NAME)
    return EL_REJECT(e, x->call->loc, E301, forms[x->kind]);
  lm_sym name = x->call->a->text;
  x->block = lm_program_find(e->prog, e->edits->file, name);
  if (!x->block.decl) {
    int n;
    const char *const *blocks = lm_program_names(e->prog, e->edits->file, DC_BLOCK, &n);
    const char *near = lm_nearest(name, blocks, n);
    lm_diag *d = EL_ERR(e, x->call->loc, E09F, name);
    if (near)
      lm_diag_help(e->c, d, "did you mean '%s'?", near);
    else
      lm_diag_help(e->c, d, "import std.adapt: %s, if it is an adapter of the library", name);
    return false;
  }
  x->call = without_percent(e, x->call);
  bool block = x->block.decl->kind == DC_BLOCK;
  bool adapts = x->kind == EL_EDIT_ADAPT;
  if (block && adapts && el_is_adapter(e, &(el_inst){.decl = x->block.decl}))
    return true;
  if (block && !adapts && has_apply(e, x->block.decl))
    return true;
  lm_diag *d = adapts ? EL_ERR(e, x->call->loc, E304, name) : EL_ERR(e, x->call->loc, E32B, name);
  lm_diag_note(e->c, d, x->block.decl->name.loc, "declared here");
  return false;
}

static el_edit *edit_add(lm_elab *e, el_edit_kind kind, const ast_item *x) {
  el_edits *all = e->edits;
  LM_PUSH(e->a, all->v, all->n, all->cap) = (el_edit){
      .kind = kind,
      .pattern = x->sel->text,
      .at = x->sel->loc,
      .number = (int)all->n,
      .call = x->expr,
  };
  return &all->v[all->n - 1];
}

static bool replacement_read(lm_elab *e, const ast_item *x) {
  bool set = x->kind == IT_SET_SEL;
  if (set && x->sel->kind == EX_PATTERN) {
    el_edit *made = edit_add(e, EL_EDIT_REPLACE, x);
    return read_block(e, made) && el_sub_arguments(e, made);
  }
  if (!set || x->sel->kind != EX_NAME)
    return EL_REJECT(e, x->loc, E301, forms[EL_EDIT_REPLACE]);
  lm_decl_ref by = {0};
  if (x->expr->kind != EX_NAME) {
    el_edit *made = edit_add(e, EL_EDIT_REPLACE, x);
    if (!read_block(e, made))
      return false;
    by = made->block;
  }
  if (!el_replacement_read(e, x, by))
    return false;
  if (by.decl) {
    e->edits->has_sites = true;
    e->edits->v[e->edits->n - 1].fn = e->edits->replaced[e->edits->n_replaced - 1].of.decl;
  }
  return true;
}

static bool read_item(lm_elab *e, const ast_item *x) {
  if (x->kind == IT_ERROR)
    return false;
  const ast_name *name = x->path.n ? &x->path.v[0] : NULL;
  if (!name)
    return EL_REJECT(e, x->loc, E301, forms[EL_EDIT_FREEZE]);
  if (!strcmp(name->text, "replace"))
    return replacement_read(e, x);
  int kind = kind_find(name->text);
  if (kind < 0)
    return report_word(e, name->loc, name->text);
  bool of_block = kind == EL_EDIT_ADAPT || kind == EL_EDIT_AFTER;
  if (x->kind != (of_block ? IT_SET_SEL : IT_DO) || x->sel->kind != EX_PATTERN)
    return EL_REJECT(e, x->loc, E301, forms[kind]);
  el_edit *made = edit_add(e, (el_edit_kind)kind, x);
  e->edits->has_adapters |= kind == EL_EDIT_ADAPT;
  e->edits->has_sites |= kind == EL_EDIT_AFTER;
  return !of_block || read_block(e, made);
}

bool el_edits_read(lm_elab *e, const ast_items *items) {
  bool ok = true;
  e->edits = LM_NEW(e->a, el_edits);
  e->edits->file = e->frame->file;
  for (uint32_t i = 0; i < items->n; i++)
    ok &= read_item(e, items->v[i]);
  return ok;
}

// ---- parameters that edits match

// after: a line only counts if it comes after that many. frozen: if none does.
static bool is_frozen(lm_elab *e, const char *path, int after, bool frozen) {
  for (uint32_t i = 0; i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    if ((x->kind == EL_EDIT_FREEZE || x->kind == EL_EDIT_TRAIN) && x->number >= after &&
        lm_pattern_match(e->c, x->pattern, path, NULL))
      frozen = x->kind == EL_EDIT_FREEZE;
  }
  return frozen;
}

static const el_inst *adapter_around(const el_inst *inst) {
  while (inst && !inst->added_by)
    inst = inst->owner;
  return inst;
}

const el_edit *el_edit_of(const el_inst *inst) {
  const el_inst *a = adapter_around(inst);
  return a ? a->added_by : NULL;
}

const el_edit *el_edit_last(lm_elab *e, el_edit_kind kind, lm_sym path, const ast_decl *block) {
  const el_edit *last = NULL;
  for (uint32_t i = 0; i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    if (x->kind == kind && x->block.decl == block && lm_pattern_match(e->c, x->pattern, path, NULL))
      last = x;
  }
  return last;
}

el_val el_edit_result(lm_elab *e, const el_inst *block, const char *method, el_val r,
                      const el_val *like, lm_loc at) {
  bool same = r.k == V_TENSOR && r.kind == like->kind && el_axes_same(&r.axes, &like->axes);
  if (r.k == V_ERROR || same)
    return r;
  lm_diag *d = EL_ERR(e, el_method_find(block, LM_SYM(e->c, method))->loc, E308,
                      block->decl->name.text, method, el_show(e, &r), el_show(e, like));
  lm_diag_note(e->c, d, at, "used here");
  lm_diag_note(e->c, d, el_edit_of(block)->at, "added by this edit");
  return el_error();
}

el_val el_edited(lm_elab *e, el_val r, const el_val *from) {
  if (r.k == V_TENSOR && r.kind == K_REAL && r.v && lm_type_equal(r.v->type, from->v->type))
    r.v = lm_emit2(&e->b, LM_OP_EDITED, r.v, from->v);
  return r;
}

int el_edit_class(lm_elab *e, const el_inst *inst, const el_param *p) {
  const el_edit *by = el_edit_of_param(e, inst, p->name);
  int after = by ? by->number + 1 : 0;
  bool frozen = !by && el_source_of(inst);
  if (e->edits && e->edits->n)
    frozen = is_frozen(e, el_inst_path(e, inst, p->name), after, frozen);
  return 2 * after + frozen;
}

// ---- patterns

static bool matches_any(const lm_elab *e, const char *pattern, int before) {
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; lm_global_is_weight(g) && g->added <= before && j < g->n_paths; j++)
      if (lm_pattern_match(e->c, pattern, g->paths[j], NULL))
        return true;
  }
  return false;
}

static el_paths paths_of(lm_elab *e, int before) {
  el_paths x = {0};
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; lm_global_is_weight(g) && g->added <= before && j < g->n_paths; j++)
      LM_PUSH(e->a, x.v, x.n, x.cap) = g->paths[j];
  }
  return x;
}

void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at, int before,
                      const ast_decl *model) {
  int n;
  const char **alts = lm_pattern_expand(e->c, pattern, &n);
  for (int k = 0; k < n; k++) {
    if (matches_any(e, alts[k], before))
      continue;
    el_paths paths = paths_of(e, before);
    lm_diag *d = n > 1 ? EL_ERR(e, at, E0BB, pattern, alts[k]) : EL_ERR(e, at, E0B0, pattern);
    if (model)
      lm_diag_note(e->c, d, model->name.loc, "%s is declared here", model->name.text);
    el_help_pattern(e, d, alts[k], &paths);
  }
}

// The lines before it that an edit can refer to; adapters are for parameters of the model.
static int lines_before(const el_edit *x) {
  return x->kind == EL_EDIT_ADAPT ? 0 : x->number;
}

bool el_edit_reaches(const el_edit *x, const lm_global *g) {
  return x->kind != EL_EDIT_AFTER && x->kind != EL_EDIT_REPLACE && g->added <= lines_before(x);
}

lm_loc el_edits_change(const lm_elab *e, bool blocks) {
  for (uint32_t i = 0; e->edits && i < e->edits->n_replaced; i++)
    if (blocks || e->edits->replaced[i].by.decl->kind == DC_FN)
      return e->edits->replaced[i].at;
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    bool at_site = x->kind == EL_EDIT_AFTER || (x->kind == EL_EDIT_REPLACE && x->fn);
    if (at_site ? blocks : x->kind == EL_EDIT_REPLACE)
      return x->at;
  }
  return (lm_loc){0};
}

// Warns of an adapter that adds parameters beside which the adapted parameter is trained.
static void warn_trained_base(lm_elab *e, const el_edit *x) {
  bool own = false;
  const lm_global *base = NULL;
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    bool trained = g->kind == LM_GLOBAL_PARAM && !g->untrained;
    own |= trained && g->added == x->number + 1;
    for (int64_t j = 0; trained && !g->added && !base && j < g->n_paths; j++)
      if (lm_pattern_match(e->c, x->pattern, g->paths[j], NULL))
        base = g;
  }
  if (!own || !base)
    return;
  lm_diag *d = LM_REPORT(e->c, x->at, W301, x->pattern);
  lm_diag_help(e->c, d, "to train the adapters alone: freeze @** before adapt");
}

void el_edits_check(lm_elab *e, const el_inst *model) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    if (x->kind == EL_EDIT_AFTER || x->kind == EL_EDIT_REPLACE)
      continue;
    el_pattern_check(e, x->pattern, x->at, lines_before(x), model->decl);
  }
  el_sites_check(e, model);
  el_subs_check(e, model);
}

void el_edits_warn(lm_elab *e) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++)
    if (e->edits->v[i].kind == EL_EDIT_ADAPT)
      warn_trained_base(e, &e->edits->v[i]);
}
