// lookup.c - names of values and axes, from the scope of the body out to the declarations of the
// file.
#include "dsl/elab/elab.h"

bool el_is_incomplete(const lm_elab *e) {
  const ast_decl *d = e->frame->self ? e->frame->self->inst->decl : NULL;
  for (uint32_t i = 0; d && i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_ERROR)
      return true;
  return e->frame->file && e->frame->file->incomplete;
}

// ---- names and axes
bool el_axis_list(lm_elab *e, const ast_expr *x, el_axes *out) {
  uint32_t first = out->n;
  if (x->kind == EX_TUPLE || x->kind == EX_LIST) {
    for (uint32_t i = 0; i < x->n_args; i++) {
      if (x->args[i].kind == ARG_ROW) {
        ast_expr row = {.kind = EX_NAME, .text = x->args[i].name, .loc = x->args[i].loc};
        if (!el_axis_list(e, &row, out))
          return false;
        continue;
      }
      if (x->args[i].kind != ARG_POS)
        return el_reject(e, x->args[i].loc, "E040", "expected the name of an axis");
      if (!el_axis_list(e, x->args[i].expr, out))
        return false;
    }
    for (uint32_t i = first; i < out->n; i++)
      for (uint32_t k = first; k < i; k++)
        if (out->v[i] == out->v[k])
          return el_reject(e, x->loc, "E056", "axis '%s' stands twice in the list",
                           out->v[i]->name);
    return true;
  }
  if (x->kind != EX_NAME)
    return el_reject(e, x->loc, "E040", "expected the name of an axis");
  for (const el_bind *b = el_names_find(&e->frame->names, x->text); b; b = b->hides)
    if (b->val.k == V_AXES) {
      for (uint32_t i = 0; i < b->val.axes.n; i++)
        el_axes_push(e, out, b->val.axes.v[i]);
      return true;
    }
  for (el_row *r = e->frame->rows; r; r = r->up)
    if (r->name == x->text) {
      for (uint32_t i = 0; i < r->axes.n; i++)
        el_axes_push(e, out, r->axes.v[i]);
      return true;
    }
  el_axis *axis = el_axis_lookup(e, x->text);
  if (axis) {
    el_axes_push(e, out, axis);
    return true;
  }
  const el_bind *own = e->frame->self ? el_names_find(&e->frame->self->inst->vals, x->text) : NULL;
  for (; own; own = own->hides)
    if (own->val.k == V_ERROR)
      return false; // reported where it was made
  const char *names[64];
  int n = 0;
  for (el_axis_bind *b = e->frame->axes; b && n < 64; b = b->up)
    names[n++] = b->name;
  for (el_axis_bind *b = e->frame->self ? e->frame->self->inst->axes : NULL; b && n < 64; b = b->up)
    names[n++] = b->name;
  lm_diag *d = el_err(e, x->loc, "E041", "no axis '%s' here", x->text);
  el_val v = el_lookup(e, x->text, x->loc, false);
  const char *near = lm_nearest(x->text, names, n);
  if (v.k == V_TENSOR)
    lm_diag_label(e->c, d, "'%s' is %s", x->text, el_show(e, &v));
  else if (v.k == V_NUM)
    lm_diag_label(e->c, d, "'%s' is %s, which is no size of an axis: that is 1 or more", x->text,
                  el_show(e, &v));
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else if (el_axis_lookup(e, LM_SYM(e->c, "t")))
    lm_diag_help(e->c, d,
                 "history(x, t -> %s) makes '%s' the axis of all positions so far; expand(x, %s = "
                 "n) makes one of size n",
                 x->text, x->text, x->text);
  return false;
}

el_val el_lookup_member(lm_elab *e, lm_sym name, bool *found) {
  el_ref *self = e->frame->self;
  *found = true;
  for (el_bind *b = self->indexed; b; b = b->up)
    if (b->name == name)
      return b->val;
  const el_bind *own = el_names_find(&self->inst->vals, name);
  if (own)
    return own->val;
  for (uint32_t i = 0; i < self->inst->n_params; i++)
    if (self->inst->params[i].name == name)
      return el_param_value(e, self, &self->inst->params[i]);
  for (uint32_t i = 0; i < self->inst->n_subs; i++) {
    struct el_sub *s = &self->inst->subs[i];
    if (s->name != name)
      continue;
    if (s->one)
      return (el_val){.k = V_INST, .ref = el_ref_sub(e, self, s->one)};
    if (s->many)
      return (el_val){.k = V_INSTS, .ref = *self, .insts = s->many};
    return el_error();
  }
  *found = false;
  return el_error();
}

el_val el_lookup(lm_elab *e, lm_sym name, lm_loc at, bool report) {
  const el_bind *here = el_names_find(&e->frame->names, name);
  if (here)
    return here->val;
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    if (b->name == name)
      return el_axis_size(e, b->axis, at);
  if (e->frame->self) {
    bool found;
    el_val v = el_lookup_member(e, name, &found);
    if (found)
      return v;
  }
  lm_decl_ref top = lm_program_find(e->prog, e->frame->file, name);
  if (top.decl && top.decl->kind == DC_LET && top.decl->let_expr) {
    const el_frame *here = e->frame;
    el_frame clean = {.up = e->frame, .file = top.file};
    e->frame = &clean;
    el_val v = e->depth++ < 200 ? el_eval(e, top.decl->let_expr)
                                : el_fail(e, at, "E091", "'%s' is defined by itself", name);
    e->depth--;
    e->frame = (el_frame *)here;
    for (uint32_t i = 0;
         top.decl->let_tuple && v.k == V_TUPLE && i < v.n && i < top.decl->let_names.n; i++)
      if (top.decl->let_names.v[i].text == name)
        return v.items[i];
    return v;
  }
  if (!report)
    return el_error();
  if (name == LM_SYM(e->c, "true") || name == LM_SYM(e->c, "false"))
    return el_boolean(name[0] == 't', true);
  if (!top.decl && el_is_incomplete(e))
    return el_error();
  const char *names[256];
  int n = 0;
  for (el_bind *b = e->frame->names.last; b && n < 250; b = b->up)
    names[n++] = b->name;
  if (e->frame->self) {
    el_inst *s = e->frame->self->inst;
    for (uint32_t i = 0; i < s->n_params && n < 250; i++)
      names[n++] = s->params[i].name;
    for (uint32_t i = 0; i < s->n_subs && n < 250; i++)
      names[n++] = s->subs[i].name;
    for (el_bind *b = s->vals.last; b && n < 250; b = b->up)
      names[n++] = b->name;
  }
  lm_diag *d = el_err(e, at, "E020", "unknown name '%s'", name);
  const char *near = lm_nearest(name, names, n);
  if (top.decl)
    lm_diag_help(e->c, d, "'%s' is a declaration, not a value", name);
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return el_error();
}
