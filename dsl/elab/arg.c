// arg.c - arguments of primitives, and the checks that primitives share.
#include "dsl/elab/prim.h"
#include <string.h>

// ---- arguments
const ast_arg *el_positional(el_call_site c, uint32_t i) {
  for (uint32_t k = 0; k < c.x->n_args; k++)
    if (c.x->args[k].kind != ARG_NAMED && i-- == 0)
      return &c.x->args[k];
  return NULL;
}

const ast_arg *el_named(el_call_site c, const char *name) {
  for (uint32_t k = 0; k < c.x->n_args; k++)
    if (c.x->args[k].kind == ARG_NAMED && strcmp(c.x->args[k].name, name) == 0)
      return &c.x->args[k];
  return NULL;
}

el_val el_arg(el_call_site c, uint32_t i) {
  const ast_arg *a = el_positional(c, i);
  if (a && a->kind == ARG_POS)
    return el_eval(c.e, a->expr);
  return EL_FAIL(c.e, a ? a->loc : c.x->loc, E050, c.x->a->text, i + 1);
}

el_val el_arg_tensor(el_call_site c, uint32_t i) {
  el_val v = el_arg(c, i);
  return v.k == V_ERROR ? v : el_as_tensor(c.e, &v, el_positional(c, i)->loc);
}

lm_loc el_arg_loc(el_call_site c, uint32_t i) {
  const ast_arg *a = el_positional(c, i);
  return a ? (a->kind == ARG_POS ? a->expr->loc : a->loc) : c.x->loc;
}

const ast_arg *el_arg_arrow(el_call_site c, uint32_t i, const char *form) {
  const ast_arg *a = el_positional(c, i);
  if (a && a->kind == ARG_ARROW)
    return a;
  EL_ERR(c.e, a ? a->loc : c.x->loc, E051, c.x->a->text, form);
  return NULL;
}

static void report_whole_parameter(el_call_site c, lm_loc at) {
  lm_diag *d = EL_ERR(c.e, at, E0B6, c.x->a->text);
  lm_diag_help(c.e->c, d,
               "an update of whole parameters is declared update(p: f32[..p], g: f32[..p], k: f32) "
               "-> f32[..p]");
}

static bool has_elements(const el_axes *axes) {
  for (uint32_t i = 0; i < axes->n; i++)
    if (axes->v[i]->element)
      return true;
  return false;
}

bool el_over_elements(el_call_site c, const el_axes *axes, lm_loc at) {
  if (!has_elements(axes))
    return false;
  report_whole_parameter(c, at);
  return true;
}

bool el_over_nothing(el_call_site c, const el_axes *x, const el_axes *axes, lm_loc at) {
  if (axes->n || !has_elements(x))
    return false;
  report_whole_parameter(c, at);
  return true;
}

bool el_is_random_allowed(el_call_site c) {
  if (c.e->mode != EL_UPDATE)
    return true;
  lm_diag *d = EL_ERR(c.e, c.x->loc, E0B8, c.x->a->text);
  lm_diag_note(c.e->c, d, (lm_loc){0}, "only models have random numbers");
  return false;
}

bool el_arg_axes(el_call_site c, const ast_expr *x, el_axes *out) {
  return el_axis_list_of(c.e, x, &c.of, out) && !el_over_elements(c, out, x->loc);
}

bool el_one_axis(el_call_site c, const ast_expr *x, el_axis **out) {
  el_axes s = {0};
  if (!el_arg_axes(c, x, &s))
    return false;
  if (s.n != 1)
    return EL_REJECT(c.e, x->loc, E046, s.n);
  *out = s.v[0];
  return true;
}

static const ast_expr *axis_argument(el_call_site c, uint32_t i) {
  const ast_arg *a = el_positional(c, i);
  if (a && a->kind == ARG_POS)
    return a->expr;
  EL_ERR(c.e, a ? a->loc : c.x->loc, E047, c.x->a->text, i + 1);
  return NULL;
}

bool el_positional_axes(el_call_site c, uint32_t i, el_axes *out) {
  const ast_expr *x = axis_argument(c, i);
  return x && el_arg_axes(c, x, out);
}

bool el_positional_axis(el_call_site c, uint32_t i, el_axis **out) {
  const ast_expr *x = axis_argument(c, i);
  return x && el_one_axis(c, x, out);
}

bool el_arrow_name(el_call_site c, const ast_arg *a) {
  return a->to->kind == EX_NAME || EL_REJECT(c.e, a->to->loc, E040);
}

bool el_lacks(el_call_site c, const el_val *x, el_axis *a, lm_loc at) {
  if (el_axes_has(&x->axes, a))
    return false;
  lm_diag *d = EL_ERR(c.e, at, E031, c.x->a->text);
  lm_diag_label(c.e->c, d, "%s has no axis '%s'", el_show(c.e, x), a->name);
  el_note_value(c.e, d, x);
  return true;
}

bool el_floating(el_call_site c, const el_val *x, lm_loc at) {
  if (x->kind == K_REAL || x->kind == K_F32 || x->kind == K_NUM)
    return true;
  lm_diag *d = EL_ERR(c.e, at, E052, c.x->a->text, el_show(c.e, x));
  el_note_value(c.e, d, x);
  lm_diag_help(c.e->c, d, "cast it: f32(…)");
  return false;
}

bool el_moves_positions(el_call_site c, const el_axis *x, lm_loc at) {
  if (!el_axis_is_sequence(c.e, x))
    return false;
  lm_diag *d = EL_ERR(c.e, at, E0D1);
  lm_diag_help(c.e->c, d,
               "history(x, t -> s) gives all positions up to the current one, along a new axis s");
  return true;
}

el_val el_in_order(el_call_site c, el_kind kind, const el_axes *axes, lm_value *v) {
  if (v) {
    lm_type want = el_ir_type(c.e, kind, axes);
    if (!lm_type_equal(want, v->type))
      v = lm_emit_permute(&c.e->b, v, want.axis, want.rank);
  }
  return el_tensor(kind, axes, v);
}

el_axis *el_axis_new_or_known(el_call_site c, lm_sym name, lm_size size, lm_loc at) {
  el_axis *known = el_axis_lookup(c.e, name);
  if (!known) {
    known = el_axis_new(c.e, name, size, 0);
    el_axis_bind_name(c.e, name, known);
  } else if (!lm_size_equal(known->size, size)) {
    el_val have = el_sized(known->size);
    el_val want = el_sized(size);
    lm_diag *d = EL_ERR(c.e, at, E053, name, el_show(c.e, &have), el_show(c.e, &want));
    el_help_sequence(c.e, d, known);
    return NULL;
  }
  return known;
}

bool el_distinct(el_call_site c, const el_axes *axes) {
  for (uint32_t i = 0; i < axes->n; i++)
    if (el_axes_find(axes, axes->v[i]) < (int)i)
      return EL_REJECT(c.e, c.x->loc, E056, axes->v[i]->name);
  return axes->n <= LM_RANK || EL_REJECT(c.e, c.x->loc, E057, LM_RANK);
}

el_axes el_spliced(el_call_site c, const el_axes *s, uint32_t at, uint32_t n, const el_axes *now) {
  el_axes out = {0};
  for (uint32_t i = 0; i < at; i++)
    el_axes_push(c.e, &out, s->v[i]);
  for (uint32_t i = 0; i < now->n; i++)
    el_axes_push(c.e, &out, now->v[i]);
  for (uint32_t i = at + n; i < s->n; i++)
    el_axes_push(c.e, &out, s->v[i]);
  return out;
}

// A symbolic size can have too many terms to be decided while a definition is checked; an instance
// has constant sizes, which fail only beyond 64 bits.
bool el_size_undecided(el_call_site c, lm_loc at) {
  if (c.e->m)
    EL_ERR(c.e, at, E059);
  return false;
}
