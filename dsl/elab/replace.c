// replace.c - `replace FUNCTION = FUNCTION` in `with { … }`: within the model, calls of the first
// function call the second one, which has the same signature. In the body of the second one they
// still call the first, so that it may compute with it.
#include <string.h>

#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"

// A function that is visible where the edits are; NULL: reported.
static lm_decl_ref fn_find(lm_elab *e, const ast_expr *name) {
  const lm_file *file = e->edits->file;
  lm_decl_ref ref = lm_program_find(e->prog, file, name->text);
  if (ref.decl && ref.decl->kind == DC_FN)
    return ref;
  int n;
  const char *const *fns = lm_program_names(e->prog, file, DC_FN, &n);
  const char *near = lm_nearest(name->text, fns, n);
  lm_diag *d = EL_ERR(e, name->loc, E082, name->text);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "import std.nn: %s, if it is a function of the library", name->text);
  return (lm_decl_ref){0};
}

static bool same_type(lm_elab *e, const ast_type *x, const ast_type *y) {
  if (!x || !y)
    return x == y;
  return !strcmp(el_type_text(e, x), el_type_text(e, y));
}

// True if a call of one can call the other: the parameters have equal names and types, and the same
// ones have defaults.
static bool same_signature(lm_elab *e, const ast_sig *x, const ast_sig *y) {
  if (x->n_params != y->n_params)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++) {
    const ast_param *p = &x->params[i];
    const ast_param *q = &y->params[i];
    if (p->name.text != q->name.text)
      return false;
    if (!same_type(e, p->type, q->type))
      return false;
    if (!p->init != !q->init)
      return false;
  }
  return same_type(e, x->ret, y->ret);
}

bool el_replacement_read(lm_elab *e, const ast_item *item) {
  const ast_expr *of = item->sel;
  const ast_expr *by = item->expr;
  el_replacement read = {
      .at = item->loc,
      .of = fn_find(e, of),
      .by = fn_find(e, by),
  };
  if (!read.of.decl || !read.by.decl)
    return false;
  lm_sym name = read.of.decl->name.text;
  if (!same_signature(e, &read.of.decl->sig, &read.by.decl->sig)) {
    lm_diag *d = EL_ERR(e, by->loc, E324, read.by.decl->name.text, name);
    lm_diag_note(e->c, d, read.by.decl->name.loc, "declared here");
    lm_diag_note(e->c, d, read.of.decl->name.loc, "%s is declared here", name);
    return false;
  }
  for (uint32_t i = 0; i < e->edits->n_replaced; i++) {
    if (e->edits->replaced[i].of.decl != read.of.decl)
      continue;
    lm_diag *d = EL_ERR(e, of->loc, E325, name);
    lm_diag_note(e->c, d, e->edits->replaced[i].at, "replaced here");
    return false;
  }
  LM_PUSH(e->a, e->edits->replaced, e->edits->n_replaced, e->edits->cap_replaced) = read;
  return true;
}

el_replacement *el_replacement_find(const lm_elab *e, const ast_decl *fn) {
  for (uint32_t i = 0; e->edits && i < e->edits->n_replaced; i++) {
    el_replacement *x = &e->edits->replaced[i];
    if (x->of.decl == fn && !x->active)
      return x;
  }
  return NULL;
}

void el_replacements_check(lm_elab *e) {
  for (uint32_t i = 0; e->edits && i < e->edits->n_replaced; i++) {
    const el_replacement *x = &e->edits->replaced[i];
    if (x->used)
      continue;
    lm_diag *d = EL_ERR(e, x->at, E326, x->of.decl->name.text);
    lm_diag_note(e->c, d, x->of.decl->name.loc, "declared here");
  }
}
