// elab_prim.c - the primitives of the language, by name. Arguments are syntax, since names may be axes.
#include "dsl/elab.h"
#include <math.h>
#include <string.h>

typedef struct { lm_elab *e; const ast_expr *x; } call;
typedef el_val (*primitive)(call c);

// ---- arguments
static const ast_arg *positional(call c, uint32_t i) {
  for (uint32_t k = 0; k < c.x->n_args; k++)
    if (c.x->args[k].kind != ARG_NAMED && i-- == 0) return &c.x->args[k];
  return NULL;
}

static const ast_arg *named(call c, const char *name) {
  for (uint32_t k = 0; k < c.x->n_args; k++)
    if (c.x->args[k].kind == ARG_NAMED && strcmp(c.x->args[k].name, name) == 0) return &c.x->args[k];
  return NULL;
}

static el_val value(call c, uint32_t i) {
  const ast_arg *a = positional(c, i);
  if (a && a->kind == ARG_POS) return el_eval(c.e, a->expr);
  el_err(c.e, a ? a->loc : c.x->loc, "E050", "%s: argument %u should be a value", c.x->a->text, i + 1);
  return el_error();
}

static el_val tensor(call c, uint32_t i) {
  el_val v = value(c, i);
  return v.k == V_ERROR ? v : el_as_tensor(c.e, &v, positional(c, i)->loc);
}

static lm_loc place(call c, uint32_t i) {
  const ast_arg *a = positional(c, i);
  return a ? (a->kind == ARG_POS ? a->expr->loc : a->loc) : c.x->loc;
}

// `src -> dst` at position i, reported when it is something else
static const ast_arg *arrow(call c, uint32_t i, const char *form) {
  const ast_arg *a = positional(c, i);
  if (a && a->kind == ARG_ARROW) return a;
  lm_diag *d = el_err(c.e, a ? a->loc : c.x->loc, "E051", "%s takes `%s`", c.x->a->text, form);
  (void)d;
  return NULL;
}

static bool axes_of(call c, const ast_expr *x, el_axes *out) { return el_axis_list(c.e, x, out); }

static bool one_axis(call c, const ast_expr *x, el_axis **out) {
  el_axes s = {0};
  if (!el_axis_list(c.e, x, &s)) return false;
  if (s.n != 1) return el_err(c.e, x->loc, "E040", "expected one axis, got %u", s.n), false;
  *out = s.v[0];
  return true;
}

static bool lacks(call c, const el_val *x, el_axis *a, lm_loc at) {
  if (el_axes_has(&x->axes, a)) return false;
  lm_diag *d = el_err(c.e, at, "E031", "axis mismatch in %s", c.x->a->text);
  lm_diag_label(c.e->c, d, "%s has no axis '%s'", el_show(c.e, x), a->name);
  el_note_value(c.e, d, x);
  return true;
}

static bool floating(call c, const el_val *x, lm_loc at) {
  if (x->kind == K_REAL || x->kind == K_F32 || x->kind == K_NUM) return true;
  lm_diag *d = el_err(c.e, at, "E052", "%s takes a floating type, got %s", c.x->a->text, el_show(c.e, x));
  el_note_value(c.e, d, x);
  lm_diag_help(c.e->c, d, "cast it: f32(…)");
  return false;
}

// A result whose axes are in `axes`' order, whatever order the operation gave.
static el_val result(call c, el_kind kind, const el_axes *axes, lm_value *v) {
  if (v) {
    lm_type want = el_ir_type(c.e, kind, axes);
    if (!lm_type_equal(want, v->type)) v = lm_emit_permute(&c.e->b, v, want.axis, want.rank);
  }
  return el_tensor(kind, axes, v);
}

// A name on the right of an arrow: a known axis (no size given), or a new one.
static el_axis *new_or_known(call c, lm_sym name, lm_size size, lm_loc at) {
  el_axis *known = el_axis_lookup(c.e, name);
  if (!known) {
    known = el_axis_new(c.e, name, size, 0);
    el_axis_bind_name(c.e, name, known);
  } else if (!lm_size_equal(known->size, size)) {
    el_val have = el_sized(known->size), want = el_sized(size);
    el_err(c.e, at, "E053", "axis '%s' is %s here, not %s", name, el_show(c.e, &have), el_show(c.e, &want));
    return NULL;
  }
  return known;
}

// ---- casts and elementwise
static el_val cast_to(call c, el_kind kind) {
  el_val v = value(c, 0);
  if (v.k == V_ERROR) return v;
  if (v.k == V_NUM && kind != K_BOOL) return el_adapt(c.e, &v, kind, place(c, 0));
  v = el_as_tensor(c.e, &v, place(c, 0));
  if (v.k == V_ERROR) return v;
  lm_value *r = v.v ? lm_emit_cast(&c.e->b, v.v, el_dtype(c.e, kind)) : NULL;
  return el_tensor(kind, &v.axes, r);
}
static el_val p_f32(call c) { return cast_to(c, K_F32); }
static el_val p_real(call c) { return cast_to(c, c.e->frame->real); }
static el_val p_int(call c) { return cast_to(c, K_INT); }
static el_val p_bool(call c) { return cast_to(c, K_BOOL); }

static el_val unary(call c, lm_opcode op, double (*f)(double)) {
  el_val v = value(c, 0);
  double x;
  if (v.k == V_AXES && v.axes.n == 1) v = el_sized(v.axes.v[0]->size);
  if (v.k == V_NUM) {
    if (!el_number_value(&v, &x)) return el_unknown_number();
    double r = f(x);
    if (!isfinite(r)) return el_err(c.e, place(c, 0), "E033", "%s(%g) is not a finite number", c.x->a->text, x), el_error();
    return el_number(c.e, r);
  }
  v = el_as_tensor(c.e, &v, place(c, 0));
  if (v.k == V_ERROR || !floating(c, &v, place(c, 0))) return el_error();
  return el_tensor(v.kind, &v.axes, v.v ? lm_emit1(&c.e->b, op, v.v) : NULL);
}
static double reciprocal_root(double x) { return 1 / sqrt(x); }
static double same(double x) { return x; }
static el_val p_exp(call c) { return unary(c, LM_OP_EXP, exp); }
static el_val p_log(call c) { return unary(c, LM_OP_LOG, log); }
static el_val p_sqrt(call c) { return unary(c, LM_OP_SQRT, sqrt); }
static el_val p_rsqrt(call c) { return unary(c, LM_OP_RSQRT, reciprocal_root); }
static el_val p_sin(call c) { return unary(c, LM_OP_SIN, sin); }
static el_val p_cos(call c) { return unary(c, LM_OP_COS, cos); }
static el_val p_tanh(call c) { return unary(c, LM_OP_TANH, tanh); }
static el_val p_erf(call c) { return unary(c, LM_OP_ERF, erf); }
static el_val p_stop_grad(call c) { return unary(c, LM_OP_STOP, same); }

static el_val p_not(call c) {
  el_val v = value(c, 0);
  if (v.k == V_BOOL) return el_boolean(v.num == 0, v.known);
  if (v.k == V_ERROR) return v;
  if (v.k != V_TENSOR || v.kind != K_BOOL) return el_err(c.e, place(c, 0), "E037", "not takes a bool tensor, got %s", el_show(c.e, &v)), el_error();
  return el_tensor(K_BOOL, &v.axes, v.v ? lm_emit1(&c.e->b, LM_OP_NOT, v.v) : NULL);
}

static el_val p_idiv(call c) {
  el_val x = value(c, 0), y = value(c, 1);
  if (x.k == V_ERROR || y.k == V_ERROR) return el_error();
  if (x.k == V_NUM && y.k == V_NUM) {
    if (!x.known || !y.known) return el_unknown_number();
    if (y.num == 0) return el_err(c.e, place(c, 1), "E033", "idiv by zero"), el_error();
    return el_whole(c.e, (int64_t)floor(x.num / y.num));
  }
  x = el_adapt(c.e, &x, K_INT, place(c, 0)), y = el_adapt(c.e, &y, K_INT, place(c, 1));
  if (x.k != V_TENSOR || y.k != V_TENSOR) return el_error();
  bool right = el_axes_subset(&y.axes, &x.axes);
  if (x.kind != K_INT || y.kind != K_INT || (!right && !el_axes_subset(&x.axes, &y.axes)))
    return el_err(c.e, c.x->loc, "E032", "idiv of %s and %s", el_show(c.e, &x), el_show(c.e, &y)), el_error();
  return el_tensor(K_INT, right ? &x.axes : &y.axes, x.v ? lm_emit2(&c.e->b, LM_OP_IDIV, x.v, y.v) : NULL);
}

static el_val p_select(call c) {
  el_val k = value(c, 0), x = value(c, 1), y = value(c, 2);
  if (k.k == V_ERROR || x.k == V_ERROR || y.k == V_ERROR) return el_error();
  k = el_as_tensor(c.e, &k, place(c, 0));
  bool xn = x.k != V_TENSOR || x.kind == K_NUM, yn = y.k != V_TENSOR || y.kind == K_NUM;
  if (x.k == V_NUM || x.k == V_TENSOR) x = el_adapt(c.e, &x, xn && !yn ? y.kind : K_NUM, place(c, 1));
  if (y.k == V_NUM || y.k == V_TENSOR) y = el_adapt(c.e, &y, x.k == V_TENSOR ? x.kind : K_NUM, place(c, 2));
  x = el_as_tensor(c.e, &x, place(c, 1)), y = el_as_tensor(c.e, &y, place(c, 2));
  if (k.k == V_ERROR || x.k == V_ERROR || y.k == V_ERROR) return el_error();
  if (k.kind != K_BOOL || x.kind != y.kind)
    return el_err(c.e, c.x->loc, "E036", "select(%s, %s, %s): takes a bool and two of one type", el_show(c.e, &k), el_show(c.e, &x), el_show(c.e, &y)), el_error();
  const el_axes *both = el_axes_subset(&y.axes, &x.axes) ? &x.axes : &y.axes;
  const el_axes *all = el_axes_subset(&k.axes, both) ? both : &k.axes;
  if (!el_axes_subset(&x.axes, all) || !el_axes_subset(&y.axes, all) || !el_axes_subset(&x.axes, both)) {
    lm_diag *d = el_err(c.e, c.x->loc, "E032", "select of %s, %s, %s: none has all axes of the others", el_show(c.e, &k), el_show(c.e, &x), el_show(c.e, &y));
    el_note_value(c.e, d, &k);
    return el_error();
  }
  return result(c, x.kind, all, c.e->m ? lm_emit_select(&c.e->b, k.v, x.v, y.v) : NULL);
}

// ---- made from nothing
static el_val p_iota(call c) {
  el_axis *a;
  if (!positional(c, 0) || positional(c, 0)->kind != ARG_POS || !one_axis(c, positional(c, 0)->expr, &a)) return el_error();
  el_axes axes = {0};
  el_axes_push(c.e, &axes, a);
  lm_value *v = NULL;
  if (c.e->m) {
    lm_type t = el_ir_type(c.e, K_INT, &axes);
    v = lm_emit_cast(&c.e->b, lm_emit(&c.e->b, LM_OP_IOTA, NULL, 0, NULL, &t), LM_F64);
  }
  return el_tensor(K_NUM, &axes, v);
}

// Uniform numbers; the site is the place in the source and the instance, so that neither the order of calls nor what
// stands around it matters.
static lm_value *random_numbers(call c, const el_axes *axes) {
  lm_elab *e = c.e;
  if (!e->m) return NULL;
  if (e->in_library || !e->step) e->library_failed = true;
  if (!e->step) return lm_emit_const(&e->b, el_ir_type(e, K_F32, axes), 0.5);
  const char *path = e->frame->self ? e->frame->self->inst->path : "";
  uint64_t site = lm_hash(path, strlen(path), (uint64_t)c.x->loc.line << 20 | c.x->loc.col);
  for (el_frame *f = e->frame; f; f = f->up)
    site = lm_hash(&(uint64_t[]){(uint64_t)f->called_at.line << 20 | f->called_at.col}[0], 8, site);
  lm_attr attr = {.imm = {(int64_t)e->seed, (int64_t)(site >> 33)}, .n_imm = 2};
  lm_value *zero = e->layer ? e->layer : lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
  lm_type t = el_ir_type(e, K_F32, axes);
  return lm_emit(&e->b, LM_OP_RNG, (lm_value *[]){e->step, e->row, zero}, 3, &attr, &t);
}

static el_val p_dropout(call c) {
  el_val x = tensor(c, 0), p = value(c, 1);
  if (x.k == V_ERROR || p.k == V_ERROR) return el_error();
  if (p.k != V_NUM || (p.known && (p.num < 0 || p.num >= 1)))
    return el_err(c.e, place(c, 1), "E054", "dropout takes a rate known at compile time, from 0 to below 1; got %s", el_show(c.e, &p)), el_error();
  if (!floating(c, &x, place(c, 0))) return el_error();
  if (p.num == 0 || c.e->mode != EL_TRAIN || !c.e->m) return x;
  lm_builder *b = &c.e->b;
  lm_type real = lm_type_make((lm_dtype)x.v->type.dtype, NULL, 0), f32 = lm_type_make(LM_F32, NULL, 0);
  lm_value *keep = lm_emit2(b, LM_OP_GE, random_numbers(c, &x.axes), lm_emit_const(b, f32, p.num));
  lm_value *scaled = lm_emit2(b, LM_OP_MUL, x.v, lm_emit_const(b, real, 1 / (1 - p.num)));
  return el_tensor(x.kind, &x.axes, lm_emit_select(b, keep, scaled, lm_emit_const(b, real, 0)));
}

static el_val p_rng(call c) {
  el_axes axes = {0};
  for (uint32_t i = 0; positional(c, i); i++)
    if (positional(c, i)->kind != ARG_POS || !axes_of(c, positional(c, i)->expr, &axes)) return el_error();
  return el_tensor(K_F32, &axes, random_numbers(c, &axes));
}

// ---- shape
static el_val p_expand(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *before = named(c, "before");
  el_axis *anchor = NULL;
  if (x.k == V_ERROR || (before && !one_axis(c, before->expr, &anchor))) return el_error();
  if (anchor && lacks(c, &x, anchor, before->loc)) return el_error();
  el_axes axes = {0}, fresh = {0};
  bool seen = false;
  for (uint32_t k = 0; k < c.x->n_args; k++) {
    const ast_arg *a = &c.x->args[k];
    if (a == before || (a->kind == ARG_POS && !seen)) { seen |= a != before; continue; }
    if (a->kind == ARG_NAMED) {
      el_val n = el_eval(c.e, a->expr);
      if (n.k == V_ERROR) return n;
      if (n.k != V_NUM || (!n.has_size && n.known)) return el_err(c.e, a->loc, "E055", "the size of '%s' should be a whole number, got %s", a->name, el_show(c.e, &n)), el_error();
      el_axis *axis = el_axis_new(c.e, a->name, n.has_size ? n.size : lm_size_dim(c.e->a, a->name), 0);
      int64_t whole;
      if (c.e->m && (!lm_size_whole(axis->size, &whole) || whole <= 0)) return el_err(c.e, a->loc, "E055", "axis '%s' of size %s", a->name, el_show(c.e, &n)), el_error();
      el_axis_bind_name(c.e, a->name, axis);
      el_axes_push(c.e, &fresh, axis);
    } else if (a->kind != ARG_POS || !axes_of(c, a->expr, &fresh)) {
      return el_error();
    }
  }
  for (uint32_t i = 0; i < fresh.n; i++)
    if (el_axes_has(&x.axes, fresh.v[i]) || el_axes_find(&fresh, fresh.v[i]) < (int)i)
      return el_err(c.e, c.x->loc, "E056", "%s has axis '%s' already", el_show(c.e, &x), fresh.v[i]->name), el_error();
  for (uint32_t i = 0; i <= x.axes.n; i++) {
    bool here = anchor ? i < x.axes.n && x.axes.v[i] == anchor : i == x.axes.n;
    for (uint32_t k = 0; here && k < fresh.n; k++) el_axes_push(c.e, &axes, fresh.v[k]);
    if (i < x.axes.n) el_axes_push(c.e, &axes, x.axes.v[i]);
  }
  if (axes.n > LM_RANK) return el_err(c.e, c.x->loc, "E057", "more than %d axes", LM_RANK), el_error();
  return el_tensor(x.kind, &axes, x.v ? lm_emit_expand(&c.e->b, x.v, el_ir_type(c.e, x.kind, &axes)) : NULL);
}

// Right-hand side of view and split: known axes, `name = size`, and at most one new name whose size the others leave.
static bool parts(call c, const ast_expr *x, lm_size total, bool product, el_axes *out) {
  lm_elab *e = c.e;
  ast_arg single = {.kind = ARG_POS, .expr = (ast_expr *)x, .loc = x->loc};
  bool many = x->kind == EX_TUPLE || x->kind == EX_LIST;
  const ast_arg *args = many ? x->args : &single;
  uint32_t n = many ? x->n_args : 1;
  int open = -1;
  lm_size rest = total;
  el_axis *found[LM_RANK];
  if (n > LM_RANK || n == 0) return el_err(e, x->loc, "E057", "expected 1 to %d axes", LM_RANK), false;
  for (uint32_t i = 0; i < n; i++) {
    if (args[i].kind == ARG_NAMED) {
      el_val s = el_eval(e, args[i].expr);
      if (s.k == V_ERROR) return false;
      if (s.k != V_NUM || !s.has_size) return s.k == V_NUM && !s.known ? false : (el_err(e, args[i].loc, "E055", "the size of '%s' should be a whole number, got %s", args[i].name, el_show(e, &s)), false);
      found[i] = el_axis_new(e, args[i].name, s.size, 0);
      el_axis_bind_name(e, args[i].name, found[i]);
    } else if (args[i].kind == ARG_POS && args[i].expr->kind == EX_NAME) {
      found[i] = el_axis_lookup(e, args[i].expr->text);
      if (!found[i] && open >= 0) return el_err(e, args[i].loc, "E058", "two axes of unknown size; give one as `%s = size`", args[i].expr->text), false;
      if (!found[i]) { open = (int)i; continue; }
    } else {
      return el_err(e, args[i].loc, "E040", "expected the name of an axis"), false;
    }
    bool ok = product ? lm_size_div(e->a, rest, found[i]->size, &rest) : lm_size_add(e->a, rest, found[i]->size, -1, &rest);
    if (!ok) return false;                              // undecided while only checking
  }
  int64_t whole = 1;
  bool decided = lm_size_is_const(rest);
  bool fits = lm_size_whole(rest, &whole) && (open >= 0 ? whole > 0 : whole == (product ? 1 : 0));
  if (decided && !fits) {
    el_val t = el_sized(total);
    lm_diag *d = el_err(e, x->loc, "E059", "these axes do not make %s", el_show(e, &t));
    for (uint32_t i = 0; i < n && i < 3; i++)
      if ((int)i != open) lm_diag_note(e->c, d, (lm_loc){0}, "%s is %s", found[i]->name, el_show(e, &(el_val[]){el_sized(found[i]->size)}[0]));
    return false;
  }
  if (open >= 0) {
    lm_sym name = args[open].expr->text;
    found[open] = el_axis_new(e, name, rest, 0);
    el_axis_bind_name(e, name, found[open]);
  }
  for (uint32_t i = 0; i < n; i++) el_axes_push(e, out, found[i]);
  return true;
}

static bool distinct(call c, const el_axes *axes) {
  for (uint32_t i = 0; i < axes->n; i++)
    if (el_axes_find(axes, axes->v[i]) < (int)i) return el_err(c.e, c.x->loc, "E056", "axis '%s' twice in one tensor", axes->v[i]->name), false;
  return axes->n <= LM_RANK || (el_err(c.e, c.x->loc, "E057", "more than %d axes", LM_RANK), false);
}

// Replaces the run of axes at `at` by `now`.
static el_axes spliced(call c, const el_axes *s, uint32_t at, uint32_t n, const el_axes *now) {
  el_axes out = {0};
  for (uint32_t i = 0; i < at; i++) el_axes_push(c.e, &out, s->v[i]);
  for (uint32_t i = 0; i < now->n; i++) el_axes_push(c.e, &out, now->v[i]);
  for (uint32_t i = at + n; i < s->n; i++) el_axes_push(c.e, &out, s->v[i]);
  return out;
}

static void ir_axes(call c, const el_axes *s, lm_axis *out, uint8_t *n) {
  for (uint32_t i = 0; i < s->n && *n < LM_RANK; i++) out[(*n)++] = el_axis_ir(c.e, s->v[i]);
}

static el_val p_view(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *a = arrow(c, 1, "e -> (a, b)");
  el_axes src = {0}, dst = {0};
  if (x.k == V_ERROR || !a || !axes_of(c, a->expr, &src) || src.n == 0) return el_error();
  lm_size total = lm_size_number(c.e->a, 1);
  for (uint32_t i = 0; i < src.n; i++) {
    if (lacks(c, &x, src.v[i], a->loc)) return el_error();
    if (!lm_size_mul(c.e->a, total, src.v[i]->size, &total)) return el_error();
  }
  int at = el_axes_find(&x.axes, src.v[0]);
  for (uint32_t i = 0; i < src.n; i++)
    if (at + i >= x.axes.n || x.axes.v[at + i] != src.v[i]) {
      lm_diag *d = el_err(c.e, a->loc, "E060", "%s do not stand side by side in %s", el_show_axes(c.e, &src), el_show(c.e, &x));
      lm_diag_help(c.e->c, d, "permute first");
      return el_error();
    }
  if (!parts(c, a->to, total, true, &dst)) return el_error();
  el_axes axes = spliced(c, &x.axes, (uint32_t)at, src.n, &dst);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {0};
  if (c.e->m) ir_axes(c, &src, attr.axes, &attr.n_axes), ir_axes(c, &dst, attr.to, &attr.n_to);
  return el_tensor(x.kind, &axes, x.v ? lm_emit(&c.e->b, LM_OP_VIEW, &x.v, 1, &attr, NULL) : NULL);
}

static el_val p_permute(call c) {
  el_val x = tensor(c, 0);
  el_axes order = {0};
  if (x.k == V_ERROR || !positional(c, 1) || positional(c, 1)->kind != ARG_POS || !axes_of(c, positional(c, 1)->expr, &order)) return el_error();
  if (order.n != x.axes.n || !el_axes_subset(&order, &x.axes) || !el_axes_subset(&x.axes, &order))
    return el_err(c.e, place(c, 1), "E031", "%s is no order of %s", el_show_axes(c.e, &order), el_show(c.e, &x)), el_error();
  lm_type t = x.v ? el_ir_type(c.e, x.kind, &order) : (lm_type){0};
  return el_tensor(x.kind, &order, x.v ? lm_emit_permute(&c.e->b, x.v, t.axis, t.rank) : NULL);
}

static el_val p_rename(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *a = arrow(c, 1, "a -> b");
  el_axis *from, *to;
  if (x.k == V_ERROR || !a || !one_axis(c, a->expr, &from) || lacks(c, &x, from, a->loc)) return el_error();
  if (a->to->kind != EX_NAME) return el_err(c.e, a->to->loc, "E040", "expected the name of an axis"), el_error();
  if (!(to = new_or_known(c, a->to->text, from->size, a->to->loc))) return el_error();
  el_axes f = {0}, t = {0}, now = x.axes;
  el_axes_push(c.e, &f, from), el_axes_push(c.e, &t, to);
  now = spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, from), 1, &t);
  return distinct(c, &now) ? el_rename(c.e, &x, &f, &t) : el_error();
}

static bool whole_arg(call c, uint32_t i, int64_t *out) {
  if (!positional(c, i)) return true;
  el_val v = value(c, i);
  if (v.k == V_NUM && v.has_size && lm_size_whole(v.size, out)) return true;
  if (v.k != V_ERROR && !(v.k == V_NUM && !v.known)) el_err(c.e, place(c, i), "E055", "expected a whole number, got %s", el_show(c.e, &v));
  return false;
}

static el_val emit_slice(call c, const el_val *x, el_axis *from, el_axis *to, int64_t first, int64_t step) {
  el_axes now = {0};
  if (to) el_axes_push(c.e, &now, to);
  el_axes axes = spliced(c, &x->axes, (uint32_t)el_axes_find(&x->axes, from), 1, &now);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {.imm = {first, step}, .n_imm = 2, .n_axes = 1};
  if (x->v) {
    attr.axes[0] = el_axis_ir(c.e, from);
    if (to) attr.to[0] = el_axis_ir(c.e, to), attr.n_to = 1;
  }
  return el_tensor(x->kind, &axes, x->v ? lm_emit(&c.e->b, LM_OP_SLICE, &x->v, 1, &attr, NULL) : NULL);
}

// The name on the right of slice and pad, alone or as (a = n).
static bool target(call c, const ast_expr *x, lm_sym *name, const ast_expr **size) {
  *size = NULL;
  if (x->kind == EX_NAME) return *name = x->text, true;
  if (x->kind == EX_TUPLE && x->n_args == 1 && x->args[0].kind == ARG_NAMED) return *name = x->args[0].name, *size = x->args[0].expr, true;
  return el_err(c.e, x->loc, "E040", "expected the name of an axis"), false;
}

static el_val p_slice(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *a = arrow(c, 1, "e -> a");
  el_axis *from, *to;
  lm_sym name;
  const ast_expr *given;
  int64_t first = 0, step = 1, size = 0, n = 0;
  if (x.k == V_ERROR || !a || !one_axis(c, a->expr, &from) || lacks(c, &x, from, a->loc) || !target(c, a->to, &name, &given)) return el_error();
  if (!whole_arg(c, 2, &first) || !whole_arg(c, 3, &step) || !lm_size_whole(from->size, &n)) return el_error();
  to = given ? NULL : el_axis_lookup(c.e, name);
  if (given) {
    el_val s = el_eval(c.e, given);
    if (s.k != V_NUM || !s.has_size || !lm_size_whole(s.size, &size)) return s.k == V_ERROR ? s : (el_err(c.e, given->loc, "E055", "expected a whole number, got %s", el_show(c.e, &s)), el_error());
  } else if (to) {
    if (!lm_size_whole(to->size, &size)) return el_error();
  } else {
    size = step > 0 && first >= 0 && first < n ? (n - first + step - 1) / step : 0;
  }
  if (step <= 0 || first < 0 || size <= 0 || size > n || first + (size - 1) * step >= n)
    return el_err(c.e, a->loc, "E061", "places %lld, %lld, … (%lld of them) are not all inside axis '%s' of size %lld", (long long)first, (long long)(first + step), (long long)size, from->name, (long long)n), el_error();
  if (!to) {
    to = el_axis_new(c.e, name, lm_size_number(c.e->a, size), 0);
    el_axis_bind_name(c.e, name, to);
  }
  return emit_slice(c, &x, from, to, first, step);
}

static el_val p_pad(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *a = arrow(c, 1, "e -> a");
  el_axis *from, *to;
  lm_sym name;
  const ast_expr *given;
  int64_t before = 0, after = 0;
  if (x.k == V_ERROR || !a || !one_axis(c, a->expr, &from) || lacks(c, &x, from, a->loc) || !target(c, a->to, &name, &given)) return el_error();
  if (!whole_arg(c, 2, &before) || !whole_arg(c, 3, &after)) return el_error();
  lm_size size;
  if (before < 0 || after < 0 || !lm_size_add(c.e->a, from->size, lm_size_number(c.e->a, before + after), 1, &size))
    return el_err(c.e, c.x->loc, "E061", "pad takes how many zeros come before and after"), el_error();
  if (!(to = new_or_known(c, name, size, a->to->loc))) return el_error();
  el_axes now = {0};
  el_axes_push(c.e, &now, to);
  el_axes axes = spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, from), 1, &now);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {.imm = {before, 1}, .n_imm = 2, .n_axes = 1, .n_to = 1};
  if (x.v) attr.axes[0] = el_axis_ir(c.e, from), attr.to[0] = el_axis_ir(c.e, to);
  return el_tensor(x.kind, &axes, x.v ? lm_emit(&c.e->b, LM_OP_PAD, &x.v, 1, &attr, NULL) : NULL);
}

static el_val p_split(call c) {
  el_val x = tensor(c, 0);
  const ast_arg *a = arrow(c, 1, "e -> (a, b)");
  el_axis *from;
  el_axes to = {0};
  if (x.k == V_ERROR || !a || !one_axis(c, a->expr, &from) || lacks(c, &x, from, a->loc) || !parts(c, a->to, from->size, false, &to)) return el_error();
  el_val *items = LM_NEW_N(c.e->a, el_val, to.n);
  int64_t first = 0, size = 0;
  for (uint32_t i = 0; i < to.n; i++, first += size) {
    size = 0;
    lm_size_whole(to.v[i]->size, &size);
    items[i] = emit_slice(c, &x, from, to.v[i], first, 1);
  }
  return el_tuple(c.e, items, to.n);
}

static el_val p_unstack(call c) {
  el_val x = tensor(c, 0);
  el_axis *from;
  int64_t n;
  if (x.k == V_ERROR || !positional(c, 1) || positional(c, 1)->kind != ARG_POS || !one_axis(c, positional(c, 1)->expr, &from) || lacks(c, &x, from, place(c, 1))) return el_error();
  if (!lm_size_whole(from->size, &n)) return el_error();
  if (n > 1024) return el_err(c.e, place(c, 1), "E062", "unstack of %lld parts", (long long)n), el_error();
  el_val *items = LM_NEW_N(c.e->a, el_val, n);
  for (int64_t i = 0; i < n; i++) items[i] = emit_slice(c, &x, from, NULL, i, 1);
  return el_tuple(c.e, items, (uint32_t)n);
}

// The tensors of a tuple argument, brought to one kind; 0: reported.
static uint32_t tensors(call c, el_val **out) {
  el_val v = value(c, 0);
  if (v.k == V_ERROR) return 0;
  if (v.k != V_TUPLE || v.n == 0 || v.n > LM_RANK) return el_err(c.e, place(c, 0), "E063", "%s takes a tuple of 1 to %d tensors, got %s", c.x->a->text, LM_RANK, el_show(c.e, &v)), 0;
  el_kind kind = K_NUM;
  for (uint32_t i = 0; i < v.n; i++)
    if (v.items[i].k == V_TENSOR && v.items[i].kind != K_NUM) kind = v.items[i].kind;
  for (uint32_t i = 0; i < v.n; i++) {
    v.items[i] = el_adapt(c.e, &v.items[i], kind == K_NUM ? K_F32 : kind, place(c, 0));
    if (v.items[i].k == V_ERROR) return 0;
    if (v.items[i].kind != v.items[0].kind) return el_err(c.e, place(c, 0), "E036", "%s of %s: types are never promoted", c.x->a->text, el_show(c.e, &v)), 0;
  }
  *out = v.items;
  return v.n;
}

static el_val p_stack(call c) {
  el_val *xs = NULL;
  uint32_t n = tensors(c, &xs);
  const ast_arg *a = positional(c, 1), *before = named(c, "before");
  el_axis *axis, *anchor = NULL;
  if (!n) return el_error();
  if (!a || a->kind != ARG_POS || a->expr->kind != EX_NAME) return el_err(c.e, c.x->loc, "E040", "stack takes the name of the new axis"), el_error();
  if (!(axis = new_or_known(c, a->expr->text, lm_size_number(c.e->a, n), a->loc)) || (before && !one_axis(c, before->expr, &anchor))) return el_error();
  const el_axes *base = &xs[0].axes;
  for (uint32_t i = 1; i < n; i++)
    if (xs[i].axes.n != base->n || !el_axes_subset(&xs[i].axes, base)) return el_err(c.e, place(c, 0), "E031", "stack of %s and %s", el_show(c.e, &xs[0]), el_show(c.e, &xs[i])), el_error();
  if (anchor && lacks(c, &xs[0], anchor, before->loc)) return el_error();
  uint32_t at = anchor ? (uint32_t)el_axes_find(base, anchor) : base->n;
  el_axes now = {0}, unit = {0};
  el_axes_push(c.e, &now, axis);
  el_axes axes = spliced(c, base, at, 0, &now);
  if (!distinct(c, &axes)) return el_error();
  if (!c.e->m) return el_tensor(xs[0].kind, &axes, NULL);
  el_axis *one = el_axis_new(c.e, LM_SYM(c.e->c, "one"), lm_size_number(c.e->a, 1), 0);
  el_axes_push(c.e, &unit, one);
  el_axes wide = spliced(c, base, at, 0, &unit);
  lm_attr attr = {.n_to = 1};
  attr.to[0] = el_axis_ir(c.e, axis);
  lm_value *in[LM_RANK];
  for (uint32_t i = 0; i < n; i++) {
    el_val p = result(c, xs[i].kind, base, xs[i].v);
    in[i] = lm_emit_expand(&c.e->b, p.v, el_ir_type(c.e, p.kind, &wide));
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, one);
  }
  return el_tensor(xs[0].kind, &axes, lm_emit(&c.e->b, LM_OP_CONCAT, in, n, &attr, NULL));
}

static el_val p_concat(call c) {
  el_val *xs = NULL;
  uint32_t n = tensors(c, &xs);
  const ast_arg *a = n ? arrow(c, 1, "(a, b) -> e") : NULL;
  el_axes src = {0}, now = {0};
  if (!a || !axes_of(c, a->expr, &src)) return el_error();
  if (src.n != n || a->to->kind != EX_NAME) return el_err(c.e, a->loc, "E064", "concat of %u tensors takes %u axes -> one", n, n), el_error();
  lm_size total = {0};
  for (uint32_t i = 0; i < n; i++) {
    if (lacks(c, &xs[i], src.v[i], a->loc)) return el_error();
    if (!lm_size_add(c.e->a, total, src.v[i]->size, 1, &total)) return el_error();
  }
  el_axis *axis = new_or_known(c, a->to->text, total, a->to->loc);
  if (!axis) return el_error();
  uint32_t at = (uint32_t)el_axes_find(&xs[0].axes, src.v[0]);
  el_axes_push(c.e, &now, axis);
  el_axes axes = spliced(c, &xs[0].axes, at, 1, &now);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {.n_to = 1};
  lm_value *in[LM_RANK];
  if (c.e->m) attr.to[0] = el_axis_ir(c.e, axis);
  for (uint32_t i = 0; i < n; i++) {
    el_axes own = {0};
    el_axes_push(c.e, &own, src.v[i]);
    el_axes want = spliced(c, &xs[0].axes, at, 1, &own);
    if (want.n != xs[i].axes.n || !el_axes_subset(&want, &xs[i].axes)) return el_err(c.e, place(c, 0), "E031", "concat of %s and %s", el_show(c.e, &xs[0]), el_show(c.e, &xs[i])), el_error();
    if (!c.e->m) continue;
    in[i] = result(c, xs[i].kind, &want, xs[i].v).v;
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, src.v[i]);
  }
  return el_tensor(xs[0].kind, &axes, c.e->m ? lm_emit(&c.e->b, LM_OP_CONCAT, in, n, &attr, NULL) : NULL);
}

// ---- reductions, products, tables
static el_val reduce(call c, lm_opcode op, bool mean) {
  el_val x = tensor(c, 0);
  const ast_arg *over = positional(c, 1);
  el_axes axes = {0};
  if (x.k == V_ERROR) return x;
  if (over && (over->kind != ARG_POS || !axes_of(c, over->expr, &axes))) return el_error();
  if (!over) axes = x.axes;
  for (uint32_t i = 0; i < axes.n; i++)
    if (lacks(c, &x, axes.v[i], place(c, 1))) return el_error();
  if (x.kind == K_BOOL || (mean && x.kind == K_INT)) return el_err(c.e, place(c, 0), "E052", "%s of %s", c.x->a->text, el_show(c.e, &x)), el_error();
  el_axes left = el_axes_minus(c.e, &x.axes, &axes);
  if (!x.v || !axes.n) return el_tensor(x.kind, &left, x.v);
  lm_type t = el_ir_type(c.e, x.kind, &axes), scalar = lm_type_make((lm_dtype)t.dtype, NULL, 0);
  lm_value *v = lm_emit_reduce(&c.e->b, op, x.v, t.axis, t.rank);
  if (mean) {
    bool dynamic = lm_type_dynamic(c.e->m, t);
    lm_value *n = dynamic ? lm_emit_reduce(&c.e->b, LM_OP_SUM, lm_emit_const(&c.e->b, t, 1), t.axis, t.rank)
                          : lm_emit_const(&c.e->b, scalar, (double)lm_type_elements(c.e->m, t));
    v = lm_emit2(&c.e->b, LM_OP_DIV, v, n);
  }
  return el_tensor(x.kind, &left, v);
}
static el_val p_sum(call c) { return reduce(c, LM_OP_SUM, false); }
static el_val p_max(call c) { return reduce(c, LM_OP_MAX, false); }
static el_val p_mean(call c) { return reduce(c, LM_OP_SUM, true); }

static el_val p_dot(call c) {
  el_val x = tensor(c, 0), w = tensor(c, 1);
  el_axes over = {0};
  if (x.k == V_ERROR || w.k == V_ERROR) return el_error();
  if (!positional(c, 2) || positional(c, 2)->kind != ARG_POS) return el_err(c.e, c.x->loc, "E050", "dot takes the axes to sum over: dot(x, w, d)"), el_error();
  const ast_expr *list = positional(c, 2)->expr;
  if (!axes_of(c, list, &over)) return el_error();
  for (uint32_t i = 0; i < over.n; i++) {
    const el_val *lacking = !el_axes_has(&x.axes, over.v[i]) ? &x : !el_axes_has(&w.axes, over.v[i]) ? &w : NULL;
    if (!lacking) continue;
    lm_diag *d = el_err(c.e, place(c, lacking == &x ? 0 : 1), "E031", "axis mismatch in dot");
    lm_diag_label(c.e->c, d, "%s has no axis '%s'", el_show(c.e, lacking), over.v[i]->name);
    el_note_value(c.e, d, &x);
    el_note_value(c.e, d, &w);
    return el_error();
  }
  if (x.kind == K_NUM && w.kind != K_NUM) x = el_adapt(c.e, &x, w.kind, place(c, 0));
  if (w.kind == K_NUM) w = el_adapt(c.e, &w, x.kind == K_NUM ? K_F32 : x.kind, place(c, 1));
  if (x.kind == K_NUM) x = el_adapt(c.e, &x, K_F32, place(c, 0));
  if (x.kind != w.kind || !floating(c, &x, place(c, 0))) {
    if (x.kind != w.kind) lm_diag_help(c.e->c, el_err(c.e, c.x->loc, "E036", "dot of %s and %s: types are never promoted", el_show(c.e, &x), el_show(c.e, &w)), "cast one: f32(…) or real(…)");
    return el_error();
  }
  el_axes axes = el_axes_minus(c.e, &x.axes, &over), own = el_axes_minus(c.e, &w.axes, &over);
  own = el_axes_minus(c.e, &own, &x.axes);
  for (uint32_t i = 0; i < own.n; i++) el_axes_push(c.e, &axes, own.v[i]);
  if (!distinct(c, &axes)) return el_error();
  lm_value *v = NULL;
  if (c.e->m) {
    lm_type t = el_ir_type(c.e, x.kind, &over);
    v = lm_emit_dot(&c.e->b, x.v, w.v, t.axis, t.rank);
  }
  return result(c, x.kind, &axes, v);
}

static el_val p_gather(call c) {
  el_val t = tensor(c, 0), i = tensor(c, 1);
  el_axis *v;
  if (t.k == V_ERROR || i.k == V_ERROR || !positional(c, 2) || positional(c, 2)->kind != ARG_POS || !one_axis(c, positional(c, 2)->expr, &v) || lacks(c, &t, v, place(c, 2))) return el_error();
  i = el_adapt(c.e, &i, K_INT, place(c, 1));
  if (i.k == V_ERROR || i.kind != K_INT) return i.k == V_ERROR ? i : (el_err(c.e, place(c, 1), "E052", "gather takes int indices, got %s", el_show(c.e, &i)), el_error());
  if (t.kind == K_NUM) t = el_adapt(c.e, &t, K_F32, place(c, 0));
  el_axes one = {0}, axes = i.axes;
  el_axes_push(c.e, &one, v);
  el_axes rest = el_axes_minus(c.e, &t.axes, &one), own = el_axes_minus(c.e, &rest, &i.axes);
  if (own.n != rest.n && own.n) {
    lm_diag *d = el_err(c.e, c.x->loc, "E065", "gather of %s at %s: they share some axes but not all of the table's", el_show(c.e, &t), el_show(c.e, &i));
    el_note_value(c.e, d, &t);
    return el_error();
  }
  for (uint32_t k = 0; k < own.n; k++) el_axes_push(c.e, &axes, own.v[k]);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {.n_axes = 1};
  if (c.e->m) attr.axes[0] = el_axis_ir(c.e, v);
  return result(c, t.kind, &axes, c.e->m ? lm_emit(&c.e->b, LM_OP_GATHER, (lm_value *[]){t.v, i.v}, 2, &attr, NULL) : NULL);
}

static el_val p_scatter_add(call c) {
  el_val x = tensor(c, 0), i = tensor(c, 1);
  el_axis *v;
  if (x.k == V_ERROR || i.k == V_ERROR || !positional(c, 2) || positional(c, 2)->kind != ARG_POS || !one_axis(c, positional(c, 2)->expr, &v)) return el_error();
  if (i.kind != K_INT || !el_axes_subset(&i.axes, &x.axes))
    return el_err(c.e, c.x->loc, "E065", "scatter_add of %s at %s: takes int indices whose axes are in the first", el_show(c.e, &x), el_show(c.e, &i)), el_error();
  el_axes axes = {0}, rest = el_axes_minus(c.e, &x.axes, &i.axes);
  el_axes_push(c.e, &axes, v);
  for (uint32_t k = 0; k < rest.n; k++) el_axes_push(c.e, &axes, rest.v[k]);
  if (!distinct(c, &axes)) return el_error();
  lm_attr attr = {.n_axes = 1};
  lm_type t = {0};
  if (c.e->m) attr.axes[0] = el_axis_ir(c.e, v), t = el_ir_type(c.e, x.kind, &axes);
  return el_tensor(x.kind, &axes, c.e->m ? lm_emit(&c.e->b, LM_OP_SCATTER, (lm_value *[]){x.v, i.v}, 2, &attr, &t) : NULL);
}

// ---- positions
static lm_value *append_to_cache(lm_elab *e, const el_val *x, el_axis *t, el_axis *s) {
  lm_attr attr = {.n_axes = 1, .n_to = 1, .n_imm = 0};
  lm_value *in[8];
  lm_axis axes[LM_RANK];
  int rank = 0;
  uint32_t n = 0;
  for (int k = 0; k < e->n_loops; k++) {
    lm_op *loop = e->loops[k].index->region->owner;
    axes[rank++] = loop->attr.axes[0];
    in[n++] = e->loops[k].index;
    attr.imm[attr.n_imm++] = 0, attr.imm[attr.n_imm++] = 1;
  }
  if (rank + (int)x->axes.n > LM_RANK) return NULL;
  for (uint32_t i = 0; i < x->axes.n; i++) axes[rank++] = el_axis_ir(e, x->axes.v[i] == t ? s : x->axes.v[i]);
  lm_type type = lm_type_make((lm_dtype)x->v->type.dtype, axes, rank);
  attr.sym = LM_SYM(e->c, lm_arena_printf(e->a, "cache.%u", e->n_caches++));
  lm_global *g = lm_global_find(e->m, attr.sym);
  if (!g) g = lm_global_add(e->m, LM_GLOBAL_CACHE, attr.sym, type, e->n_loops);
  LM_ASSERT(lm_type_equal(g->type, type));
  attr.axes[0] = el_axis_ir(e, t), attr.to[0] = el_axis_ir(e, s);
  in[n++] = e->at, in[n++] = x->v;
  return lm_emit(&e->b, LM_OP_APPEND, in, n, &attr, NULL);
}

el_val el_history(lm_elab *e, const el_val *v, el_axis *t, el_axis *s, lm_loc at) {
  if (v->k != V_TENSOR) {
    if (v->k != V_ERROR) el_err(e, at, "E066", "history takes tensors, got %s", el_show(e, v));
    return el_error();
  }
  if (!el_axes_has(&v->axes, t)) {
    lm_diag *d = el_err(e, at, "E031", "axis mismatch in history");
    lm_diag_label(e->c, d, "%s has no axis '%s'", el_show(e, v), t->name);
    return el_error();
  }
  el_val x = el_adapt(e, v, K_F32, at);
  el_axes axes = {0};
  for (uint32_t i = 0; i < x.axes.n; i++) el_axes_push(e, &axes, x.axes.v[i] == t ? s : x.axes.v[i]);
  if (!x.v) return el_tensor(x.kind, &axes, NULL);
  if (e->mode == EL_DECODE && el_axis_ir(e, t) == e->position) {
    lm_value *all = append_to_cache(e, &x, t, s);
    if (!all) return el_err(e, at, "E057", "more than %d axes", LM_RANK), el_error();
    return el_tensor(x.kind, &axes, all);
  }
  lm_attr attr = {.n_axes = 1, .n_to = 1};
  attr.axes[0] = el_axis_ir(e, t), attr.to[0] = el_axis_ir(e, s);
  return el_tensor(x.kind, &axes, lm_emit(&e->b, LM_OP_HISTORY, &x.v, 1, &attr, NULL));
}

static el_val p_history(call c) {
  lm_elab *e = c.e;
  el_val v = value(c, 0);
  const ast_arg *a = arrow(c, 1, "t -> s");
  el_axis *t;
  if (v.k == V_ERROR || !a || !one_axis(c, a->expr, &t)) return el_error();
  if (a->to->kind != EX_NAME) return el_err(e, a->to->loc, "E040", "expected the name of an axis"), el_error();
  if (e->in_library) e->library_failed = true;
  bool cached = e->m && e->mode == EL_DECODE && el_axis_ir(e, t) == e->position;
  lm_size size = cached ? lm_size_number(e->a, e->capacity) : t->size;
  el_axis *s = el_axis_lookup(e, a->to->text);
  if (s && (!lm_size_equal(s->size, size) || s->dyn != (cached ? e->history_dyn : t->dyn))) {
    el_err(e, a->to->loc, "E053", "axis '%s' has another size here", a->to->text);
    return el_error();
  }
  if (s == t) return el_err(e, a->to->loc, "E056", "history needs another name than '%s'", t->name), el_error();
  if (!s) {
    s = el_axis_new(e, a->to->text, size, cached ? e->history_dyn : t->dyn);
    el_axis_bind_name(e, a->to->text, s);
  }
  if (v.k != V_TUPLE) return el_history(e, &v, t, s, place(c, 0));
  el_val *items = LM_NEW_N(e->a, el_val, v.n + 1);
  for (uint32_t i = 0; i < v.n; i++) items[i] = el_history(e, &v.items[i], t, s, place(c, 0));
  return el_tuple(e, items, v.n);
}

static el_val p_later(call c) {
  el_err(c.e, c.x->loc, "E900", "'%s' is not available yet", c.x->a->text);
  return el_error();
}

static const struct { const char *name; primitive run; uint8_t least, most; } table[] = {
    {"f32", p_f32, 1, 1}, {"real", p_real, 1, 1}, {"int", p_int, 1, 1}, {"bool", p_bool, 1, 1},
    {"exp", p_exp, 1, 1}, {"log", p_log, 1, 1}, {"sqrt", p_sqrt, 1, 1}, {"rsqrt", p_rsqrt, 1, 1},
    {"sin", p_sin, 1, 1}, {"cos", p_cos, 1, 1}, {"tanh", p_tanh, 1, 1}, {"erf", p_erf, 1, 1},
    {"stop_grad", p_stop_grad, 1, 1}, {"not", p_not, 1, 1}, {"idiv", p_idiv, 2, 2}, {"select", p_select, 3, 3},
    {"iota", p_iota, 1, 1}, {"rng", p_rng, 1, 12}, {"dropout", p_dropout, 2, 2},
    {"expand", p_expand, 1, 13}, {"view", p_view, 2, 2}, {"permute", p_permute, 2, 2}, {"rename", p_rename, 2, 2},
    {"slice", p_slice, 2, 4}, {"pad", p_pad, 2, 4}, {"split", p_split, 2, 2}, {"concat", p_concat, 2, 2},
    {"stack", p_stack, 2, 2}, {"unstack", p_unstack, 2, 2},
    {"sum", p_sum, 1, 2}, {"max", p_max, 1, 2}, {"mean", p_mean, 1, 2}, {"dot", p_dot, 3, 3},
    {"gather", p_gather, 3, 3}, {"scatter_add", p_scatter_add, 3, 3}, {"history", p_history, 2, 2},
    {"top_k", p_later, 0, 99}, {"grouped_dot", p_later, 0, 99}, {"group_by", p_later, 0, 99},
    {"ungroup", p_later, 0, 99}, {"window", p_later, 0, 99}, {"qcast", p_later, 0, 99}, {"eval", p_later, 0, 99},
};

const char *const *el_primitive_names(int *n) {
  static const char *names[LM_COUNT(table)];
  for (size_t i = 0; i < LM_COUNT(table); i++) names[i] = table[i].name;
  *n = (int)LM_COUNT(table);
  return names;
}

el_val el_primitive(lm_elab *e, const ast_expr *x, bool *out_found) {
  *out_found = true;
  for (size_t i = 0; i < LM_COUNT(table); i++) {
    if (strcmp(table[i].name, x->a->text)) continue;
    uint32_t n = 0;
    for (uint32_t k = 0; k < x->n_args; k++) {
      n += x->args[k].kind != ARG_NAMED;
      bool known = x->args[k].kind != ARG_NAMED || strcmp(table[i].name, "expand") == 0 ||
                   (strcmp(table[i].name, "stack") == 0 && strcmp(x->args[k].name, "before") == 0);
      if (!known && table[i].run != p_later) return el_err(e, x->args[k].loc, "E050", "%s has no argument named '%s'", x->a->text, x->args[k].name), el_error();
    }
    if (n >= table[i].least && n <= table[i].most) {
      if (e->m) e->b.loc = x->loc;
      return table[i].run((call){e, x});
    }
    el_err(e, x->loc, "E050", "%s takes %u%s argument%s, got %u", x->a->text, table[i].least,
           table[i].most == table[i].least ? "" : lm_arena_printf(e->a, " to %u", table[i].most), table[i].most == 1 ? "" : "s", n);
    return el_error();
  }
  *out_found = false;
  return el_error();
}
