// shape.c - primitives that change the axes of a tensor: expand, view, permute, rename, slice, pad,
// split, unstack.
#include "dsl/elab/prim.h"

static el_val err_size(el_call_site c, lm_loc at, lm_sym name, const el_val *v) {
  return EL_FAIL(c.e, at, E0BC, name, el_show(c.e, v));
}

static bool check_positive(el_call_site c, lm_loc at, lm_sym name, const el_val *v) {
  return v->num >= 1 || EL_REJECT(c.e, at, E0BC, name, el_show(c.e, v));
}

// ---- expand
// `name = size`: a new axis; NULL: reported.
static el_axis *expand_new(el_call_site c, const ast_arg *a) {
  el_val n = el_as_size(c.e, el_eval(c.e, a->expr));
  if (n.k == V_ERROR || el_request_unroll(c.e, &n))
    return NULL;
  if (n.k != V_NUM || (!n.has_size && n.known)) {
    err_size(c, a->loc, a->name, &n);
    return NULL;
  }
  lm_size size = n.has_size ? n.size : lm_size_dim(c.e->a, a->name);
  int64_t whole;
  if (c.e->m && (!lm_size_whole(size, &whole) || whole <= 0)) {
    EL_ERR(c.e, a->loc, E0BC, a->name, el_show(c.e, &n));
    return NULL;
  }
  el_axis *axis = el_axis_new(c.e, a->name, size, 0);
  el_axis_bind_name(c.e, a->name, axis);
  return axis;
}

// The axes after the first argument: known ones, and new ones with their sizes.
static bool expand_axes(el_call_site c, const ast_arg *before, el_axes *out) {
  bool seen = false;
  for (uint32_t k = 0; k < c.x->n_args; k++) {
    const ast_arg *a = &c.x->args[k];
    if (a == before)
      continue;
    if (a->kind == ARG_POS && !seen) {
      seen = true;
    } else if (a->kind == ARG_NAMED) {
      el_axis *axis = expand_new(c, a);
      if (!axis)
        return false;
      el_axes_push(c.e, out, axis);
    } else if (a->kind != ARG_POS || !el_arg_axes(c, a->expr, out)) {
      return false;
    }
  }
  return true;
}

el_val p_expand(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *before = el_named(c, "before");
  el_axis *anchor = NULL;
  el_axes fresh = {0};
  if (x.k == V_ERROR || (before && !el_one_axis(c, before->expr, &anchor)))
    return el_error();
  if (anchor && el_lacks(c, &x, anchor, before->loc))
    return el_error();
  if (!expand_axes(c, before, &fresh))
    return el_error();
  for (uint32_t i = 0; i < fresh.n; i++)
    if (el_axes_has(&x.axes, fresh.v[i]) || el_axes_find(&fresh, fresh.v[i]) < (int)i)
      return EL_FAIL(c.e, c.x->loc, E06B, el_show(c.e, &x), fresh.v[i]->name);
  uint32_t at = anchor ? (uint32_t)el_axes_find(&x.axes, anchor) : x.axes.n;
  el_axes axes = el_spliced(c, &x.axes, at, 0, &fresh);
  if (!el_distinct(c, &axes))
    return el_error();
  return el_tensor(x.kind, &axes,
                   x.v ? lm_emit_expand(&c.e->b, x.v, el_ir_type(c.e, x.kind, &axes)) : NULL);
}

// ---- the right side of view and split: known axes, `name = size`, and at most one new name
typedef struct {
  el_axis *found[LM_RANK];
  const ast_arg *args;
  uint32_t n;
  int open;     // the argument that is a new name without a size, or -1
  lm_size rest; // what the other axes leave for it
} side;

el_axis *el_sized_axis(el_call_site c, lm_sym name, const ast_expr *size, lm_loc at) {
  el_val s = el_as_size(c.e, el_eval(c.e, size));
  if (s.k == V_ERROR || el_request_unroll(c.e, &s))
    return NULL;
  if (s.k != V_NUM || !s.has_size) {
    if (s.k != V_NUM || s.known)
      err_size(c, at, name, &s);
    return NULL;
  }
  if (s.known && !check_positive(c, at, name, &s))
    return NULL;
  el_axis *axis = el_axis_new(c.e, name, s.size, 0);
  el_axis_bind_name(c.e, name, axis);
  return axis;
}

// Sets s->found[i], or s->open.
static bool side_read(el_call_site c, side *s, uint32_t i) {
  const ast_arg *a = &s->args[i];
  if (a->kind == ARG_NAMED)
    return (s->found[i] = el_sized_axis(c, a->name, a->expr, a->loc)) != NULL;
  if (a->kind != ARG_POS || a->expr->kind != EX_NAME)
    return EL_REJECT(c.e, a->loc, E040);
  s->found[i] = el_axis_lookup(c.e, a->expr->text);
  if (s->found[i])
    return true;
  if (s->open >= 0)
    return EL_REJECT(c.e, a->loc, E058, a->expr->text);
  s->open = (int)i;
  return true;
}

static bool report_sizes(el_call_site c, const side *s, lm_loc at, lm_size total) {
  el_val t = el_sized(total);
  lm_diag *d = EL_ERR(c.e, at, E06F, el_show(c.e, &t));
  for (uint32_t i = 0; i < s->n && i < 3; i++) {
    if ((int)i == s->open)
      continue;
    el_val size = el_sized(s->found[i]->size);
    lm_diag_note(c.e->c, d, (lm_loc){0}, "%s is %s", s->found[i]->name, el_show(c.e, &size));
  }
  return false;
}

// False also if the sizes cannot be compared, which happens only while checking.
static bool side_divide(el_call_site c, side *s, const ast_expr *x, bool multiply) {
  int64_t whole = 1, neutral = multiply ? 1 : 0;
  lm_size total = s->rest;
  for (uint32_t i = 0; i < s->n; i++) {
    if (!side_read(c, s, i))
      return false;
    if (!s->found[i])
      continue;
    lm_size size = s->found[i]->size;
    if (multiply ? !lm_size_div(c.e->a, s->rest, size, &s->rest)
                 : !lm_size_add(c.e->a, s->rest, size, -1, &s->rest))
      return el_size_undecided(c, s->args[i].loc);
  }
  bool decided = lm_size_is_const(s->rest);
  bool fits = lm_size_whole(s->rest, &whole) && (s->open >= 0 ? whole > 0 : whole == neutral);
  return !decided || fits || report_sizes(c, s, x->loc, total);
}

// The axes of x, whose sizes multiply (view) or add up (split) to `total`.
static bool side_axes(el_call_site c, const ast_expr *x, lm_size total, bool multiply,
                      el_axes *out) {
  ast_arg single = {
      .kind = ARG_POS,
      .expr = (ast_expr *)x,
      .loc = x->loc,
  };
  bool many = x->kind == EX_TUPLE || x->kind == EX_LIST;
  side s = {
      .args = many ? x->args : &single,
      .n = many ? x->n_args : 1,
      .open = -1,
      .rest = total,
  };
  if (s.n > LM_RANK || s.n == 0)
    return EL_REJECT(c.e, x->loc, E06E, LM_RANK);
  if (!side_divide(c, &s, x, multiply))
    return false;
  if (s.open >= 0) {
    lm_sym name = s.args[s.open].expr->text;
    s.found[s.open] = el_axis_new(c.e, name, s.rest, 0);
    el_axis_bind_name(c.e, name, s.found[s.open]);
  }
  for (uint32_t i = 0; i < s.n; i++)
    el_axes_push(c.e, out, s.found[i]);
  return true;
}

// ---- view and permute
static void ir_axes(el_call_site c, const el_axes *s, lm_axis *out, uint8_t *n) {
  for (uint32_t i = 0; i < s->n && *n < LM_RANK; i++)
    out[(*n)++] = el_axis_ir(c.e, s->v[i]);
}

static el_val emit_slice(el_call_site c, const el_val *x, el_axis *from, el_axis *to, int64_t first,
                         int64_t step);

// View of the positions while decoding. There is one sequence then, so joining the axis of the
// positions with axes of size 1, or splitting it into such axes, renames it.
static el_val view_positions(el_call_site c, const el_val *x, const el_axes *src, el_axis *from,
                             const el_axes *dst, const el_axes *axes) {
  el_axis *to = NULL;
  el_val v = *x;
  for (uint32_t i = 0; i < dst->n; i++) {
    el_axis *a = dst->v[i];
    bool same = !to && lm_size_equal(a->size, from->size) && (a->dyn == from->dyn || !a->ir);
    int64_t size = 0;
    if (same) {
      to = a;
      a->dyn = from->dyn;
    } else if (!lm_size_whole(a->size, &size) || size != 1) {
      el_moves_positions(c, from, el_positional(c, 1)->loc);
      return el_error();
    }
  }
  if (!to) {
    el_moves_positions(c, from, el_positional(c, 1)->loc);
    return el_error();
  }
  for (uint32_t i = 0; i < src->n && v.k == V_TENSOR; i++)
    if (src->v[i] != from)
      v = emit_slice(c, &v, src->v[i], NULL, 0, 1);
  el_axes one = {0}, now = {0};
  el_axes_push(c.e, &one, from);
  el_axes_push(c.e, &now, to);
  v = el_rename(c.e, &v, &one, &now);
  return el_tensor(v.kind, axes,
                   v.v ? lm_emit_expand(&c.e->b, v.v, el_ir_type(c.e, v.kind, axes)) : NULL);
}

el_val p_view(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> (a, b)");
  el_axes src = {0}, dst = {0};
  c.of = (el_operands){{&x}, 1};
  if (x.k == V_ERROR || !a || !el_arg_axes(c, a->expr, &src))
    return el_error();
  if (src.n == 0)
    return EL_FAIL(c.e, a->loc, E07D);
  lm_size total = lm_size_number(c.e->a, 1);
  for (uint32_t i = 0; i < src.n; i++) {
    if (el_lacks(c, &x, src.v[i], a->loc))
      return el_error();
    if (!lm_size_mul(c.e->a, total, src.v[i]->size, &total)) {
      el_size_undecided(c, a->loc);
      return el_error();
    }
  }
  int at = el_axes_find(&x.axes, src.v[0]);
  for (uint32_t i = 0; i < src.n; i++)
    if (at + i >= x.axes.n || x.axes.v[at + i] != src.v[i]) {
      lm_diag *d = EL_ERR(c.e, a->loc, E060, el_show_axes(c.e, &src), el_show(c.e, &x));
      lm_diag_help(c.e->c, d, "permute first");
      return el_error();
    }
  if (!side_axes(c, a->to, total, true, &dst))
    return el_error();
  el_axes axes = el_spliced(c, &x.axes, (uint32_t)at, src.n, &dst);
  if (!el_distinct(c, &axes))
    return el_error();
  for (uint32_t i = 0; i < src.n; i++)
    if (src.v[i]->micro_batches)
      dst.v[0]->micro_batches = src.v[i]->micro_batches;
  for (uint32_t i = 0; i < src.n; i++)
    if (src.v[i]->dyn)
      return view_positions(c, &x, &src, src.v[i], &dst, &axes);
  lm_attr attr = {0};
  if (c.e->m) {
    ir_axes(c, &src, attr.axes, &attr.n_axes);
    ir_axes(c, &dst, attr.to, &attr.n_to);
  }
  return el_tensor(x.kind, &axes, x.v ? lm_emit(&c.e->b, LM_OP_VIEW, &x.v, 1, &attr, NULL) : NULL);
}

el_val p_permute(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_axes order = {0};
  c.of = (el_operands){{&x}, 1};
  if (x.k == V_ERROR || !el_positional_axes(c, 1, &order))
    return el_error();
  if (order.n != x.axes.n || !el_axes_subset(&order, &x.axes) || !el_axes_subset(&x.axes, &order))
    return EL_FAIL(c.e, el_arg_loc(c, 1), E03B, el_show_axes(c.e, &order), el_show(c.e, &x));
  lm_type t = x.v ? el_ir_type(c.e, x.kind, &order) : (lm_type){0};
  return el_tensor(x.kind, &order, x.v ? lm_emit_permute(&c.e->b, x.v, t.axis, t.rank) : NULL);
}

// ---- rename

// The axis that `from` becomes; NULL: reported.
static el_axis *renamed_axis(el_call_site c, const ast_expr *name, el_axis *from) {
  bool known = el_axis_lookup(c.e, name->text);
  el_axis *to = el_axis_new_or_known(c, name->text, from->size, name->loc);
  if (!to)
    return NULL;
  if (!known) {
    to->dyn = from->dyn;
    to->micro_batches = from->micro_batches;
  } else if (to->dyn != from->dyn) {
    el_moves_positions(c, to->dyn ? to : from, name->loc);
    return NULL;
  }
  return to;
}

// The axes on the right of the arrow, one for each of `from`.
static bool renamed_axes(el_call_site c, const ast_arg *a, const el_axes *from, el_axes *out) {
  const ast_expr *x = a->to;
  bool many = x->kind == EX_TUPLE || x->kind == EX_LIST;
  uint32_t n = many ? x->n_args : 1;
  if (!many && from->n != 1)
    return EL_REJECT(c.e, a->expr->loc, E046, from->n);
  if (n != from->n)
    return EL_REJECT(c.e, a->loc, E051, "rename", "(a, b) -> (c, d)");
  for (uint32_t i = 0; i < n; i++) {
    const ast_expr *name = many ? x->args[i].expr : x;
    bool named = (!many || x->args[i].kind == ARG_POS) && name->kind == EX_NAME;
    if (!named)
      return EL_REJECT(c.e, many ? x->args[i].loc : x->loc, E040);
    el_axis *to = renamed_axis(c, name, from->v[i]);
    if (!to)
      return false;
    el_axes_push(c.e, out, to);
  }
  return true;
}

static el_val renamed(el_call_site c, const el_val *x, const el_axes *from, const el_axes *to,
                      lm_loc at) {
  if (x->k != V_TENSOR) {
    if (x->k != V_ERROR)
      EL_ERR(c.e, el_arg_loc(c, 0), E034, el_show(c.e, x));
    return el_error();
  }
  for (uint32_t i = 0; i < from->n; i++)
    if (el_lacks(c, x, from->v[i], at))
      return el_error();
  el_val y = el_rename(c.e, x, from, to);
  return el_distinct(c, &y.axes) ? y : el_error();
}

el_val p_rename(el_call_site c) {
  el_val x = el_arg(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "a -> b");
  el_axes from = {0}, to = {0};
  if (x.k == V_ERROR || !a || !el_arg_axes(c, a->expr, &from))
    return el_error();
  if (!renamed_axes(c, a, &from, &to))
    return el_error();
  if (x.k != V_TUPLE)
    return renamed(c, &x, &from, &to, a->loc);
  el_val *items = LM_NEW_N(c.e->a, el_val, x.n + 1);
  for (uint32_t i = 0; i < x.n; i++)
    items[i] = renamed(c, &x.items[i], &from, &to, a->loc);
  return el_tuple(c.e, items, x.n);
}

// A whole number at compile time; *out is unchanged if the argument is missing.
static bool int_arg(el_call_site c, uint32_t i, int64_t *out) {
  if (!el_positional(c, i))
    return true;
  el_val v = el_as_size(c.e, el_arg(c, i));
  if (v.k == V_NUM && v.has_size && lm_size_whole(v.size, out))
    return true;
  if (v.k != V_ERROR && !(v.k == V_NUM && !v.known) && !el_request_unroll(c.e, &v))
    EL_ERR(c.e, el_arg_loc(c, i), E055, el_show(c.e, &v));
  return false;
}

static el_val emit_slice(el_call_site c, const el_val *x, el_axis *from, el_axis *to, int64_t first,
                         int64_t step) {
  el_axes now = {0};
  if (to)
    el_axes_push(c.e, &now, to);
  el_axes axes = el_spliced(c, &x->axes, (uint32_t)el_axes_find(&x->axes, from), 1, &now);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_attr attr = {.imm = {first, step}, .n_imm = 2, .n_axes = 1};
  if (x->v) {
    attr.axes[0] = el_axis_ir(c.e, from);
    if (to) {
      attr.to[0] = el_axis_ir(c.e, to);
      attr.n_to = 1;
    }
  }
  return el_tensor(x->kind, &axes,
                   x->v ? lm_emit(&c.e->b, LM_OP_SLICE, &x->v, 1, &attr, NULL) : NULL);
}

bool el_target_axis(el_call_site c, const ast_expr *x, lm_sym *name, const ast_expr **size) {
  *size = NULL;
  if (x->kind == EX_NAME) {
    *name = x->text;
    return true;
  }
  if (x->kind == EX_TUPLE && x->n_args == 1 && x->args[0].kind == ARG_NAMED) {
    *name = x->args[0].name;
    *size = x->args[0].expr;
    return true;
  }
  return EL_REJECT(c.e, x->loc, E040);
}

el_val p_slice(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> a");
  el_axis *from, *to;
  lm_sym name = NULL;
  const ast_expr *given;
  int64_t first = 0, step = 1, size = 0, n = 0;
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      !el_target_axis(c, a->to, &name, &given))
    return el_error();
  if (el_moves_positions(c, from, a->loc) || !int_arg(c, 2, &first) || !int_arg(c, 3, &step) ||
      !lm_size_whole(from->size, &n))
    return el_error();
  to = given ? NULL : el_axis_lookup(c.e, name);
  if (given) {
    el_val s = el_as_size(c.e, el_eval(c.e, given));
    if (s.k != V_NUM || !s.has_size || !lm_size_whole(s.size, &size))
      return s.k == V_ERROR || el_request_unroll(c.e, &s)
                 ? el_error()
                 : EL_FAIL(c.e, given->loc, E055, el_show(c.e, &s));
  } else if (to) {
    if (!lm_size_whole(to->size, &size))
      return el_error();
  } else {
    size = step > 0 && first >= 0 && first < n ? (n - 1 - first) / step + 1 : 0;
  }
  if (step <= 0 || first < 0 || first >= n || size <= 0 || size - 1 > (n - 1 - first) / step) {
    lm_diag *d = EL_ERR(c.e, a->loc, E061, (long long)size, (long long)first, (long long)step,
                        from->name, (long long)n);
    el_help_sequence(c.e, d, from);
    return el_error();
  }
  if (!to) {
    to = el_axis_new(c.e, name, lm_size_number(c.e->a, size), 0);
    el_axis_bind_name(c.e, name, to);
  }
  return emit_slice(c, &x, from, to, first, step);
}

el_val p_pad(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> a");
  el_axis *from, *to;
  lm_sym name = NULL;
  const ast_expr *given;
  int64_t before = 0, after = 0;
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      !el_target_axis(c, a->to, &name, &given))
    return el_error();
  if (el_moves_positions(c, from, a->loc) || !int_arg(c, 2, &before) || !int_arg(c, 3, &after))
    return el_error();
  lm_size size;
  if (before < 0 || after < 0 || before > LM_ELEMENTS_MAX || after > LM_ELEMENTS_MAX ||
      !lm_size_add(c.e->a, from->size, lm_size_number(c.e->a, before + after), 1, &size))
    return EL_FAIL(c.e, c.x->loc, E0BD, (long long)before, (long long)after);
  if (!(to = el_axis_new_or_known(c, name, size, a->to->loc)))
    return el_error();
  el_axes now = {0};
  el_axes_push(c.e, &now, to);
  el_axes axes = el_spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, from), 1, &now);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_attr attr = {.imm = {before, 1}, .n_imm = 2, .n_axes = 1, .n_to = 1};
  if (x.v) {
    attr.axes[0] = el_axis_ir(c.e, from);
    attr.to[0] = el_axis_ir(c.e, to);
  }
  return el_tensor(x.kind, &axes, x.v ? lm_emit(&c.e->b, LM_OP_PAD, &x.v, 1, &attr, NULL) : NULL);
}

el_val p_split(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> (a, b)");
  el_axis *from;
  el_axes to = {0};
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      el_moves_positions(c, from, a->loc) || !side_axes(c, a->to, from->size, false, &to))
    return el_error();
  el_val *items = LM_NEW_N(c.e->a, el_val, to.n);
  int64_t first = 0, size = 0;
  for (uint32_t i = 0; i < to.n; i++, first += size) {
    size = 0;
    lm_size_whole(to.v[i]->size, &size);
    items[i] = emit_slice(c, &x, from, to.v[i], first, 1);
  }
  return el_tuple(c.e, items, to.n);
}

el_val p_unstack(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_axis *from;
  int64_t n;
  if (x.k == V_ERROR || !el_positional_axis(c, 1, &from) ||
      el_lacks(c, &x, from, el_arg_loc(c, 1)) || el_moves_positions(c, from, el_arg_loc(c, 1)))
    return el_error();
  if (!lm_size_whole(from->size, &n))
    return el_error();
  if (n > 1024)
    return EL_FAIL(c.e, el_arg_loc(c, 1), E062, (long long)n);
  el_val *items = LM_NEW_N(c.e->a, el_val, n);
  for (int64_t i = 0; i < n; i++)
    items[i] = emit_slice(c, &x, from, NULL, i, 1);
  return el_tuple(c.e, items, (uint32_t)n);
}
