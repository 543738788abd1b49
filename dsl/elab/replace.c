// replace.c - `replace FUNCTION = FUNCTION` in `with { … }`: within the model, calls of the first
// function call the second one, which has the same signature. In the body of the second one they
// still call the first, so that it may compute with it. The same holds for `replace FUNCTION =
// BLOCK(…)`: `apply` of an instance of the block computes the calls (site.c).
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

// Which axes of a block the axes of a function are; several may be one.
typedef struct renaming {
  lm_sym from[64], to[64];
  int n;
} renaming;

static bool same_axis(renaming *r, lm_sym x, lm_sym y) {
  int k = 0;
  while (k < r->n && r->from[k] != x)
    k++;
  if (k == (int)LM_COUNT(r->from))
    return false;
  if (k == r->n) {
    r->from[k] = x;
    r->to[r->n++] = y;
  }
  return r->to[k] == y;
}

static lm_sym dim_name(const ast_dim *d) {
  return d->row ? d->row : d->expr->kind == EX_NAME ? d->expr->text : NULL;
}

// True if type y is type x with the axes renamed.
static bool renamed_type(const ast_type *x, const ast_type *y, renaming *r) {
  if (!x || !y)
    return x == y;
  bool same = x->name == y->name && x->n_dims == y->n_dims && x->n_tuple == y->n_tuple;
  for (uint32_t i = 0; same && i < x->n_tuple; i++)
    same = renamed_type(x->tuple[i], y->tuple[i], r);
  for (uint32_t i = 0; same && i < x->n_dims; i++) {
    lm_sym own = dim_name(&x->dims[i]);
    lm_sym other = dim_name(&y->dims[i]);
    same = own && other && !x->dims[i].row == !y->dims[i].row && same_axis(r, own, other);
  }
  return same;
}

// True if y can compute a call of x: the parameters have equal names and types, and the same ones
// have defaults. r: y is a method, and may name the axes otherwise; or NULL.
static bool same_signature(lm_elab *e, const ast_sig *x, const ast_sig *y, renaming *r) {
  if (x->n_params != y->n_params)
    return false;
  for (uint32_t i = 0; i < x->n_params; i++) {
    const ast_param *p = &x->params[i];
    const ast_param *q = &y->params[i];
    if (p->name.text != q->name.text)
      return false;
    if (r ? !renamed_type(p->type, q->type, r) : !same_type(e, p->type, q->type))
      return false;
    if (!p->init != !q->init)
      return false;
  }
  return r ? renamed_type(x->ret, y->ret, r) : same_type(e, x->ret, y->ret);
}

// The signature of what computes the calls.
static const ast_sig *sig_of(const lm_elab *e, ast_decl *by) {
  if (by->kind == DC_FN)
    return &by->sig;
  return &el_method_find(&(el_inst){.decl = by}, LM_SYM(e->c, "apply"))->sig;
}

bool el_replacement_read(lm_elab *e, const ast_item *item, lm_decl_ref block) {
  const ast_expr *of = item->sel;
  const ast_expr *by = item->expr;
  el_replacement read = {
      .at = item->loc,
      .of = fn_find(e, of),
      .by = block.decl ? block : fn_find(e, by),
  };
  if (!read.of.decl || !read.by.decl)
    return false;
  lm_sym name = read.of.decl->name.text;
  renaming axes = {.n = 0};
  const ast_sig *own = sig_of(e, read.by.decl);
  if (!same_signature(e, &read.of.decl->sig, own, block.decl ? &axes : NULL)) {
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
