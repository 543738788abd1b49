// lookup.c - resolution of the names of values and axes.
//
// A name is looked up in the scope of the body, then among the axes, then in the instance whose
// method runs, and last among the declarations of the file.
#include <strings.h>
#include "dsl/elab/call.h"

enum {
  MAX_LET_DEPTH = 200
};

bool el_has_errors(const ast_decl *d) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_ERROR)
      return true;
  return false;
}

// True if a statement or member with a reported error may have declared a name that is missing.
static bool lacks_declarations(const lm_elab *e) {
  return e->frame->incomplete || (e->frame->self && el_has_errors(e->frame->self->inst->decl));
}

bool el_is_incomplete(const lm_elab *e) {
  return lacks_declarations(e) || (e->frame->file && e->frame->file->incomplete);
}

// ---- axes
static bool axis_tuple(lm_elab *e, const ast_expr *x, const el_operands *of, el_axes *out) {
  uint32_t first = out->n;
  for (uint32_t i = 0; i < x->n_args; i++) {
    const ast_arg *a = &x->args[i];
    ast_expr row = {
        .kind = EX_NAME,
        .text = a->name,
        .loc = a->loc,
    };
    if (a->kind != ARG_ROW && a->kind != ARG_POS)
      return EL_REJECT(e, a->loc, E040);
    if (!el_axis_list_of(e, a->kind == ARG_ROW ? &row : a->expr, of, out))
      return false;
  }
  for (uint32_t i = first; i < out->n; i++)
    for (uint32_t k = first; k < i; k++)
      if (out->v[i] == out->v[k])
        return EL_REJECT(e, x->loc, E069, out->v[i]->name);
  return true;
}

static void push_all(lm_elab *e, const el_axes *axes, el_axes *out) {
  for (uint32_t i = 0; i < axes->n; i++)
    el_axes_push(e, out, axes->v[i]);
}

// A parameter of type `axis`, a row variable, or an axis.
static bool find_axes(lm_elab *e, lm_sym name, el_axes *out) {
  for (const el_bind *b = el_names_find(&e->frame->names, name); b; b = b->hides)
    if (b->val.k == V_AXES) {
      push_all(e, &b->val.axes, out);
      return true;
    }
  for (const el_row *r = e->frame->rows; r; r = r->up)
    if (r->name == name) {
      push_all(e, &r->axes, out);
      return true;
    }
  el_axis *axis = el_axis_lookup(e, name);
  if (axis)
    el_axes_push(e, out, axis);
  return axis != NULL;
}

static bool is_before(lm_loc a, lm_loc b) {
  return a.line < b.line || (a.line == b.line && a.col < b.col);
}

static bool contains(const ast_body *body, lm_loc at) {
  return is_before(body->open, at) && is_before(at, body->close);
}

// The body that contains a location of the file; NULL if there is none.
static const ast_body *body_at(const ast_file *f, lm_loc at) {
  for (uint32_t i = 0; i < f->n; i++) {
    const ast_decl *d = f->v[i];
    if (d->kind == DC_FN && contains(&d->body, at))
      return &d->body;
    for (uint32_t k = 0; k < d->members.n; k++)
      if (contains(&d->members.v[k]->body, at))
        return &d->members.v[k]->body;
  }
  return NULL;
}

// A name that is missing in a body is reported at its first use there, which counts the others.
static bool is_counted(lm_elab *e, lm_diag_id id, const char *text, lm_loc at) {
  const ast_file *f = e->frame->file ? e->frame->file->tree : NULL;
  const ast_body *body = f && f->source == at.file ? body_at(f, at) : NULL;
  for (lm_diag *d = body ? e->c->diags : NULL; d; d = d->next) {
    bool same = d->code == lm_diag_table[id].code && !strcmp(d->text, text);
    if (!same || d->loc.file != at.file || body_at(f, d->loc) != body)
      continue;
    if (d->loc.line != at.line || d->loc.col != at.col)
      lm_diag_use(e->c, d, at);
    return true;
  }
  return false;
}

// True if the error of the declaration of that name has been reported.
static bool is_reported(const lm_elab *e, lm_sym name) {
  const el_bind *local = el_names_find(&e->frame->names, name);
  if (lacks_declarations(e) || (local && local->val.k == V_ERROR))
    return true;
  const el_inst *inst = e->frame->self ? e->frame->self->inst : NULL;
  for (const el_bind *b = inst ? el_names_find(&inst->vals, name) : NULL; b; b = b->hides)
    if (b->val.k == V_ERROR)
      return true;
  return false;
}

static const char *nearest_axis(const lm_elab *e, lm_sym name) {
  const char *names[64];
  int n = 0;
  for (el_axis_bind *b = e->frame->axes; b && n < 64; b = b->up)
    names[n++] = b->name;
  for (el_axis_bind *b = e->frame->self ? e->frame->self->inst->axes : NULL; b && n < 64; b = b->up)
    names[n++] = b->name;
  return lm_nearest(name, names, n);
}

// The axis of an operand that `name` was probably meant to be; NULL if there is none.
static const char *nearest_operand_axis(const el_operands *of, const char *name) {
  const char *names[2 * LM_RANK];
  int n = 0;
  for (uint32_t i = 0; i < of->n; i++)
    for (uint32_t k = 0; k < of->v[i]->axes.n && n < 2 * LM_RANK; k++)
      names[n++] = of->v[i]->axes.v[k]->name;
  for (int i = 0; i < n; i++)
    if (!strcasecmp(names[i], name))
      return names[i];
  return lm_nearest(name, names, n);
}

static void list_operands(lm_elab *e, lm_diag *d, const el_operands *of) {
  const char *first = el_show(e, of->v[0]);
  if (of->n == 1)
    lm_diag_label(e->c, d, "the operand is %s", first);
  else
    lm_diag_label(e->c, d, "the operands are %s and %s", first, el_show(e, of->v[1]));
  for (uint32_t i = 0; i < of->n; i++)
    el_note_value(e, d, of->v[i]);
}

// Explains why a name that denotes a value is not an axis; false if it denotes none.
static bool label_value(lm_elab *e, lm_diag *d, const ast_expr *x) {
  el_val v = el_lookup(e, x->text, x->loc, false);
  if (v.k == V_TENSOR)
    lm_diag_label(e->c, d, "'%s' is %s", x->text, el_show(e, &v));
  else if (v.k == V_NUM)
    lm_diag_label(e->c, d, "'%s' is %s; the size of an axis is a whole number from 1 to 2^31 - 1",
                  x->text, el_show(e, &v));
  return v.k == V_TENSOR || v.k == V_NUM;
}

static void report_no_axis(lm_elab *e, const ast_expr *x, const el_operands *of) {
  if (is_counted(e, LM_DIAG_E041, lm_arena_printf(e->a, LM_TEXT_E041, x->text), x->loc))
    return;
  lm_diag *d = EL_ERR(e, x->loc, E041, x->text);
  if (el_scan_names(e, x->text)) {
    lm_diag_help(e->c, d,
                 "in the body of the loop a tensor is its slice at the position, without axis '%s'",
                 x->text);
    return;
  }
  if (label_value(e, d, x))
    return;
  const char *near = of->n ? nearest_operand_axis(of, x->text) : nearest_axis(e, x->text);
  if (of->n)
    list_operands(e, d, of);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else if (!of->n && el_axis_lookup(e, LM_SYM(e->c, "t")))
    lm_diag_help(e->c, d,
                 "history(x, t -> %s) makes '%s' the axis of all positions up to the current one; "
                 "expand(x, %s = n) makes one of size n",
                 x->text, x->text, x->text);
}

static void report_no_axis_name(lm_elab *e, const ast_expr *x) {
  lm_diag *d = EL_ERR(e, x->loc, E040);
  if (x->kind == EX_NUMBER)
    lm_diag_help(e->c, d,
                 "axes are given by name, not by index; maximum(x, y) and minimum(x, y) compare "
                 "elements");
}

bool el_axis_list_of(lm_elab *e, const ast_expr *x, const el_operands *of, el_axes *out) {
  if (x->kind == EX_TUPLE || x->kind == EX_LIST)
    return axis_tuple(e, x, of, out);
  if (x->kind != EX_NAME) {
    report_no_axis_name(e, x);
    return false;
  }
  if (find_axes(e, x->text, out))
    return true;
  if (!is_reported(e, x->text))
    report_no_axis(e, x, of);
  return false;
}

bool el_axis_list(lm_elab *e, const ast_expr *x, el_axes *out) {
  return el_axis_list_of(e, x, &(el_operands){0}, out);
}

// ---- values
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
      return (el_val){
          .k = V_INST,
          .ref = el_ref_sub(e, self, s->one),
      };
    if (s->many)
      return (el_val){
          .k = V_INSTS,
          .ref = *self,
          .insts = s->many,
      };
    return el_error();
  }
  *found = false;
  return el_error();
}

static el_val eval_top_level_let(lm_elab *e, lm_decl_ref top, lm_sym name, lm_loc at) {
  el_frame *caller = e->frame;
  el_frame clean = {
      .up = caller,
      .file = top.file,
  };
  e->frame = &clean;
  el_val v =
      e->depth++ < MAX_LET_DEPTH ? el_eval(e, top.decl->let_expr) : EL_FAIL(e, at, E091, name);
  e->depth--;
  e->frame = caller;
  if (!top.decl->let_tuple || v.k != V_TUPLE)
    return v;
  for (uint32_t i = 0; i < v.n && i < top.decl->let_names.n; i++)
    if (top.decl->let_names.v[i].text == name)
      return v.items[i];
  return v;
}

static const char *nearest_value(const lm_elab *e, lm_sym name) {
  const char *names[256];
  int n = 0;
  for (el_bind *b = e->frame->names.last; b && n < 250; b = b->up)
    names[n++] = b->name;
  const el_inst *s = e->frame->self ? e->frame->self->inst : NULL;
  for (uint32_t i = 0; s && i < s->n_params && n < 250; i++)
    names[n++] = s->params[i].name;
  for (uint32_t i = 0; s && i < s->n_subs && n < 250; i++)
    names[n++] = s->subs[i].name;
  for (el_bind *b = s ? s->vals.last : NULL; b && n < 250; b = b->up)
    names[n++] = b->name;
  return lm_nearest(name, names, n);
}

static el_val report_unknown(lm_elab *e, lm_sym name, lm_loc at, bool is_declaration) {
  if (is_counted(e, LM_DIAG_E020, lm_arena_printf(e->a, LM_TEXT_E020, name), at))
    return el_error();
  const char *near = nearest_value(e, name);
  lm_diag *d = EL_ERR(e, at, E020, name);
  if (is_declaration)
    lm_diag_help(e->c, d, "'%s' is a declaration, not a value; a call of it is one: %s()", name,
                 name);
  else if (el_help_word(e, d, name))
    return el_error();
  else if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  return el_error();
}

// A row of axes as a number: the sizes of its axes, multiplied.
static el_val row_size(lm_elab *e, const el_row *r, lm_loc at) {
  lm_size n = lm_size_number(e->a, 1);
  for (uint32_t i = 0; i < r->axes.n; i++) {
    el_val size = el_axis_size(e, r->axes.v[i], at);
    if (size.k == V_ERROR || !lm_size_mul(e->a, n, size.size, &n))
      return size.k == V_ERROR ? size : el_unknown_number();
  }
  return el_sized(n);
}

el_val el_lookup(lm_elab *e, lm_sym name, lm_loc at, bool report) {
  const el_bind *here = el_names_find(&e->frame->names, name);
  bool found = false;
  if (here)
    return el_scan_slice(e, here->val, at);
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    if (b->name == name)
      return el_axis_size(e, b->axis, at);
  el_val member = e->frame->self ? el_lookup_member(e, name, &found) : el_error();
  if (found)
    return member;
  const el_row *row = el_row_find(e, name);
  if (row)
    return row_size(e, row, at);
  lm_decl_ref top = lm_program_find(e->prog, e->frame->file, name);
  if (top.decl && top.decl->kind == DC_LET && top.decl->let_expr)
    return eval_top_level_let(e, top, name, at);
  if (!report)
    return el_error();
  if (name == LM_SYM(e->c, "true") || name == LM_SYM(e->c, "false"))
    return el_boolean(name[0] == 't', true);
  if (!top.decl && el_is_incomplete(e))
    return el_error();
  return report_unknown(e, name, at, top.decl != NULL);
}
