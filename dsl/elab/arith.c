// arith.c - operators over numbers that are known at compile time, over conditions and over
// tensors.
#include "dsl/elab/elab.h"
#include <math.h>

// ---- numbers known at compile time
enum {
  MAX_SYMBOLIC_POWER = 16
};

// False: the result is not a size, as it exceeds 64 bits or has too many terms.
static bool power_of_sizes(lm_elab *e, lm_size x, int64_t n, lm_size *out) {
  *out = lm_size_number(e->a, 1);
  if (n > MAX_SYMBOLIC_POWER && !lm_size_is_const(x))
    return false;
  for (; n > 0; n >>= 1) {
    if (n & 1 && !lm_size_mul(e->a, *out, x, out))
      return false;
    if (n > 1 && !lm_size_mul(e->a, x, x, &x))
      return false;
  }
  return true;
}

// Whole numbers and sizes stay exact. False: the result is not one of them, only a number.
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

static el_val divides(lm_elab *e, const el_val *by, const el_val *of, lm_loc at) {
  int64_t n, m;
  lm_size q;
  el_val a = el_as_size(e, *by), b = el_as_size(e, *of);
  const el_val *x = &a, *y = &b;
  if ((x->known && !x->has_size) || (y->known && !y->has_size))
    return EL_FAIL(e, at, E04C, el_show(e, x), el_show(e, y));
  if (!x->has_size || !y->has_size)
    return el_boolean(false, false);
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
    return EL_FAIL(e, at, E049, lm_op_text(op), el_show(e, x), el_show(e, y));
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
  return EL_FAIL(e, at, E033, el_show(e, x), lm_op_text(op), el_show(e, y));
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
  default: EL_ERR(e, at, E04A, lm_op_text(op)); return el_error();
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
  return EL_FAIL(e, at, E034, el_show(e, v));
}

el_val el_adapt(lm_elab *e, const el_val *v, el_kind kind, lm_loc at) {
  if (v->k == V_TENSOR && v->kind != K_NUM)
    return *v;
  if (v->k == V_NUM && kind == K_INT && v->known &&
      (v->num != floor(v->num) || fabs(v->num) > INT32_MAX))
    return EL_FAIL(e, at, E035, el_show(e, v));
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

// x ^ n for a whole n, by multiplication, so that it is defined for negative x too.
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

static el_val report_mismatch(lm_elab *e, const char *what, const el_val *x, const el_val *y,
                              lm_loc at) {
  lm_diag *d = EL_ERR(e, at, E032, what, el_show(e, x), el_show(e, y));
  el_note_value(e, d, x);
  el_note_value(e, d, y);
  el_axes lacks = el_axes_minus(e, &y->axes, &x->axes);
  if (lacks.n && x->axes.n)
    lm_diag_help(e->c, d, "repeat one of them along the other's axes: expand(…, %s)",
                 lacks.v[0]->name);
  return el_error();
}

static el_val report_promotion(lm_elab *e, const char *what, const el_val *x, const el_val *y,
                               lm_loc at) {
  lm_diag *d = EL_ERR(e, at, E036, what, el_show(e, x), el_show(e, y));
  el_note_value(e, d, x);
  el_note_value(e, d, y);
  lm_diag_help(e->c, d, "cast one: f32(…), real(…) or int(…)");
  return el_error();
}

// Adapts literals so that both operands have one kind. False: reported.
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
      report_promotion(e, what, x, y, at);
    return false;
  }
  if (x->kind == y->kind)
    return true;
  report_promotion(e, what, x, y, at);
  return false;
}

static el_val tensor_binary(lm_elab *e, ast_op op, const el_val *x0, const el_val *y0, lm_loc at) {
  el_val x = *x0;
  el_val y = *y0;
  int64_t n;
  if ((op == OP_DIV || op == OP_MOD) && y.k == V_NUM && y.known && y.num == 0 && !e->guarded)
    return EL_FAIL(e, at, E04D, el_show(e, &x), lm_op_text(op));
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
  if (logic && x.kind != K_BOOL)
    return EL_FAIL(e, at, E037, what, el_show(e, &x));
  if (!logic && x.kind == K_BOOL && op != OP_EQ && op != OP_NE)
    return EL_FAIL(e, at, E08E, what, el_show(e, &x));
  if (x.kind == K_INT && op == OP_DIV) {
    lm_diag *d = EL_ERR(e, at, E038);
    lm_diag_help(e->c, d, "cast one with f32(…), or use idiv(x, y)");
    return el_error();
  }
  if (x.kind == K_INT && op == OP_POW)
    return EL_FAIL(e, at, E092);
  if (op == OP_IN || op == OP_DIVIDES)
    return EL_FAIL(e, at, E04B, what);
  el_rows_of_groups(e, &x, &y, at);
  bool right = el_axes_subset(&y.axes, &x.axes);
  if (!right && !el_axes_subset(&x.axes, &y.axes))
    return report_mismatch(e, what, x0, y0, at);
  lm_value *v = NULL;
  if (e->m) {
    e->b.loc = at;
    v = lm_emit2(&e->b, tensor_opcode(op), x.v, y.v);
  }
  return el_tensor(is_compare(op) ? K_BOOL : x.kind, right ? &x.axes : &y.axes, v);
}

// A parameter of a block that is checked by itself may also be a text.
static bool may_be_text(const el_val *v) {
  return v->k == V_STRING || (v->k == V_NUM && !v->known);
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
  bool equality = op == OP_EQ || op == OP_NE;
  if (a.k == V_STRING && b.k == V_STRING && equality)
    return el_boolean((a.text == b.text) == (op == OP_EQ), true);
  if (!e->m && may_be_text(&a) && may_be_text(&b) && equality)
    return el_boolean(false, false);
  if (a.k == V_TENSOR || b.k == V_TENSOR)
    return tensor_binary(e, op, &a, &b, at);
  return EL_FAIL(e, at, E030, lm_op_text(op), el_show(e, &a), el_show(e, &b));
}
