// value.c - values and axes of the evaluator: constructors, printing for messages, scopes,
// renaming.
#include "dsl/elab/elab.h"
#include <string.h>

el_val el_error(void) {
  return (el_val){.k = V_ERROR};
}
el_val el_sized(lm_size s) {
  el_val v = {.k = V_NUM, .known = lm_size_is_const(s), .has_size = true, .size = s};
  if (v.known)
    v.num = s.n ? (double)s.t[0].num / (double)s.t[0].den : 0;
  return v;
}
el_val el_whole(lm_elab *e, int64_t v) {
  return el_sized(lm_size_number(e->a, v));
}
el_val el_number(lm_elab *e, double v) {
  return (el_val){.k = V_NUM, .known = true, .num = v};
}
el_val el_unknown_number(void) {
  return (el_val){.k = V_NUM};
}
el_val el_boolean(bool v, bool known) {
  return (el_val){.k = V_BOOL, .known = known, .num = v};
}
el_val el_tensor(el_kind kind, const el_axes *axes, lm_value *v) {
  return (el_val){.k = V_TENSOR, .kind = kind, .axes = *axes, .v = v};
}

el_val el_tuple(lm_elab *e, const el_val *items, uint32_t n) {
  el_val *copy = LM_NEW_N(e->a, el_val, n ? n : 1);
  if (n)
    memcpy(copy, items, n * sizeof *copy);
  return (el_val){.k = V_TUPLE, .items = copy, .n = n};
}

bool el_number_value(const el_val *v, double *out) {
  return v->k == V_NUM && v->known ? (*out = v->num, true) : false;
}
bool el_is_scalar_number(const el_val *v) {
  return v->k == V_NUM;
}

const char *el_kind_name(el_kind k) {
  return (const char *[]){"real", "f32", "int", "bool", "number"}[k];
}
lm_dtype el_dtype(const lm_elab *e, el_kind k) {
  return k == K_REAL ? e->compute : (lm_dtype[]){LM_F32, LM_F32, LM_INT, LM_BOOL, LM_F64}[k];
}

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

// Users see a tensor of all elements as the one element that their optimizer is written for.
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

const char *el_show(lm_elab *e, const el_val *v) {
  switch (v->k) {
  case V_ERROR: return "?";
  case V_NUM: {
    if (!v->has_size)
      return v->known ? lm_arena_printf(e->a, "%g", v->num) : "a number";
    lm_buf b = {0};
    lm_size_print(v->size, &b);
    const char *s = lm_arena_printf(e->a, "%s", b.p);
    lm_buf_free(&b);
    return s;
  }
  case V_BOOL: return !v->known ? "a condition" : v->num != 0 ? "true" : "false";
  case V_STRING: return lm_arena_printf(e->a, "\"%s\"", v->text);
  case V_QUANTITY: return lm_arena_printf(e->a, "%g %s", v->num, v->text);
  case V_PATTERN: return v->text;
  case V_TENSOR: return show_tensor(e, v);
  case V_TUPLE: return show_list(e, v);
  case V_RECORD: return "Batch";
  case V_AXES:
    return v->axes.n == 1 ? lm_arena_printf(e->a, "axis %s", v->axes.v[0]->name)
                          : lm_arena_printf(e->a, "axes %s", el_show_axes(e, &v->axes));
  case V_INST: return lm_arena_printf(e->a, "an instance of %s", v->ref.inst->decl->name.text);
  case V_INSTS: return "a list of instances";
  }
  return "?";
}

void el_note_value(lm_elab *e, lm_diag *d, const el_val *v) {
  if (v->k == V_ERROR || !v->name)
    return;
  lm_diag_note(e->c, d, v->loc, "%s: %s", v->name, el_show(e, v));
}

// What goes wrong inside a function of the library is told at the call of it that the user wrote;
// else `at`.
static lm_loc user_location(const lm_elab *e, lm_loc at) {
  lm_loc call = at;
  for (const el_frame *f = e->frame;
       f && f->file && f->file->is_std && f->file->tree->source == call.file; f = f->up)
    if (f->called_at.file)
      call = f->called_at;
  return call;
}

static lm_diag *report(lm_elab *e, lm_loc at, const char *code, const char *fmt, va_list ap) {
  lm_buf b = {0};
  lm_loc inside = at;
  lm_buf_vprintf(&b, fmt, ap);
  at = user_location(e, at);
  lm_diag *d = lm_error(e->c, at, code, "%s", b.p);
  lm_buf_free(&b);
  if (inside.file != at.file)
    lm_diag_note(e->c, d, inside, "inside %s", e->frame->what);
  for (el_frame *f = e->frame; f && f->up && d->n_notes < 3; f = f->up) {
    // an error in an argument of a call needs no note about the call on the same line
    bool here = f->called_at.file == at.file && f->called_at.line == at.line;
    if (f->called_at.file && f->what && !here)
      lm_diag_note(e->c, d, f->called_at, "in %s", f->what);
  }
  return d;
}

lm_diag *el_err(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_diag *d = report(e, at, code, fmt, ap);
  va_end(ap);
  return d;
}

el_val el_fail(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  report(e, at, code, fmt, ap);
  va_end(ap);
  return el_error();
}

bool el_reject(lm_elab *e, lm_loc at, const char *code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  report(e, at, code, fmt, ap);
  va_end(ap);
  return false;
}

// ---- axes
bool el_axes_has(const el_axes *s, const el_axis *x) {
  return el_axes_find(s, x) >= 0;
}
int el_axes_find(const el_axes *s, const el_axis *x) {
  for (uint32_t i = 0; i < s->n; i++)
    if (s->v[i] == x)
      return (int)i;
  return -1;
}
bool el_axes_subset(const el_axes *s, const el_axes *of) {
  for (uint32_t i = 0; i < s->n; i++)
    if (!el_axes_has(of, s->v[i]))
      return false;
  return true;
}
bool el_axes_same(const el_axes *x, const el_axes *y) {
  return x->n == y->n && (x->n == 0 || memcmp(x->v, y->v, x->n * sizeof *x->v) == 0);
}
void el_axes_push(lm_elab *e, el_axes *s, el_axis *x) {
  if (!s->cap || s->n == s->cap ||
      s->v[s->n]) { // copies on growth, and where a set that shares the array has grown already
    uint32_t cap = s->n * 2 + 4;
    el_axis **v = LM_NEW_N(e->a, el_axis *, cap);
    if (s->n)
      memcpy(v, s->v, s->n * sizeof *v);
    s->v = v;
    s->cap = cap;
  }
  s->v[s->n++] = x;
}
el_axes el_axes_minus(lm_elab *e, const el_axes *s, const el_axes *drop) {
  el_axes out = {0};
  for (uint32_t i = 0; i < s->n; i++)
    if (!el_axes_has(drop, s->v[i]))
      el_axes_push(e, &out, s->v[i]);
  return out;
}

el_axis *el_axis_new(lm_elab *e, lm_sym name, lm_size size, int dyn) {
  el_axis *x = LM_NEW(e->a, el_axis);
  *x = (el_axis){.name = name, .size = size, .dyn = dyn};
  if (e->frame)
    el_axes_push(e, &e->frame->live, x);
  return x;
}

el_axis *el_axis_again(lm_elab *e, const el_axis *x) {
  el_axis *copy = el_axis_new(e, x->name, x->size, x->dyn);
  copy->element = x->element;
  return copy;
}

static bool taken(const el_frame *f, lm_axis ir, const el_axis *by) {
  for (uint32_t i = 0; f && i < f->live.n; i++)
    if (f->live.v[i]->ir == ir && f->live.v[i] != by)
      return true;
  return false;
}

static bool is_variant(const char *name, const char *base) {
  size_t n = strlen(base);
  if (strncmp(name, base, n))
    return false;
  return name[n] == 0 ||
         (name[n] == '.' && strspn(name + n + 1, "0123456789") == strlen(name + n + 1));
}

// The IR axis of a scope's axis: the first one of that name and size that nothing else in the frame
// uses, so that equal programs give equal text.
lm_axis el_axis_ir(lm_elab *e, el_axis *x) {
  int64_t size;
  if (x->ir || !lm_size_whole(x->size, &size))
    return x->ir;
  for (uint32_t i = 1; i < e->m->n_axes && !x->ir; i++) {
    const lm_axis_info *a = &e->m->axes[i];
    if (a->size == size && a->dyn == x->dyn && is_variant(a->name, x->name) &&
        !taken(e->frame, (lm_axis)i, x))
      x->ir = (lm_axis)i;
  }
  if (!x->ir)
    x->ir = lm_axis_add(e->m, x->name, size, x->dyn);
  el_count_check(e, e->m->n_axes, "axes", e->b.loc);
  return x->ir;
}

void el_axis_bind_name(lm_elab *e, lm_sym name, el_axis *x) {
  el_axis_bind *b = LM_NEW(e->a, el_axis_bind);
  *b = (el_axis_bind){name, x, e->frame->axes};
  e->frame->axes = b;
  if (!el_axes_has(&e->frame->live, x))
    el_axes_push(e, &e->frame->live, x);
}

el_axis *el_axis_lookup(lm_elab *e, lm_sym name) {
  for (el_axis_bind *b = e->frame->axes; b; b = b->up)
    if (b->name == name)
      return b->axis;
  if (!e->frame->self)
    return NULL;
  for (el_bind *b = e->frame->self->over; b; b = b->up) // a size that changes from place to place
    if (b->name == name)
      el_decide(e, &b->val);
  for (el_axis_bind *b = e->frame->self->inst->axes; b; b = b->up)
    if (b->name == name)
      return b->axis;
  return NULL;
}

bool el_axis_is_sequence(const lm_elab *e, const el_axis *x) {
  return e->m && e->mode == EL_DECODE && (x->dyn || (x->ir && x->ir == e->position));
}

el_val el_axis_size(lm_elab *e, const el_axis *x, lm_loc at) {
  if (!el_axis_is_sequence(e, x))
    return el_sized(x->size);
  lm_diag *d = el_err(
      e, at, "E0D3",
      "the size of '%s' is the number of places, which is another in every call while decoding",
      x->name);
  lm_diag_help(e->c, d, "use pos, a place's number in its document");
  return el_error();
}

bool el_size_check(lm_elab *e, lm_type t, lm_loc at) {
  if (lm_type_elements(e->m, t) < LM_ELEMENTS_MAX)
    return true;
  lm_buf b = {0}, sizes = {0};
  lm_type_print(e->m, t, &b);
  for (int i = 0; i < t.rank; i++)
    lm_buf_printf(&sizes, "%s%s = %lld", i ? ", " : "", e->m->axes[t.axis[i]].name,
                  (long long)lm_axis_size(e->m, t.axis[i]));
  lm_diag_note(e->c, el_err(e, at, "E05A", "%s has more than 2^47 elements", b.p), (lm_loc){0},
               "%s", sizes.p);
  lm_buf_free(&b);
  lm_buf_free(&sizes);
  return false;
}

lm_type el_ir_type(lm_elab *e, el_kind kind, const el_axes *axes) {
  lm_axis ir[LM_RANK];
  LM_ASSERT(axes->n <= LM_RANK);
  for (uint32_t i = 0; i < axes->n; i++)
    ir[i] = el_axis_ir(e, axes->v[i]);
  return lm_type_make(el_dtype(e, kind), ir, (int)axes->n);
}

void el_live(lm_elab *e, const el_val *v) {
  if (v->k == V_TENSOR)
    for (uint32_t i = 0; i < v->axes.n; i++)
      if (!el_axes_has(&e->frame->live, v->axes.v[i]))
        el_axes_push(e, &e->frame->live, v->axes.v[i]);
  if (v->k == V_TUPLE || v->k == V_RECORD)
    for (uint32_t i = 0; i < v->n; i++)
      el_live(e, &v->items[i]);
}

el_val el_rename(lm_elab *e, const el_val *v, const el_axes *from, const el_axes *to) {
  el_val out = *v;
  if (v->k == V_TUPLE || v->k == V_RECORD) {
    out.items = LM_NEW_N(e->a, el_val, v->n ? v->n : 1);
    for (uint32_t i = 0; i < v->n; i++)
      out.items[i] = el_rename(e, &v->items[i], from, to);
  }
  if ((v->k != V_TENSOR && v->k != V_AXES) || from->n == 0)
    return out;
  out.axes = (el_axes){0};
  lm_attr attr = {0};
  for (uint32_t i = 0; i < v->axes.n; i++) {
    int k = el_axes_find(from, v->axes.v[i]);
    el_axis *now = k < 0 ? v->axes.v[i] : to->v[k];
    el_axes_push(e, &out.axes, now);
    if (v->k != V_TENSOR || !v->v || k < 0 || el_axis_ir(e, now) == v->axes.v[i]->ir)
      continue;
    attr.axes[attr.n_axes++] = v->axes.v[i]->ir;
    attr.to[attr.n_to++] = now->ir;
  }
  if (attr.n_axes)
    out.v = lm_emit(&e->b, LM_OP_RENAME, &v->v, 1, &attr, NULL);
  return out;
}
