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
#include <limits.h>
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
  static const char *const planned[] = {"after", "replace", "store", "prune"};
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
    *number = (ast_expr){.kind = EX_NUMBER, .loc = x->loc, .num = x->num / 100, .height = 1};
    copy->args[i].expr = number;
  }
  return copy;
}

// The block of `adapt @P = BLOCK(…)`.
static bool read_block(lm_elab *e, el_edit *x) {
  if (x->call->kind != EX_CALL || x->call->a->kind != EX_NAME)
    return EL_REJECT(e, x->call->loc, E301, forms[EL_EDIT_ADAPT]);
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
  if (x->block.decl->kind == DC_BLOCK && el_is_adapter(e, &(el_inst){.decl = x->block.decl}))
    return true;
  lm_diag *d = EL_ERR(e, x->call->loc, E304, name);
  lm_diag_note(e->c, d, x->block.decl->name.loc, "declared here");
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
  ast_item_kind form = kind == EL_EDIT_ADAPT ? IT_SET_SEL : IT_DO;
  if (x->kind != form || x->sel->kind != EX_PATTERN)
    return EL_REJECT(e, x->loc, E301, forms[kind]);
  el_edits *all = e->edits;
  el_edit read = {.kind = (el_edit_kind)kind,
                  .pattern = x->sel->text,
                  .at = x->sel->loc,
                  .number = (int)all->n,
                  .call = x->expr};
  LM_PUSH(e->a, all->v, all->n, all->cap) = read;
  el_edit *made = &all->v[all->n - 1];
  all->divides |= strpbrk(made->pattern, "0123456789") != NULL;
  all->has_adapters |= kind == EL_EDIT_ADAPT;
  return kind != EL_EDIT_ADAPT || read_block(e, made);
}

bool el_edits_read(lm_elab *e, const ast_items *items) {
  bool ok = true;
  e->edits = LM_NEW(e->a, el_edits);
  e->edits->file = e->frame->file;
  for (uint32_t i = 0; i < items->n; i++)
    ok &= read_item(e, items->v[i]);
  return ok;
}

// ---- divisions

// after: a line only counts if it comes after that many.
static bool is_frozen(lm_elab *e, const char *path, int after) {
  bool frozen = false;
  for (uint32_t i = 0; i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    if (x->kind != EL_EDIT_ADAPT && x->number >= after &&
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

const el_edit *el_edit_adapting(lm_elab *e, lm_sym path, const ast_decl *block) {
  const el_edit *last = NULL;
  for (uint32_t i = 0; i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    if (x->kind == EL_EDIT_ADAPT && x->block.decl == block &&
        lm_pattern_match(e->c, x->pattern, path, NULL))
      last = x;
  }
  return last;
}

// The line that gives an instance like x at its indices, which another one may have given x itself.
// NULL: none does.
static const el_edit *edit_at(lm_elab *e, const el_inst *x) {
  const el_inst *a = adapter_around(x);
  el_inst host = *a->owner;
  memcpy(host.index, x->index, sizeof host.index);
  return el_edit_adapting(e, el_inst_path(e, &host, a->host), a->decl);
}

enum {
  ABSENT = -1
};
static int class_of(lm_elab *e, const el_inst *x, const el_param *p) {
  const el_edit *by = el_edit_of(x) ? edit_at(e, x) : NULL;
  if (el_edit_of(x) && !by)
    return ABSENT;
  return 2 * (by ? by->number + 1 : 0) +
         is_frozen(e, el_inst_path(e, x, p->name), by ? by->number + 1 : 0);
}

// The class of each instance, in row-major order of the indices.
static int *classes_find(lm_elab *e, const el_inst *inst, const el_param *p, int64_t n) {
  int *classes = LM_NEW_N(e->a, int, n + 1);
  el_inst x = *inst;
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i;
    for (int k = x.n_stack - 1; k >= 0 && n > 1; k--) {
      x.index[k] = rest % x.stack[k];
      rest /= x.stack[k];
    }
    classes[i] = class_of(e, &x, p);
  }
  return classes;
}

// True if the index at a level alone decides, of which there are `size`. below: instances for each
// index at it.
static bool decides(const int *classes, int64_t n, int64_t size, int64_t below, int *out) {
  for (int64_t i = 0; i < n; i++) {
    int *one = &out[i / below % size];
    if (i / below < size && i % below == 0)
      *one = classes[i];
    if (*one != classes[i])
      return false;
  }
  return true;
}

// Finds the level; false if no index alone decides.
static bool divide(lm_elab *e, const el_inst *inst, const int *classes, int64_t n, el_division *d) {
  bool same = true;
  for (int64_t i = 1; i < n; i++)
    same &= classes[i] == classes[0];
  d->level = -1;
  d->n = 1;
  d->classes = LM_NEW_N(e->a, int, n + 1);
  d->classes[0] = classes[0];
  int64_t below = n;
  for (int k = 0; k < inst->n_stack && !same && d->level < 0; k++) {
    below /= inst->stack[k];
    if (decides(classes, n, inst->stack[k], below, d->classes))
      d->level = k;
  }
  if (d->level < 0)
    return same;
  d->n = inst->stack[d->level];
  d->rank = LM_NEW_N(e->a, int64_t, d->n + 1);
  uint32_t n_classes = 2 * e->edits->n + 2;
  d->size = LM_NEW_N(e->a, int64_t, n_classes);
  d->first = INT_MAX;
  for (int64_t i = 0; i < d->n; i++) {
    if (d->classes[i] == ABSENT)
      continue;
    d->rank[i] = d->size[d->classes[i]]++;
    d->first = d->classes[i] < d->first ? d->classes[i] : d->first;
  }
  return true;
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
  for (int k = 0; k < inst->n_stack && e->edits->divides; k++)
    n *= inst->stack[k];
  el_division *d = LM_NEW(e->a, el_division);
  *d = (el_division){.base = p->global, .next = e->edits->divisions};
  e->edits->divisions = d;
  if (!divide(e, inst, classes_find(e, inst, p, n), n, d)) {
    lm_diag *g = EL_ERR(e, last_index_pattern(e->edits), E302, p->global);
    lm_diag_note(e->c, g, p->loc, "declared here");
  }
  return d;
}

static int64_t index_in(const el_division *d, const el_inst *inst) {
  return d->level < 0 ? 0 : inst->index[d->level];
}

bool el_division_is_frozen(const el_division *d, const el_inst *inst) {
  return d && d->classes[index_in(d, inst)] % 2 == 1;
}

int64_t el_division_size(const el_division *d, const el_inst *inst) {
  return d->level < 0 ? 1 : d->size[d->classes[index_in(d, inst)]];
}

// The first class of an adapter, and trained parameters of the model, have the name without suffix.
lm_sym el_division_global(lm_elab *e, const el_division *d, const el_inst *inst) {
  int own = d->classes[index_in(d, inst)];
  if (d->level < 0)
    return d->base;
  if (own < 2)
    return own ? LM_SYM(e->c, lm_arena_printf(e->a, "%s.frozen", d->base)) : d->base;
  return own == d->first ? d->base
                         : LM_SYM(e->c, lm_arena_printf(e->a, "%s.%d%s", d->base, own / 2,
                                                        own % 2 ? ".frozen" : ""));
}

static bool adapters_agree(const lm_elab *e, const el_adapter *a, const el_adapter *b) {
  for (; a && b; a = a->next, b = b->next)
    if (a->by != b->by || !el_edits_agree(e, a->inst, b->inst))
      return false;
  return !a && !b;
}

bool el_edits_agree(const lm_elab *e, const el_inst *x, const el_inst *y) {
  if (!e->edits || !e->edits->divides)
    return true;
  if (x->n_params != y->n_params || x->n_subs != y->n_subs)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++)
    if (x->params[i].global != y->params[i].global ||
        !adapters_agree(e, x->params[i].adapters, y->params[i].adapters))
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

static bool matches_any(const lm_elab *e, const char *pattern, int before) {
  for (uint32_t i = 0; i < e->m->n_globals; i++) {
    const lm_global *g = &e->m->globals[i];
    for (int64_t j = 0; lm_global_is_weight(g) && g->added <= before && j < g->n_paths; j++)
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

void el_pattern_check(lm_elab *e, const char *pattern, lm_loc at, int before) {
  int n;
  const char **alts = lm_pattern_expand(e->c, pattern, &n);
  for (int k = 0; k < n; k++) {
    if (matches_any(e, alts[k], before))
      continue;
    const char *near = nearest_param(e, alts[k]);
    lm_diag *d = n > 1 ? EL_ERR(e, at, E0BB, pattern, alts[k]) : EL_ERR(e, at, E0B0, pattern);
    if (near)
      lm_diag_help(e->c, d, "there is a parameter '%s'", near);
  }
}

// The lines before it that an edit can refer to; adapters are for parameters of the model.
static int lines_before(const el_edit *x) {
  return x->kind == EL_EDIT_ADAPT ? 0 : x->number;
}

bool el_edit_reaches(const el_edit *x, const lm_global *g) {
  return g->added <= lines_before(x);
}

void el_edits_check(lm_elab *e) {
  for (uint32_t i = 0; e->edits && i < e->edits->n; i++) {
    const el_edit *x = &e->edits->v[i];
    el_pattern_check(e, x->pattern, x->at, lines_before(x));
  }
}
