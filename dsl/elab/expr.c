// expr.c - expressions: names, literals, arithmetic over numbers known at compile time and
// over tensors.
#include "dsl/elab/elab.h"
#include <math.h>
#include <string.h>

bool el_budget(lm_elab *e, lm_loc at) {
  if (e->budget) {
    e->budget--;
    return true;
  }
  if (!e->exhausted)
    el_err(e, at, "E090", "the program expands to too many operations");
  e->exhausted = true;
  return false;
}

void el_count_check(lm_elab *e, uint32_t n, const char *what, lm_loc at) {
  if (n < EL_MOST || e->exhausted)
    return;
  el_err(e, at, "E090", "the program expands to more than %d %s", EL_MOST, what);
  e->exhausted = true;
  e->budget = 0;
}

bool el_is_incomplete(const lm_elab *e) {
  const ast_decl *d = e->frame->self ? e->frame->self->inst->decl : NULL;
  for (uint32_t i = 0; d && i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_ERROR)
      return true;
  return e->frame->file && e->frame->file->incomplete;
}

// ---- numbers known at compile time
enum {
  MOST_POWER = 16
}; // of a size that is a symbol

// False where the result is no size: too large for 64 bits, or of too many terms.
static bool power_of_sizes(lm_elab *e, lm_size x, int64_t n, lm_size *out) {
  *out = lm_size_number(e->a, 1);
  if (n > MOST_POWER && !lm_size_is_const(x))
    return false;
  for (; n > 0; n >>= 1) {
    if (n & 1 && !lm_size_mul(e->a, *out, x, out))
      return false;
    if (n > 1 && !lm_size_mul(e->a, x, x, &x))
      return false;
  }
  return true;
}

// Whole numbers and sizes stay exact; what is no whole number any more becomes a plain number.
static bool size_arithmetic(lm_elab *e, ast_op op, const el_val *x, const el_val *y, el_val *out) {
  lm_size s;
  int64_t n, m;
  if (!x->has_size || !y->has_size)
    return false;
  switch (op) {
  case OP_ADD:
  case OP_SUB:
    if (!lm_size_add(e->a, x->size, y->size, op == OP_ADD ? 1 : -1, &s))
      return false;
    break;
  case OP_MUL:
    if (!lm_size_mul(e->a, x->size, y->size, &s))
      return false;
    break;
  case OP_DIV:
    if (!lm_size_div(e->a, x->size, y->size, &s))
      return false;
    if (lm_size_is_const(s) && !lm_size_whole(s, &n))
      return false;
    break;
  case OP_MOD:
    if (!lm_size_whole(x->size, &n) || !lm_size_whole(y->size, &m) || m <= 0)
      return false;
    s = lm_size_number(e->a, ((n % m) + m) % m);
    break;
  case OP_POW:
    if (!lm_size_whole(y->size, &n) || n < 0 || !power_of_sizes(e, x->size, n, &s))
      return false;
    break;
  default: return false;
  }
  *out = el_sized(s);
  return true;
}

static el_val compare_numbers(ast_op op, const el_val *x, const el_val *y) {
  if (x->has_size && y->has_size && lm_size_equal(x->size, y->size))
    return el_boolean(op == OP_EQ || op == OP_LE || op == OP_GE, true);
  if (!x->known || !y->known)
    return el_boolean(false, false);
  double a = x->num;
  double b = y->num;
  bool r = op == OP_EQ   ? a == b
           : op == OP_NE ? a != b
           : op == OP_LT ? a < b
           : op == OP_GT ? a > b
           : op == OP_LE ? a <= b
                         : a >= b;
  return el_boolean(r, true);
}

static el_val divides(lm_elab *e, const el_val *x, const el_val *y, lm_loc at) {
  int64_t n, m;
  lm_size q;
  if (!x->has_size || !y->has_size)
    return el_fail(e, at, "E030", "'divides' takes whole numbers");
  if (lm_size_whole(x->size, &n) && lm_size_whole(y->size, &m))
    return el_boolean(n != 0 && m % n == 0, true);
  if (!lm_size_div(e->a, y->size, x->size, &q))
    return el_boolean(false, false);
  for (int i = 0; i < q.n; i++) {
    if (q.t[i].den != 1)
      return el_boolean(false, false);
    for (int k = 0; k < q.t[i].n; k++)
      if (q.t[i].f[k].power < 0)
        return el_boolean(false, false);
  }
  return el_boolean(true, true);
}

static bool is_compare(ast_op op) {
  return op >= OP_EQ && op <= OP_GE;
}

static el_val number_binary(lm_elab *e, ast_op op, const el_val *x, const el_val *y, lm_loc at) {
  el_val out;
  if (is_compare(op))
    return compare_numbers(op, x, y);
  if (op == OP_DIVIDES)
    return divides(e, x, y, at);
  if (op == OP_AND || op == OP_OR)
    return el_fail(e, at, "E030", "'%s' takes conditions, got %s and %s", lm_op_text(op),
                   el_show(e, x), el_show(e, y));
  if (size_arithmetic(e, op, x, y, &out))
    return out;
  if (!x->known || !y->known)
    return el_unknown_number();
  double a = x->num;
  double b = y->num;
  double r = 0;
  switch (op) {
  case OP_ADD: r = a + b; break;
  case OP_SUB: r = a - b; break;
  case OP_MUL: r = a * b; break;
  case OP_DIV: r = a / b; break;
  case OP_MOD: r = a - b * floor(a / b); break;
  case OP_POW: r = pow(a, b); break;
  default: break;
  }
  if (isfinite(r) || e->guarded)
    return el_number(e, r);
  return el_fail(e, at, "E033", "%s %s %s is not a finite number", el_show(e, x), lm_op_text(op),
                 el_show(e, y));
}

static el_val bool_binary(lm_elab *e, ast_op op, const el_val *x, const el_val *y, lm_loc at) {
  bool a = x->num != 0;
  bool b = y->num != 0;
  switch (op) {
  case OP_AND:
    if ((x->known && !a) || (y->known && !b))
      return el_boolean(false, true);
    return el_boolean(a && b, x->known && y->known);
  case OP_OR:
    if ((x->known && a) || (y->known && b))
      return el_boolean(true, true);
    return el_boolean(a || b, x->known && y->known);
  case OP_EQ: return el_boolean(a == b, x->known && y->known);
  case OP_NE: return el_boolean(a != b, x->known && y->known);
  default: el_err(e, at, "E030", "'%s' of conditions", lm_op_text(op)); return el_error();
  }
}

// ---- tensors
el_val el_as_tensor(lm_elab *e, const el_val *v, lm_loc at) {
  el_axes none = {0};
  if (v->k == V_TENSOR || v->k == V_ERROR)
    return *v;
  if (v->k == V_NUM) {
    lm_value *c = e->m ? lm_emit_const(&e->b, lm_type_make(LM_F64, NULL, 0), v->num) : NULL;
    return el_tensor(K_NUM, &none, c);
  }
  if (v->k == V_BOOL) {
    lm_value *c = e->m ? lm_emit_const(&e->b, lm_type_make(LM_BOOL, NULL, 0), v->num != 0) : NULL;
    return el_tensor(K_BOOL, &none, c);
  }
  if (v->k == V_AXES && v->axes.n == 1) {
    el_val n = el_axis_size(e, v->axes.v[0], at);
    return el_as_tensor(e, &n, at);
  }
  return el_fail(e, at, "E034", "expected a tensor, got %s", el_show(e, v));
}

el_val el_adapt(lm_elab *e, const el_val *v, el_kind kind, lm_loc at) {
  if (v->k == V_TENSOR && v->kind != K_NUM)
    return *v;
  if (v->k == V_NUM && kind == K_INT && v->known &&
      (v->num != floor(v->num) || fabs(v->num) > INT32_MAX))
    return el_fail(e, at, "E035", "%s does not adapt to int, which holds whole numbers of 32 bits",
                   el_show(e, v));
  if (v->k == V_NUM && kind != K_NUM && kind != K_BOOL) {
    el_axes none = {0};
    lm_value *c =
        e->m ? lm_emit_const(&e->b, lm_type_make(el_dtype(e, kind), NULL, 0), v->num) : NULL;
    return el_tensor(kind, &none, c);
  }
  el_val t = el_as_tensor(e, v, at);
  if (t.k != V_TENSOR || t.kind != K_NUM || kind == K_NUM || kind == K_BOOL)
    return t;
  t.kind = kind;
  if (t.v)
    t.v = lm_emit_cast(&e->b, t.v, el_dtype(e, kind));
  return t;
}

static lm_opcode tensor_opcode(ast_op op) {
  static const lm_opcode table[] = {
      [OP_ADD] = LM_OP_ADD, [OP_SUB] = LM_OP_SUB, [OP_MUL] = LM_OP_MUL, [OP_DIV] = LM_OP_DIV,
      [OP_MOD] = LM_OP_MOD, [OP_POW] = LM_OP_POW, [OP_AND] = LM_OP_AND, [OP_OR] = LM_OP_OR,
      [OP_EQ] = LM_OP_EQ,   [OP_NE] = LM_OP_NE,   [OP_LT] = LM_OP_LT,   [OP_GT] = LM_OP_GT,
      [OP_LE] = LM_OP_LE,   [OP_GE] = LM_OP_GE,
  };
  return table[op];
}

// x ^ n for a whole n: products alone, so that it holds for any x.
static el_val whole_power(lm_elab *e, const el_val *x, int64_t n, lm_loc at) {
  el_val base = *x;
  el_val r = el_whole(e, 1);
  bool any = false, inverse = n < 0;
  for (int64_t k = inverse ? -n : n; k; k >>= 1) {
    if (k & 1) {
      r = any ? el_binary(e, OP_MUL, &r, &base, at) : base;
      any = true;
    }
    if (k > 1)
      base = el_binary(e, OP_MUL, &base, &base, at);
  }
  el_val one = el_whole(e, 1);
  if (!any)
    return el_binary(e, OP_ADD, &(el_val[]){el_binary(e, OP_SUB, x, x, at)}[0], &one, at);
  return inverse ? el_binary(e, OP_DIV, &one, &r, at) : r;
}

static el_val mismatch(lm_elab *e, const char *what, const el_val *x, const el_val *y, lm_loc at) {
  lm_diag *d = el_err(e, at, "E032", "%s of %s and %s: neither has all axes of the other", what,
                      el_show(e, x), el_show(e, y));
  el_note_value(e, d, x);
  el_note_value(e, d, y);
  el_axes lacks = el_axes_minus(e, &y->axes, &x->axes);
  if (lacks.n && x->axes.n)
    lm_diag_help(e->c, d, "name the axes to repeat along: expand(…, %s)", lacks.v[0]->name);
  return el_error();
}

static el_val promotion(lm_elab *e, const char *what, const el_val *x, const el_val *y, lm_loc at) {
  lm_diag *d = el_err(e, at, "E036", "%s of %s and %s: types are never promoted", what,
                      el_show(e, x), el_show(e, y));
  el_note_value(e, d, x);
  el_note_value(e, d, y);
  lm_diag_help(e->c, d, "cast one: f32(…), real(…) or int(…)");
  return el_error();
}

// The kind two operands share once literals have adapted; false: reported.
static bool join(lm_elab *e, const char *what, el_val *x, el_val *y, lm_loc at) {
  bool xn = x->k != V_TENSOR || x->kind == K_NUM;
  bool yn = y->k != V_TENSOR || y->kind == K_NUM;
  if (x->k == V_BOOL)
    *x = el_as_tensor(e, x, at);
  else if (xn)
    *x = el_adapt(e, x, yn ? K_NUM : y->kind, at);
  if (y->k == V_BOOL)
    *y = el_as_tensor(e, y, at);
  else if (yn)
    *y = el_adapt(e, y, x->k == V_TENSOR ? x->kind : K_NUM, at);
  if (x->k != V_TENSOR || y->k != V_TENSOR) {
    if (x->k != V_ERROR && y->k != V_ERROR)
      promotion(e, what, x, y, at);
    return false;
  }
  return x->kind == y->kind || (promotion(e, what, x, y, at), false);
}

static el_val tensor_binary(lm_elab *e, ast_op op, const el_val *x0, const el_val *y0, lm_loc at) {
  el_val x = *x0;
  el_val y = *y0;
  int64_t n;
  if ((op == OP_DIV || op == OP_MOD) && y.k == V_NUM && y.known && y.num == 0 && !e->guarded)
    return el_fail(e, at, "E033", "%s %s 0 has no finite value", el_show(e, &x), lm_op_text(op));
  if (op == OP_POW && x.k == V_TENSOR && y.k == V_NUM && y.known && y.num == floor(y.num) &&
      fabs(y.num) <= 64) {
    n = (int64_t)y.num;
    if (x.kind != K_INT || n >= 0)
      return whole_power(e, &x, n, at);
  }
  const char *what = lm_op_text(op);
  if (!join(e, what, &x, &y, at))
    return el_error();
  bool logic = op == OP_AND || op == OP_OR;
  if (logic != (x.kind == K_BOOL) && !(x.kind == K_BOOL && (op == OP_EQ || op == OP_NE)))
    return el_fail(e, at, "E037",
                   logic ? "'%s' takes bool tensors, got %s" : "'%s' of bool tensors: %s", what,
                   el_show(e, &x));
  if (x.kind == K_INT && op == OP_DIV) {
    lm_diag *d = el_err(e, at, "E038", "'/' is not defined on int tensors");
    lm_diag_help(e->c, d, "cast one with f32(…), or use idiv(x, y)");
    return el_error();
  }
  if (x.kind == K_INT && op == OP_POW)
    return el_fail(e, at, "E038", "'^' of int tensors takes a whole literal");
  if (op == OP_IN || op == OP_DIVIDES)
    return el_fail(e, at, "E030", "'%s' is not defined on tensors", what);
  bool right = el_axes_subset(&y.axes, &x.axes);
  if (!right && !el_axes_subset(&x.axes, &y.axes))
    return mismatch(e, what, x0, y0, at);
  lm_value *v = NULL;
  if (e->m) {
    e->b.loc = at;
    v = lm_emit2(&e->b, tensor_opcode(op), x.v, y.v);
  }
  return el_tensor(is_compare(op) ? K_BOOL : x.kind, right ? &x.axes : &y.axes, v);
}

el_val el_binary(lm_elab *e, ast_op op, const el_val *x, const el_val *y, lm_loc at) {
  if (x->k == V_ERROR || y->k == V_ERROR)
    return el_error();
  el_val a = *x;
  el_val b = *y;
  if (a.k == V_AXES && a.axes.n == 1)
    a = el_axis_size(e, a.axes.v[0], at);
  if (b.k == V_AXES && b.axes.n == 1)
    b = el_axis_size(e, b.axes.v[0], at);
  if (a.k == V_ERROR || b.k == V_ERROR)
    return el_error();
  if (a.k == V_NUM && b.k == V_NUM)
    return number_binary(e, op, &a, &b, at);
  if (a.k == V_BOOL && b.k == V_BOOL)
    return bool_binary(e, op, &a, &b, at);
  if (a.k == V_STRING && b.k == V_STRING && (op == OP_EQ || op == OP_NE))
    return el_boolean((a.text == b.text) == (op == OP_EQ), true);
  if (a.k == V_TENSOR || b.k == V_TENSOR)
    return tensor_binary(e, op, &a, &b, at);
  return el_fail(e, at, "E030", "'%s' of %s and %s", lm_op_text(op), el_show(e, &a),
                 el_show(e, &b));
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

static el_val lookup_in_self(lm_elab *e, lm_sym name, bool *found) {
  el_ref *self = e->frame->self;
  *found = true;
  for (el_bind *b = self->over; b; b = b->up)
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
    el_val v = lookup_in_self(e, name, &found);
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

static el_val eval_field(lm_elab *e, const ast_expr *x) {
  el_val a = el_eval(e, x->a);
  if (a.k == V_ERROR)
    return a;
  if (a.k == V_RECORD)
    for (uint32_t i = 0; i < a.n; i++)
      if (a.names[i] == x->text)
        return a.items[i];
  if (a.k == V_INST) {
    el_frame *f = e->frame, inside = {.up = f,
                                      .file = a.ref.inst->file,
                                      .self = &a.ref,
                                      .live = f->live,
                                      .real = K_REAL};
    bool found;
    e->frame = &inside;
    el_val v = lookup_in_self(e, x->text, &found);
    e->frame = f;
    if (found)
      return v;
  }
  const char *near = a.k == V_RECORD ? lm_nearest(x->text, a.names, (int)a.n) : NULL;
  lm_diag *d = el_err(e, x->loc, "E042", "%s has no field '%s'", el_show(e, &a), x->text);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else if (a.k == V_RECORD)
    lm_diag_help(e->c, d,
                 "it has tok, pos, seg, next and w; further columns are not available yet");
  return el_error();
}

static el_val eval_if(lm_elab *e, const ast_expr *x) {
  el_val c = el_eval(e, x->c);
  if (c.k == V_BOOL && c.known)
    return el_eval(e, c.num != 0 ? x->a : x->b);
  if (el_decide(e, &c))
    return el_error();
  bool undecided = c.k == V_NUM && !c.known && !e->m;
  if (c.k != V_BOOL && c.k != V_ERROR && !undecided) {
    lm_diag *d = el_err(e, x->c->loc, "E043",
                        "`if` takes a condition known at compile time, got %s", el_show(e, &c));
    lm_diag_help(e->c, d, "choose element by element with select(condition, a, b)");
    return el_error();
  }
  el_val a = el_eval(e, x->a);
  el_val b = el_eval(e, x->b); // undecided while only checking: both must be right
  return a.k == V_ERROR ? b : a.k == V_NUM && b.k == V_NUM ? el_unknown_number() : a;
}

static el_val eval_neg(lm_elab *e, const ast_expr *x) {
  el_val v = el_eval(e, x->a);
  el_val zero = el_whole(e, 0);
  if (v.k == V_TENSOR && (v.kind == K_REAL || v.kind == K_F32 || v.kind == K_NUM)) {
    if (v.v)
      v.v = lm_emit1(&e->b, LM_OP_NEG, v.v);
    v.name = NULL;
    return v;
  }
  return el_binary(e, OP_SUB, &zero, &v, x->loc);
}

static el_val eval_tuple(lm_elab *e, const ast_expr *x) {
  el_val *items = LM_NEW_N(e->a, el_val, x->n_args + 1);
  for (uint32_t i = 0; i < x->n_args; i++) {
    if (x->args[i].kind != ARG_POS)
      return el_fail(e, x->args[i].loc, "E044", "expected a value");
    items[i] = el_eval(e, x->args[i].expr);
  }
  return el_tuple(e, items, x->n_args);
}

static el_val eval_index(lm_elab *e, const ast_expr *x) {
  el_val a = el_eval(e, x->a);
  int64_t i;
  if (a.k == V_ERROR)
    return a;
  if (x->n_args == 1 && x->args[0].kind == ARG_POS && (a.k == V_INSTS || a.k == V_TUPLE)) {
    el_val at = el_eval(e, x->args[0].expr);
    if (at.k == V_ERROR || (at.k == V_NUM && !at.known) || el_decide(e, &at))
      return el_error();
    int64_t n = a.k == V_TUPLE ? (int64_t)a.n : a.insts->n;
    if (at.k == V_NUM && at.has_size && lm_size_whole(at.size, &i) && i >= 0 && i < n)
      return a.k == V_TUPLE ? a.items[i] : el_insts_at(e, &a, &(el_index){NULL, i, 1});
    return el_fail(e, x->args[0].loc, "E045", "expected a whole number from 0 to %lld",
                   (long long)n - 1);
  }
  lm_diag *d = el_err(e, x->loc, "E045", "cannot index %s", el_show(e, &a));
  if (a.k == V_TENSOR)
    lm_diag_help(e->c, d, "use slice(x, e -> a, first, step), split, unstack or gather");
  return el_error();
}

// A quantity as a number: percent and plain magnitudes; other units belong to recipes.
static el_val eval_quantity(lm_elab *e, const ast_expr *x) {
  if (strcmp(x->unit, "%") == 0)
    return el_number(e, x->num / 100);
  return (el_val){.k = V_QUANTITY, .known = true, .num = x->num, .text = x->unit};
}

static el_val eval(lm_elab *e, const ast_expr *x) {
  switch (x->kind) {
  case EX_NAME: return el_lookup(e, x->text, x->loc, true);
  case EX_NUMBER: return x->is_int ? el_whole(e, x->inum) : el_number(e, x->num);
  case EX_QUANTITY: return eval_quantity(e, x);
  case EX_STRING: return (el_val){.k = V_STRING, .known = true, .text = x->text};
  case EX_PATTERN: return (el_val){.k = V_PATTERN, .known = true, .text = x->text};
  case EX_TUPLE: return eval_tuple(e, x);
  case EX_LIST: return eval_tuple(e, x);
  case EX_CALL: return el_call(e, x);
  case EX_INDEX: return eval_index(e, x);
  case EX_FIELD: return eval_field(e, x);
  case EX_NEG: return eval_neg(e, x);
  case EX_IF: return eval_if(e, x);
  case EX_ERROR: return el_error();
  case EX_BINARY: break;
  }
  if (x->op == OP_IN) {
    el_axes inner = {0}, outer = {0};
    if (!el_axis_list(e, x->a, &inner) || !el_axis_list(e, x->b, &outer))
      return el_error();
    return el_boolean(el_axes_subset(&inner, &outer), true);
  }
  el_val a = el_eval(e, x->a);
  el_val b = el_eval(e, x->b);
  return el_binary(e, x->op, &a, &b, x->loc);
}

el_val el_eval(lm_elab *e, const ast_expr *x) {
  if (!el_budget(e, x->loc))
    return el_error();
  if (e->m)
    e->b.loc = x->loc;
  el_val v = eval(e, x);
  bool emitted = v.k == V_TENSOR && v.v;
  return emitted && !el_size_check(e, v.v->type, x->loc) ? el_error() : v;
}
