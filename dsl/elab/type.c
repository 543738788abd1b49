// type.c - types in signatures: their form, their kinds, and row variables.
#include "dsl/elab/call.h"
#include <string.h>

bool el_type_is(const ast_type *t, const char *name) {
  return t && t->name && strcmp(t->name, name) == 0;
}

static bool same_axis(const ast_dim *a, const ast_dim *b) {
  return !a->row && !b->row && a->expr->kind == EX_NAME && b->expr->kind == EX_NAME &&
         a->expr->text == b->expr->text;
}

// Checks axis i of a type against the axes before it.
static bool check_dim(lm_elab *e, const ast_type *t, uint32_t i) {
  const ast_dim *d = &t->dims[i];
  bool rows = false, twice = false;
  for (uint32_t k = 0; k < i; k++) {
    rows |= d->row && t->dims[k].row && !el_row_is_of_instance(e, d->row) &&
            !el_row_is_of_instance(e, t->dims[k].row);
    twice |= same_axis(d, &t->dims[k]);
  }
  if (rows)
    EL_ERR(e, d->loc, E03E);
  if (twice)
    EL_ERR(e, d->loc, E056, d->expr->text);
  return !rows && !twice;
}

bool el_type_check(lm_elab *e, const ast_type *t) {
  for (uint32_t i = 0; t && i < t->n_dims; i++)
    if (!check_dim(e, t, i))
      return false;
  for (uint32_t i = 0; t && i < t->n_tuple; i++)
    if (!el_type_check(e, t->tuple[i]))
      return false;
  return true;
}

bool el_is_duration(const ast_type *t) {
  return el_type_is(t, "steps") && !t->has_dims;
}

el_kind el_kind_of_type(lm_elab *e, const ast_type *t, bool *out_ok) {
  *out_ok = true;
  if (el_type_is(t, "real"))
    return e->frame->real;
  if (el_type_is(t, "f32"))
    return K_F32;
  if (el_type_is(t, "int"))
    return K_INT;
  if (el_type_is(t, "bool"))
    return K_BOOL;
  *out_ok = false;
  const char *names[] = {"real", "f32", "int", "bool", "axis", "Batch"};
  lm_diag *d = EL_ERR(e, t->loc, E070, t->name ? t->name : "(…)");
  const char *near = t->name ? lm_nearest(t->name, names, 6) : NULL;
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else
    lm_diag_help(e->c, d, "types are real, f32, int, bool, axis and Batch");
  return K_REAL;
}

el_row *el_row_find(lm_elab *e, lm_sym name) {
  for (el_row *r = e->frame->rows; r; r = r->up)
    if (r->name == name)
      return r;
  return NULL;
}

el_row *el_rows_copy(lm_elab *e, const el_row *rows) {
  if (!rows)
    return NULL;
  el_row *r = LM_NEW(e->a, el_row);
  *r = *rows;
  r->up = el_rows_copy(e, rows->up);
  return r;
}

bool el_row_is_of_instance(const lm_elab *e, lm_sym name) {
  const el_row *r = e->frame->self ? e->frame->self->inst->rows : NULL;
  while (r && r->name != name)
    r = r->up;
  return r;
}

const el_axes *el_type_batch(lm_elab *e, const ast_type *t) {
  static const el_axes none;
  const el_row *batch = el_row_find(e, LM_SYM(e->c, EL_BATCH_ROW));
  for (uint32_t i = 0; batch && i < t->n_dims; i++)
    if (t->dims[i].row && el_row_is_of_instance(e, t->dims[i].row))
      return &batch->axes;
  return &none;
}

void el_row_bind(lm_elab *e, lm_sym name, el_axes axes) {
  el_row *r = LM_NEW(e->a, el_row);
  *r = (el_row){name, axes, e->frame->rows};
  e->frame->rows = r;
}

lm_sym el_dim_name(lm_elab *e, const ast_dim *d) {
  if (d->row)
    return d->row;
  if (d->expr->kind == EX_NAME)
    return d->expr->text;
  EL_ERR(e, d->loc, E071);
  return NULL;
}

const char *el_type_text(lm_elab *e, const ast_type *t) {
  const char *s = "(";
  for (uint32_t i = 0; i < t->n_tuple; i++)
    s = lm_arena_printf(e->a, "%s%s%s", s, i ? ", " : "", el_type_text(e, t->tuple[i]));
  if (!t->name)
    return lm_arena_printf(e->a, "%s)", s);
  s = lm_arena_printf(e->a, "%s[", t->name);
  for (uint32_t i = 0; i < t->n_dims; i++)
    s = lm_arena_printf(e->a, "%s%s%s%s", s, i ? ", " : "", t->dims[i].row ? ".." : "",
                        t->dims[i].row                     ? t->dims[i].row
                        : t->dims[i].expr->kind == EX_NAME ? t->dims[i].expr->text
                                                           : "…");
  return lm_arena_printf(e->a, "%s]", s);
}
