// report.c - messages: values in the notation of the language, and errors with the calls around
// them.
#include <math.h>
#include <stdlib.h>

#include "dsl/elab/edit.h"

const char *el_show_axes(lm_elab *e, const el_axes *axes) {
  const char *s = "[";
  bool any = false;
  for (uint32_t i = 0; i < axes->n; i++) {
    const el_axis *x = axes->v[i];
    if (x->element)
      continue;
    s = lm_arena_printf(e->a, "%s%s%s%s", s, any ? ", " : "", x->opaque ? ".." : "", x->name);
    any = true;
  }
  return lm_arena_printf(e->a, "%s]", s);
}

// A tensor over all elements of the parameters is shown as the one element that update sees.
static const char *show_tensor(lm_elab *e, const el_val *v) {
  bool any = false;
  for (uint32_t i = 0; i < v->axes.n; i++)
    any |= !v->axes.v[i]->element;
  const char *kind = el_kind_name(v->kind);
  return any ? lm_arena_printf(e->a, "%s%s", kind, el_show_axes(e, &v->axes)) : kind;
}

static const char *show_list(lm_elab *e, const el_val *v) {
  const char *s = "(";
  for (uint32_t i = 0; i < v->n; i++)
    s = lm_arena_printf(e->a, "%s%s%s", s, i ? ", " : "", el_show(e, &v->items[i]));
  return lm_arena_printf(e->a, "%s)", s);
}

// A number that is not whole is not printed as a whole one: 0.29 * 100 is 28.999999999999996.
static const char *show_number(lm_elab *e, double x) {
  const char *s = lm_arena_printf(e->a, "%g", x);
  double read = strtod(s, NULL);
  bool rounded = read == floor(read) && x != floor(x);
  return rounded ? lm_arena_printf(e->a, "%.17g", x) : s;
}

const char *el_show(lm_elab *e, const el_val *v) {
  switch (v->k) {
  case V_ERROR: return "?";
  case V_NUM: {
    if (!v->has_size)
      return v->known ? show_number(e, v->num) : "a number";
    lm_buf b = {0};
    lm_size_print(v->size, &b);
    const char *s = lm_arena_printf(e->a, "%s", b.p);
    lm_buf_free(&b);
    return s;
  }
  case V_BOOL: return !v->known ? "a condition" : v->num != 0 ? "true" : "false";
  case V_STRING: return lm_arena_printf(e->a, "\"%s\"", v->text);
  case V_PATTERN: return v->text;
  case V_TENSOR: return show_tensor(e, v);
  case V_TUPLE: return show_list(e, v);
  case V_RECORD: return "Batch";
  case V_AXES:
    return v->axes.n == 1 ? lm_arena_printf(e->a, "axis %s", v->axes.v[0]->name)
                          : lm_arena_printf(e->a, "axes %s", el_show_axes(e, &v->axes));
  case V_INST:
    return lm_arena_printf(e->a,
                           el_is_format(v)      ? "format %s"
                           : el_is_optimizer(v) ? "optimizer %s"
                                                : "an instance of %s",
                           v->ref.inst->decl->name.text);
  case V_INSTS: return "a list of instances";
  }
  return "?";
}

void el_note_value(lm_elab *e, lm_diag *d, const el_val *v) {
  if (v->k == V_ERROR || !v->name)
    return;
  lm_diag_note(e->c, d, v->loc, "%s: %s", v->name, el_show(e, v));
}

// The location to report: for an error inside of a library function, the user's call of it; else
// `at`.
static lm_loc user_location(const lm_elab *e, lm_loc at) {
  lm_loc call = at;
  for (const el_frame *f = e->frame;
       f && f->file && f->file->is_std && f->file->tree->source == call.file; f = f->up)
    if (f->called_at.file)
      call = f->called_at;
  return call;
}

// The edit that has added the instance whose method is evaluated; NULL: it is the model's own.
static const el_edit *edit_around(const lm_elab *e) {
  for (const el_frame *f = e->frame; f; f = f->up) {
    const el_inst *inst = f->self ? f->self->inst : NULL;
    if (inst && el_edit_of(inst))
      return el_edit_of(inst);
    if (inst && inst->replaced_by)
      return inst->replaced_by;
  }
  return NULL;
}

lm_diag *el_verr(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, va_list ap) {
  lm_loc inside = at;
  at = user_location(e, at);
  lm_diag *d = lm_vreport(e->c, at, id, fmt, ap);
  if (inside.file != at.file)
    lm_diag_note(e->c, d, inside, "inside %s", e->frame->what);
  for (el_frame *f = e->frame; f && f->up && d->n_notes < 3; f = f->up) {
    // an error in an argument of a call needs no note about the call on the same line
    bool here = f->called_at.file == at.file && f->called_at.line == at.line;
    if (f->called_at.file && f->what && !here)
      lm_diag_note(e->c, d, f->called_at, "in %s", f->what);
  }
  el_help_counts(e, d);
  const el_edit *edit = edit_around(e);
  if (edit && !(edit->at.file == at.file && edit->at.line == at.line))
    lm_diag_note(e->c, d, edit->at, "added by this edit");
  return d;
}

lm_diag *el_err(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_diag *d = el_verr(e, at, id, fmt, ap);
  va_end(ap);
  return d;
}

el_val el_fail(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  el_verr(e, at, id, fmt, ap);
  va_end(ap);
  return el_error();
}

bool el_reject(lm_elab *e, lm_loc at, lm_diag_id id, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  el_verr(e, at, id, fmt, ap);
  va_end(ap);
  return false;
}
