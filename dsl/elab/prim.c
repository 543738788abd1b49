// prim.c - the table of primitives, and those that are elementwise or take no tensor: casts,
// functions, iota, random numbers.
#include "dsl/elab/prim.h"
#include "dsl/elab/source.h"
#include <math.h>
#include <string.h>

typedef el_val (*primitive)(el_call_site c);

// ---- casts and elementwise
static el_val cast_to(el_call_site c, el_kind kind) {
  el_val v = el_arg(c, 0);
  if (v.k == V_ERROR)
    return v;
  if (v.k == V_NUM && kind != K_BOOL)
    return el_adapt(c.e, &v, kind, el_arg_loc(c, 0));
  v = el_as_tensor(c.e, &v, el_arg_loc(c, 0));
  if (v.k == V_ERROR)
    return v;
  lm_value *r = v.v ? lm_emit_cast(&c.e->b, v.v, el_dtype(c.e, kind)) : NULL;
  return el_tensor(kind, &v.axes, r);
}
static el_val p_f32(el_call_site c) {
  return cast_to(c, K_F32);
}
static el_val p_real(el_call_site c) {
  return cast_to(c, c.e->frame->real);
}
static el_val p_int(el_call_site c) {
  return cast_to(c, K_INT);
}
static el_val p_bool(el_call_site c) {
  return cast_to(c, K_BOOL);
}

static el_val unary(el_call_site c, lm_opcode op, double (*f)(double)) {
  el_val v = el_arg(c, 0);
  double x;
  if (v.k == V_AXES && v.axes.n == 1)
    v = el_axis_size(c.e, v.axes.v[0], el_arg_loc(c, 0));
  if (v.k == V_NUM) {
    if (!el_number_value(&v, &x))
      return el_unknown_number();
    double r = f(x);
    if (isfinite(r) || c.e->guarded)
      return el_number(c.e, r);
    return EL_FAIL(c.e, el_arg_loc(c, 0), E04E, c.x->a->text, x);
  }
  v = el_as_tensor(c.e, &v, el_arg_loc(c, 0));
  if (v.k == V_ERROR || !el_floating(c, &v, el_arg_loc(c, 0)))
    return el_error();
  return el_tensor(v.kind, &v.axes, v.v ? lm_emit1(&c.e->b, op, v.v) : NULL);
}
static double logistic(double x) {
  return 1 / (1 + exp(-x));
}
static double reciprocal_root(double x) {
  return 1 / sqrt(x);
}
static double same(double x) {
  return x;
}
static el_val p_exp(el_call_site c) {
  return unary(c, LM_OP_EXP, exp);
}
static el_val p_log(el_call_site c) {
  return unary(c, LM_OP_LOG, log);
}
static el_val p_log1p(el_call_site c) {
  return unary(c, LM_OP_LOG1P, log1p);
}
static el_val p_sqrt(el_call_site c) {
  return unary(c, LM_OP_SQRT, sqrt);
}
static el_val p_rsqrt(el_call_site c) {
  return unary(c, LM_OP_RSQRT, reciprocal_root);
}
static el_val p_sin(el_call_site c) {
  return unary(c, LM_OP_SIN, sin);
}
static el_val p_cos(el_call_site c) {
  return unary(c, LM_OP_COS, cos);
}
static el_val p_tanh(el_call_site c) {
  return unary(c, LM_OP_TANH, tanh);
}
static el_val p_logistic(el_call_site c) {
  return unary(c, LM_OP_LOGISTIC, logistic);
}
static el_val p_erf(el_call_site c) {
  return unary(c, LM_OP_ERF, erf);
}

// A number is rounded to a whole number, which may serve as a size.
static el_val rounded(el_call_site c, lm_opcode op, double (*f)(double)) {
  el_val v = unary(c, op, f);
  bool whole = v.k == V_NUM && v.known && fabs(v.num) < 0x1p53;
  return whole ? el_whole(c.e, (int64_t)v.num) : v;
}
static el_val p_floor(el_call_site c) {
  return rounded(c, LM_OP_FLOOR, floor);
}
static el_val p_round(el_call_site c) {
  return rounded(c, LM_OP_ROUND, rint);
}
static double binade_of(double x) {
  int exponent;
  frexp(x, &exponent);
  return x == 0 ? 0 : ldexp(1, exponent - 1);
}
static el_val p_binade(el_call_site c) {
  return unary(c, LM_OP_BINADE, binade_of);
}
static el_val p_stop_grad(el_call_site c) {
  return unary(c, LM_OP_STOP, same);
}

static el_val p_not(el_call_site c) {
  el_val v = el_arg(c, 0);
  if (v.k == V_BOOL)
    return el_boolean(v.num == 0, v.known);
  if (v.k == V_ERROR)
    return v;
  if (v.k != V_TENSOR || v.kind != K_BOOL)
    return EL_FAIL(c.e, el_arg_loc(c, 0), E08F, el_show(c.e, &v));
  return el_tensor(K_BOOL, &v.axes, v.v ? lm_emit1(&c.e->b, LM_OP_NOT, v.v) : NULL);
}

static el_val p_idiv(el_call_site c) {
  el_val x = el_arg(c, 0);
  el_val y = el_arg(c, 1);
  if (x.k == V_ERROR || y.k == V_ERROR)
    return el_error();
  bool by_zero = y.k == V_NUM && y.known && y.num == 0;
  if (by_zero && !c.e->guarded)
    return EL_FAIL(c.e, el_arg_loc(c, 1), E04F);
  if (x.k == V_NUM && y.k == V_NUM) {
    if (!x.known || !y.known)
      return el_unknown_number();
    return el_whole(c.e, by_zero ? 0 : (int64_t)floor(x.num / y.num)); // 0, as for int tensors
  }
  x = el_adapt(c.e, &x, K_INT, el_arg_loc(c, 0));
  y = el_adapt(c.e, &y, K_INT, el_arg_loc(c, 1));
  if (x.k != V_TENSOR || y.k != V_TENSOR)
    return el_error();
  bool right = el_axes_subset(&y.axes, &x.axes);
  if (x.kind != K_INT || y.kind != K_INT || (!right && !el_axes_subset(&x.axes, &y.axes)))
    return EL_FAIL(c.e, c.x->loc, E07B, el_show(c.e, &x), el_show(c.e, &y));
  return el_tensor(K_INT, right ? &x.axes : &y.axes,
                   x.v ? lm_emit2(&c.e->b, LM_OP_IDIV, x.v, y.v) : NULL);
}

// ---- iota and random numbers
static el_val p_iota(el_call_site c) {
  el_axis *a;
  if (!el_positional_axis(c, 0, &a))
    return el_error();
  el_axes axes = {0};
  el_axes_push(c.e, &axes, a);
  lm_value *v = NULL;
  if (c.e->m) {
    lm_type t = el_ir_type(c.e, K_INT, &axes);
    v = lm_emit_cast(&c.e->b, lm_emit(&c.e->b, LM_OP_IOTA, NULL, 0, NULL, &t), LM_F64);
  }
  return el_tensor(K_NUM, &axes, v);
}

static lm_value *int_const(lm_elab *e, int64_t v) {
  return lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

// The numbers of the rows of a tensor of type t, its axes without the last, row-major: along the
// first axis they begin with the batch's first row in its step.
static lm_value *row_numbers(lm_elab *e, lm_type t) {
  lm_value *rows = NULL;
  for (int k = 0; k + 1 < t.rank; k++) {
    lm_type line = lm_type_make(LM_INT, &t.axis[k], 1),
            so_far = lm_type_make(LM_INT, t.axis, k + 1);
    lm_value *at = lm_emit(&e->b, LM_OP_IOTA, NULL, 0, NULL, &line);
    if (!rows) {
      rows = lm_emit2(&e->b, LM_OP_ADD, at, e->row);
      continue;
    }
    rows = lm_emit2(&e->b, LM_OP_MUL, rows, int_const(e, lm_axis_size(e->m, t.axis[k])));
    rows = lm_emit2(&e->b, LM_OP_ADD, lm_emit_expand(&e->b, rows, so_far), at);
  }
  return rows ? rows : int_const(e, 0);
}

static lm_value *random_numbers(lm_elab *e, const el_axes *axes) {
  if (!e->m)
    return NULL;
  if (e->in_library || !e->step)
    e->library_failed = true;
  if (!e->step)
    return lm_emit_const(&e->b, el_ir_type(e, K_F32, axes), 0.5);
  e->n_sites++;
  lm_type t = el_ir_type(e, K_F32, axes);
  int64_t width = t.rank ? lm_axis_size(e->m, t.axis[t.rank - 1]) : 1;
  lm_attr attr = {.imm = {(int64_t)e->seed, (int64_t)el_draw(e), width}, .n_imm = 3};
  lm_value *first = t.rank == 1 ? e->row : int_const(e, 0); // of one axis: the columns of row 0
  lm_value *layer = e->layer ? e->layer : int_const(e, 0);
  return lm_emit(&e->b, LM_OP_RNG, (lm_value *[]){e->step, row_numbers(e, t), first, layer}, 4,
                 &attr, &t);
}

static el_val p_dropout(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_val p = el_arg(c, 1);
  if (x.k == V_ERROR || p.k == V_ERROR || !el_is_random_allowed(c))
    return el_error();
  // a rate that depends on the index of a loop is a scalar of the loop's body
  bool by_index = p.k == V_TENSOR && p.kind == K_NUM && !p.axes.n;
  if (!by_index && (p.k != V_NUM || (p.known && (p.num < 0 || p.num >= 1))))
    return EL_FAIL(c.e, el_arg_loc(c, 1), E054, el_show(c.e, &p));
  bool none = !by_index && p.num == 0;
  if (c.e->scan && !none)
    return el_not_in_scan(c.e, c.x->loc, "dropout");
  if (!el_floating(c, &x, el_arg_loc(c, 0)))
    return el_error();
  if (!el_trains(c.e) || !c.e->m)
    return x;
  if (none) {
    if (c.e->step)
      el_draw(c.e); // other draws are the same for every rate
    return x;
  }
  lm_builder *b = &c.e->b;
  el_val one = el_whole(c.e, 1);
  el_val kept = el_binary(c.e, OP_SUB, &one, &p, c.x->loc);
  el_val gain = el_binary(c.e, OP_DIV, &one, &kept, c.x->loc);
  lm_type real = lm_type_make((lm_dtype)x.v->type.dtype, NULL, 0);
  lm_value *rate = el_adapt(c.e, &p, K_F32, c.x->loc).v;
  lm_value *keep = lm_emit2(b, LM_OP_GE, random_numbers(c.e, &x.axes), rate);
  lm_value *scaled = lm_emit2(b, LM_OP_MUL, x.v, el_adapt(c.e, &gain, x.kind, c.x->loc).v);
  return el_tensor(x.kind, &x.axes, lm_emit_select(b, keep, scaled, lm_emit_const(b, real, 0)));
}

static el_val p_rng(el_call_site c) {
  el_axes axes = {0};
  if (!el_is_random_allowed(c))
    return el_error();
  for (uint32_t i = 0; el_positional(c, i); i++)
    if (!el_positional_axes(c, i, &axes))
      return el_error();
  return el_tensor(K_F32, &axes, random_numbers(c.e, &axes));
}

// True in training. Unknown while only checking, so that both branches of an `if` are checked.
static el_val p_training(el_call_site c) {
  if (!el_in_method(c.e))
    return EL_FAIL(c.e, c.x->loc, E096);
  return el_boolean(el_trains(c.e), c.e->m != NULL);
}

static el_val p_later(el_call_site c) {
  return EL_FAIL(c.e, c.x->loc, E904, c.x->a->text);
}

static const struct {
  const char *name;
  primitive run;
  uint8_t min, max;
  const char *form;
} table[] = {
#define PRIMITIVE(name, function, min, max, form) {#name, p_##function, min, max, form},
#include "dsl/syntax/primitives.def"
#undef PRIMITIVE
};

static const char *const NAMED[] = {"before", "after", "stride", "dilate"};

// How many of NAMED are arguments of the primitive.
static int named_arguments(const char *primitive) {
  if (!strcmp(primitive, "window"))
    return LM_COUNT(NAMED);
  return !strcmp(primitive, "stack") || !strcmp(primitive, "expand");
}

// expand also takes new axes by name.
static bool is_named_argument(const char *primitive, const char *name) {
  bool found = !strcmp(primitive, "expand");
  for (int i = 0; i < named_arguments(primitive); i++)
    found |= !strcmp(name, NAMED[i]);
  return found;
}

static bool check_argument_names(lm_elab *e, const ast_expr *x, const char *primitive) {
  for (uint32_t k = 0; k < x->n_args; k++)
    if (x->args[k].kind == ARG_NAMED && !is_named_argument(primitive, x->args[k].name)) {
      lm_diag *d = EL_ERR(e, x->args[k].loc, E05B, primitive, x->args[k].name);
      const char *near = lm_nearest(x->args[k].name, NAMED, named_arguments(primitive));
      if (near)
        lm_diag_help(e->c, d, "did you mean '%s'?", near);
      else
        el_help_word(e, d, x->args[k].name);
      return false;
    }
  return true;
}

static bool check_argument_count(lm_elab *e, const ast_expr *x, size_t i) {
  uint32_t n = 0, min = table[i].min, max = table[i].max;
  for (uint32_t k = 0; k < x->n_args; k++)
    n += x->args[k].kind != ARG_NAMED;
  if (n >= min && n <= max)
    return true;
  lm_diag *d =
      EL_ERR(e, x->loc, E05C, table[i].name, min,
             max == min ? "" : lm_arena_printf(e->a, " to %u", max), max == 1 ? "" : "s", n);
  if (*table[i].form)
    lm_diag_help(e->c, d, "%s", table[i].form);
  return false;
}

static void bind_failed(lm_elab *e, lm_sym name) {
  if (!el_axis_lookup(e, name) && !el_names_find(&e->frame->names, name))
    el_bind_name(e, name, el_error(), false);
}

// After a failed call: binds the axes that it would have made to errors, so that uses of them
// report nothing. They are the names on the right of an arrow, an argument that should have been an
// arrow, and `name = size`.
static void bind_failed_axes(lm_elab *e, const ast_expr *x, const char *form) {
  for (uint32_t i = 0; i < x->n_args; i++) {
    const ast_arg *a = &x->args[i];
    const ast_expr *to = a->kind == ARG_ARROW                                 ? a->to
                         : a->kind == ARG_POS && i == 1 && strstr(form, "->") ? a->expr
                                                                              : NULL;
    if (a->kind == ARG_NAMED)
      bind_failed(e, a->name);
    if (to && to->kind == EX_NAME)
      bind_failed(e, to->text);
    for (uint32_t k = 0; to && to->kind == EX_TUPLE && k < to->n_args; k++)
      if (to->args[k].kind == ARG_NAMED)
        bind_failed(e, to->args[k].name);
      else if (to->args[k].kind == ARG_POS && to->args[k].expr->kind == EX_NAME)
        bind_failed(e, to->args[k].expr->text);
  }
}

// True if the primitive may stand in the body of a loop over positions. p_dropout decides itself.
static bool is_local(const char *name) {
  static const char *const others[] = {"gather",   "scatter_add", "rng",         "history",
                                       "group_by", "ungroup",     "grouped_dot", "top_k"};
  for (size_t i = 0; i < LM_COUNT(others); i++)
    if (!strcmp(name, others[i]))
      return false;
  return true;
}

el_val el_primitive(lm_elab *e, const ast_expr *x, bool *out_found) {
  size_t i = 0;
  while (i < LM_COUNT(table) && strcmp(table[i].name, x->a->text))
    i++;
  *out_found = i < LM_COUNT(table);
  if (!*out_found)
    return el_error();
  if (e->scan && !is_local(table[i].name)) {
    return el_not_in_scan(e, x->loc, table[i].name);
  }
  bool available = table[i].run != p_later;
  bool fits =
      !available || (check_argument_names(e, x, table[i].name) && check_argument_count(e, x, i));
  if (e->m)
    e->b.loc = x->loc;
  el_val v = fits ? table[i].run((el_call_site){.e = e, .x = x}) : el_error();
  if (v.k == V_ERROR)
    bind_failed_axes(e, x, table[i].form);
  return v;
}
