// axis.c - axes of the evaluator, sets of them, and their axes in the IR.
#include "dsl/elab/elab.h"
#include <string.h>

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
  // the array is copied if it is full, and if another set that shares it has used the next element
  if (!s->cap || s->n == s->cap || s->v[s->n]) {
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
  *x = (el_axis){
      .name = name,
      .size = size,
      .dyn = dyn,
  };
  if (e->frame)
    el_axes_push(e, &e->frame->live, x);
  return x;
}

el_axis *el_axis_copy(lm_elab *e, const el_axis *x) {
  el_axis *copy = el_axis_new(e, x->name, x->size, x->dyn);
  copy->element = x->element;
  copy->history = x->history;
  copy->sorted = x->sorted;
  copy->micro_batches = x->micro_batches;
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

// The axis in the IR: the first one of that name and size that no other live axis of the frame
// uses. Equal programs therefore give equal IR.
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
      return el_scan_hides(e, b->axis) ? NULL : b->axis;
  if (!e->frame->self)
    return NULL;
  // a size that depends on the index of a loop
  for (el_bind *b = e->frame->self->indexed; b; b = b->up)
    if (b->name == name)
      el_request_unroll(e, &b->val);
  for (el_axis_bind *b = e->frame->self->inst->axes; b; b = b->up)
    if (b->name == name)
      return b->axis;
  return NULL;
}

bool el_axis_is_sequence(const lm_elab *e, const el_axis *x) {
  return e->m && e->mode == EL_DECODE && (x->dyn || (x->ir && x->ir == e->position));
}

void el_help_sequence(lm_elab *e, lm_diag *d, const el_axis *x) {
  el_val size = el_sized(x->size);
  if (e->m && x->ir && x->ir == e->position)
    lm_diag_help(e->c, d,
                 "'%s' is the axis of the positions, which has no fixed size: %s is its size in "
                 "one of the functions that are checked; write the sizes in terms of %s",
                 x->name, el_show(e, &size), x->name);
}

el_val el_axis_size(lm_elab *e, const el_axis *x, lm_loc at) {
  lm_size size = x->size;
  bool divides = x->micro_batches < 2 ||
                 lm_size_div(e->a, x->size, lm_size_number(e->a, x->micro_batches), &size);
  if (!divides)
    LM_BUG("axis %s of %lld micro-batches", x->name, (long long)x->micro_batches);
  if (!el_axis_is_sequence(e, x))
    return el_sized(size);
  lm_diag *d = EL_ERR(e, at, E0D3, x->name);
  lm_diag_help(e->c, d, "use pos, the position in the document");
  return el_error();
}

// The sizes of the axes, and the bytes of the whole.
static void sizes_note(lm_elab *e, lm_diag *d, lm_type t) {
  lm_buf b = {0};
  lm_dtype dtype = (lm_dtype)t.dtype == LM_REAL ? LM_F32 : (lm_dtype)t.dtype;
  double bytes = lm_dtype_bytes(dtype);
  for (int i = 0; i < t.rank; i++) {
    int64_t size = lm_axis_size(e->m, t.axis[i]);
    lm_buf_printf(&b, "%s = %lld, ", e->m->axes[t.axis[i]].name, (long long)size);
    bytes *= (double)size;
  }
  lm_buf_puts(&b, "in all ");
  lm_show_bytes(&b, bytes);
  lm_diag_note(e->c, d, (lm_loc){0}, "%s", b.p);
  lm_buf_free(&b);
}

bool el_size_check(lm_elab *e, lm_type t, lm_loc at) {
  for (int i = 0; i < t.rank; i++) {
    const lm_axis_info *a = &e->m->axes[t.axis[i]];
    if (a->size <= INT32_MAX)
      continue;
    sizes_note(e, EL_ERR(e, at, E0F1, a->name, (long long)a->size), t);
    return false;
  }
  if (lm_type_elements(e->m, t) < LM_ELEMENTS_MAX)
    return true;
  lm_buf b = {0};
  lm_type_print(e->m, t, &b);
  sizes_note(e, EL_ERR(e, at, E05A, b.p), t);
  lm_buf_free(&b);
  return false;
}

lm_type el_ir_type(lm_elab *e, el_kind kind, const el_axes *axes) {
  lm_axis ir[LM_RANK];
  LM_ASSERT(axes->n <= LM_RANK);
  for (uint32_t i = 0; i < axes->n; i++)
    ir[i] = el_axis_ir(e, axes->v[i]);
  return lm_type_make(el_dtype(e, kind), ir, (int)axes->n);
}
