// shape.c - primitives that move elements: expand, view, permute, rename, slice, pad, split,
// concat, stack, unstack.
#include "dsl/elab/prim.h"

// ---- shape
el_val p_expand(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *before = el_named(c, "before");
  el_axis *anchor = NULL;
  if (x.k == V_ERROR || (before && !el_one_axis(c, before->expr, &anchor)))
    return el_error();
  if (anchor && el_lacks(c, &x, anchor, before->loc))
    return el_error();
  el_axes axes = {0}, fresh = {0};
  bool seen = false;
  for (uint32_t k = 0; k < c.x->n_args; k++) {
    const ast_arg *a = &c.x->args[k];
    if (a == before || (a->kind == ARG_POS && !seen)) {
      seen |= a != before;
      continue;
    }
    if (a->kind == ARG_NAMED) {
      el_val n = el_eval(c.e, a->expr);
      if (n.k == V_ERROR)
        return n;
      if (el_request_unroll(c.e, &n))
        return el_error();
      if (n.k != V_NUM || (!n.has_size && n.known))
        return el_fail(c.e, a->loc, "E055", "the size of '%s' should be a whole number, got %s",
                       a->name, el_show(c.e, &n));
      el_axis *axis =
          el_axis_new(c.e, a->name, n.has_size ? n.size : lm_size_dim(c.e->a, a->name), 0);
      int64_t whole;
      if (c.e->m && (!lm_size_whole(axis->size, &whole) || whole <= 0))
        return el_fail(c.e, a->loc, "E055", "axis '%s' of size %s", a->name, el_show(c.e, &n));
      el_axis_bind_name(c.e, a->name, axis);
      el_axes_push(c.e, &fresh, axis);
    } else if (a->kind != ARG_POS || !el_arg_axes(c, a->expr, &fresh)) {
      return el_error();
    }
  }
  for (uint32_t i = 0; i < fresh.n; i++)
    if (el_axes_has(&x.axes, fresh.v[i]) || el_axes_find(&fresh, fresh.v[i]) < (int)i)
      return el_fail(c.e, c.x->loc, "E056", "%s has axis '%s' already", el_show(c.e, &x),
                     fresh.v[i]->name);
  for (uint32_t i = 0; i <= x.axes.n; i++) {
    bool here = anchor ? i < x.axes.n && x.axes.v[i] == anchor : i == x.axes.n;
    for (uint32_t k = 0; here && k < fresh.n; k++)
      el_axes_push(c.e, &axes, fresh.v[k]);
    if (i < x.axes.n)
      el_axes_push(c.e, &axes, x.axes.v[i]);
  }
  if (axes.n > LM_RANK)
    return el_fail(c.e, c.x->loc, "E057", "more than %d axes", LM_RANK);
  return el_tensor(x.kind, &axes,
                   x.v ? lm_emit_expand(&c.e->b, x.v, el_ir_type(c.e, x.kind, &axes)) : NULL);
}

// Right-hand side of view and split: known axes, `name = size`, and at most one new name whose size
// the others leave.
static bool parts(el_call_site c, const ast_expr *x, lm_size total, bool product, el_axes *out) {
  lm_elab *e = c.e;
  ast_arg single = {.kind = ARG_POS, .expr = (ast_expr *)x, .loc = x->loc};
  bool many = x->kind == EX_TUPLE || x->kind == EX_LIST;
  const ast_arg *args = many ? x->args : &single;
  uint32_t n = many ? x->n_args : 1;
  int open = -1;
  lm_size rest = total;
  el_axis *found[LM_RANK];
  if (n > LM_RANK || n == 0)
    return el_reject(e, x->loc, "E057", "expected 1 to %d axes", LM_RANK);
  for (uint32_t i = 0; i < n; i++) {
    if (args[i].kind == ARG_NAMED) {
      el_val s = el_eval(e, args[i].expr);
      if (s.k == V_ERROR)
        return false;
      if (el_request_unroll(e, &s))
        return false;
      if (s.k != V_NUM || !s.has_size)
        return s.k == V_NUM && !s.known
                   ? false
                   : el_reject(e, args[i].loc, "E055",
                               "the size of '%s' should be a whole number, got %s", args[i].name,
                               el_show(e, &s));
      if (s.known && s.num < 1)
        return el_reject(e, args[i].loc, "E055", "axis '%s' of size %s", args[i].name,
                         el_show(e, &s));
      found[i] = el_axis_new(e, args[i].name, s.size, 0);
      el_axis_bind_name(e, args[i].name, found[i]);
    } else if (args[i].kind == ARG_POS && args[i].expr->kind == EX_NAME) {
      found[i] = el_axis_lookup(e, args[i].expr->text);
      if (!found[i] && open >= 0)
        return el_reject(e, args[i].loc, "E058",
                         "two axes of unknown size; give one as `%s = size`", args[i].expr->text);
      if (!found[i]) {
        open = (int)i;
        continue;
      }
    } else
      return el_reject(e, args[i].loc, "E040", "expected the name of an axis");
    bool ok = product ? lm_size_div(e->a, rest, found[i]->size, &rest)
                      : lm_size_add(e->a, rest, found[i]->size, -1, &rest);
    if (!ok)
      return false; // undecided while only checking
  }
  int64_t whole = 1;
  bool decided = lm_size_is_const(rest);
  bool fits = lm_size_whole(rest, &whole) && (open >= 0 ? whole > 0 : whole == (product ? 1 : 0));
  if (decided && !fits) {
    el_val t = el_sized(total);
    lm_diag *d = el_err(e, x->loc, "E059", "these axes do not make %s", el_show(e, &t));
    for (uint32_t i = 0; i < n && i < 3; i++)
      if ((int)i != open)
        lm_diag_note(e->c, d, (lm_loc){0}, "%s is %s", found[i]->name,
                     el_show(e, &(el_val[]){el_sized(found[i]->size)}[0]));
    return false;
  }
  if (open >= 0) {
    lm_sym name = args[open].expr->text;
    found[open] = el_axis_new(e, name, rest, 0);
    el_axis_bind_name(e, name, found[open]);
  }
  for (uint32_t i = 0; i < n; i++)
    el_axes_push(e, out, found[i]);
  return true;
}

static void ir_axes(el_call_site c, const el_axes *s, lm_axis *out, uint8_t *n) {
  for (uint32_t i = 0; i < s->n && *n < LM_RANK; i++)
    out[(*n)++] = el_axis_ir(c.e, s->v[i]);
}

static el_val emit_slice(el_call_site c, const el_val *x, el_axis *from, el_axis *to, int64_t first,
                         int64_t step);

// While decoding, places stand in one row: joining them with axes of size 1, or taking them apart
// again, renames them.
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
  if (x.k == V_ERROR || !a || !el_arg_axes(c, a->expr, &src) || src.n == 0)
    return el_error();
  lm_size total = lm_size_number(c.e->a, 1);
  for (uint32_t i = 0; i < src.n; i++) {
    if (el_lacks(c, &x, src.v[i], a->loc))
      return el_error();
    if (!lm_size_mul(c.e->a, total, src.v[i]->size, &total))
      return el_error();
  }
  int at = el_axes_find(&x.axes, src.v[0]);
  for (uint32_t i = 0; i < src.n; i++)
    if (at + i >= x.axes.n || x.axes.v[at + i] != src.v[i]) {
      lm_diag *d = el_err(c.e, a->loc, "E060", "%s do not stand side by side in %s",
                          el_show_axes(c.e, &src), el_show(c.e, &x));
      lm_diag_help(c.e->c, d, "permute first");
      return el_error();
    }
  if (!parts(c, a->to, total, true, &dst))
    return el_error();
  el_axes axes = el_spliced(c, &x.axes, (uint32_t)at, src.n, &dst);
  if (!el_distinct(c, &axes))
    return el_error();
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
  if (x.k == V_ERROR || !el_positional(c, 1) || el_positional(c, 1)->kind != ARG_POS ||
      !el_arg_axes(c, el_positional(c, 1)->expr, &order))
    return el_error();
  if (order.n != x.axes.n || !el_axes_subset(&order, &x.axes) || !el_axes_subset(&x.axes, &order))
    return el_fail(c.e, el_arg_loc(c, 1), "E031", "%s is no order of %s", el_show_axes(c.e, &order),
                   el_show(c.e, &x));
  lm_type t = x.v ? el_ir_type(c.e, x.kind, &order) : (lm_type){0};
  return el_tensor(x.kind, &order, x.v ? lm_emit_permute(&c.e->b, x.v, t.axis, t.rank) : NULL);
}

el_val p_rename(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "a -> b");
  el_axis *from, *to;
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc))
    return el_error();
  if (a->to->kind != EX_NAME)
    return el_fail(c.e, a->to->loc, "E040", "expected the name of an axis");
  bool known = el_axis_lookup(c.e, a->to->text);
  if (!(to = el_axis_new_or_known(c, a->to->text, from->size, a->to->loc)))
    return el_error();
  if (!known)
    to->dyn = from->dyn;
  else if (to->dyn != from->dyn) {
    el_moves_positions(c, to->dyn ? to : from, a->to->loc);
    return el_error();
  }
  el_axes f = {0}, t = {0}, now = x.axes;
  el_axes_push(c.e, &f, from);
  el_axes_push(c.e, &t, to);
  now = el_spliced(c, &x.axes, (uint32_t)el_axes_find(&x.axes, from), 1, &t);
  return el_distinct(c, &now) ? el_rename(c.e, &x, &f, &t) : el_error();
}

static bool int_arg(el_call_site c, uint32_t i, int64_t *out) {
  if (!el_positional(c, i))
    return true;
  el_val v = el_arg(c, i);
  if (v.k == V_NUM && v.has_size && lm_size_whole(v.size, out))
    return true;
  if (v.k != V_ERROR && !(v.k == V_NUM && !v.known) && !el_request_unroll(c.e, &v))
    el_err(c.e, el_arg_loc(c, i), "E055", "expected a whole number, got %s", el_show(c.e, &v));
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

// The name on the right of slice and pad, alone or as (a = n).
static bool target(el_call_site c, const ast_expr *x, lm_sym *name, const ast_expr **size) {
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
  return el_reject(c.e, x->loc, "E040", "expected the name of an axis");
}

el_val p_slice(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "e -> a");
  el_axis *from, *to;
  lm_sym name;
  const ast_expr *given;
  int64_t first = 0, step = 1, size = 0, n = 0;
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      !target(c, a->to, &name, &given))
    return el_error();
  if (el_moves_positions(c, from, a->loc) || !int_arg(c, 2, &first) || !int_arg(c, 3, &step) ||
      !lm_size_whole(from->size, &n))
    return el_error();
  to = given ? NULL : el_axis_lookup(c.e, name);
  if (given) {
    el_val s = el_eval(c.e, given);
    if (s.k != V_NUM || !s.has_size || !lm_size_whole(s.size, &size))
      return s.k == V_ERROR || el_request_unroll(c.e, &s)
                 ? el_error()
                 : el_fail(c.e, given->loc, "E055", "expected a whole number, got %s",
                           el_show(c.e, &s));
  } else if (to) {
    if (!lm_size_whole(to->size, &size))
      return el_error();
  } else {
    size = step > 0 && first >= 0 && first < n ? (n - 1 - first) / step + 1 : 0;
  }
  if (step <= 0 || first < 0 || first >= n || size <= 0 || size - 1 > (n - 1 - first) / step)
    return el_fail(
        c.e, a->loc, "E061",
        "%lld places from %lld on, in steps of %lld, are not all inside axis '%s' of size %lld",
        (long long)size, (long long)first, (long long)step, from->name, (long long)n);
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
  lm_sym name;
  const ast_expr *given;
  int64_t before = 0, after = 0;
  if (x.k == V_ERROR || !a || !el_one_axis(c, a->expr, &from) || el_lacks(c, &x, from, a->loc) ||
      !target(c, a->to, &name, &given))
    return el_error();
  if (el_moves_positions(c, from, a->loc) || !int_arg(c, 2, &before) || !int_arg(c, 3, &after))
    return el_error();
  lm_size size;
  if (before < 0 || after < 0 || before > LM_ELEMENTS_MAX || after > LM_ELEMENTS_MAX ||
      !lm_size_add(c.e->a, from->size, lm_size_number(c.e->a, before + after), 1, &size))
    return el_fail(c.e, c.x->loc, "E061",
                   "pad takes 0 or more places before and after, got %lld and %lld",
                   (long long)before, (long long)after);
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
      el_moves_positions(c, from, a->loc) || !parts(c, a->to, from->size, false, &to))
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
  if (x.k == V_ERROR || !el_positional(c, 1) || el_positional(c, 1)->kind != ARG_POS ||
      !el_one_axis(c, el_positional(c, 1)->expr, &from) ||
      el_lacks(c, &x, from, el_arg_loc(c, 1)) || el_moves_positions(c, from, el_arg_loc(c, 1)))
    return el_error();
  if (!lm_size_whole(from->size, &n))
    return el_error();
  if (n > 1024)
    return el_fail(c.e, el_arg_loc(c, 1), "E062", "unstack of %lld parts", (long long)n);
  el_val *items = LM_NEW_N(c.e->a, el_val, n);
  for (int64_t i = 0; i < n; i++)
    items[i] = emit_slice(c, &x, from, NULL, i, 1);
  return el_tuple(c.e, items, (uint32_t)n);
}

// The tensors of a tuple argument, brought to one kind; 0: reported.
static uint32_t tensors(el_call_site c, el_val **out) {
  el_val v = el_arg(c, 0);
  if (v.k == V_ERROR)
    return 0;
  if (v.k != V_TUPLE || v.n == 0 || v.n > LM_RANK) {
    el_err(c.e, el_arg_loc(c, 0), "E063", "%s takes a tuple of 1 to %d tensors, got %s",
           c.x->a->text, LM_RANK, el_show(c.e, &v));
    return 0;
  }
  el_kind kind = K_NUM;
  for (uint32_t i = 0; i < v.n; i++)
    if (v.items[i].k == V_TENSOR && v.items[i].kind != K_NUM)
      kind = v.items[i].kind;
  for (uint32_t i = 0; i < v.n; i++) {
    v.items[i] = el_adapt(c.e, &v.items[i], kind == K_NUM ? K_F32 : kind, el_arg_loc(c, 0));
    if (v.items[i].k == V_ERROR)
      return 0;
    if (v.items[i].kind != v.items[0].kind) {
      el_err(c.e, el_arg_loc(c, 0), "E036", "%s of %s: types are never promoted", c.x->a->text,
             el_show(c.e, &v));
      return 0;
    }
  }
  *out = v.items;
  return v.n;
}

el_val p_stack(el_call_site c) {
  el_val *xs = NULL;
  uint32_t n = tensors(c, &xs);
  const ast_arg *a = el_positional(c, 1);
  const ast_arg *before = el_named(c, "before");
  el_axis *axis, *anchor = NULL;
  if (!n)
    return el_error();
  if (!a || a->kind != ARG_POS || a->expr->kind != EX_NAME)
    return el_fail(c.e, c.x->loc, "E040", "stack takes the name of the new axis");
  if (!(axis = el_axis_new_or_known(c, a->expr->text, lm_size_number(c.e->a, n), a->loc)) ||
      (before && !el_one_axis(c, before->expr, &anchor)))
    return el_error();
  const el_axes *base = &xs[0].axes;
  for (uint32_t i = 1; i < n; i++)
    if (xs[i].axes.n != base->n || !el_axes_subset(&xs[i].axes, base))
      return el_fail(c.e, el_arg_loc(c, 0), "E031", "stack of %s and %s", el_show(c.e, &xs[0]),
                     el_show(c.e, &xs[i]));
  if (anchor && el_lacks(c, &xs[0], anchor, before->loc))
    return el_error();
  uint32_t at = anchor ? (uint32_t)el_axes_find(base, anchor) : base->n;
  el_axes now = {0}, unit = {0};
  el_axes_push(c.e, &now, axis);
  el_axes axes = el_spliced(c, base, at, 0, &now);
  if (!el_distinct(c, &axes))
    return el_error();
  if (!c.e->m)
    return el_tensor(xs[0].kind, &axes, NULL);
  el_axis *one = el_axis_new(c.e, LM_SYM(c.e->c, "one"), lm_size_number(c.e->a, 1), 0);
  el_axes_push(c.e, &unit, one);
  el_axes wide = el_spliced(c, base, at, 0, &unit);
  lm_attr attr = {.n_to = 1};
  attr.to[0] = el_axis_ir(c.e, axis);
  lm_value *in[LM_RANK];
  for (uint32_t i = 0; i < n; i++) {
    el_val p = el_in_order(c, xs[i].kind, base, xs[i].v);
    in[i] = lm_emit_expand(&c.e->b, p.v, el_ir_type(c.e, p.kind, &wide));
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, one);
  }
  return el_tensor(xs[0].kind, &axes, lm_emit(&c.e->b, LM_OP_CONCAT, in, n, &attr, NULL));
}

el_val p_concat(el_call_site c) {
  el_val *xs = NULL;
  uint32_t n = tensors(c, &xs);
  const ast_arg *a = n ? el_arg_arrow(c, 1, "(a, b) -> e") : NULL;
  el_axes src = {0}, now = {0};
  if (!a || !el_arg_axes(c, a->expr, &src))
    return el_error();
  if (src.n != n || a->to->kind != EX_NAME)
    return el_fail(c.e, a->loc, "E064", "concat of %u tensors takes %u axes -> one", n, n);
  lm_size total = {0};
  for (uint32_t i = 0; i < n; i++) {
    if (el_lacks(c, &xs[i], src.v[i], a->loc) || el_moves_positions(c, src.v[i], a->loc))
      return el_error();
    if (!lm_size_add(c.e->a, total, src.v[i]->size, 1, &total))
      return el_error();
  }
  el_axis *axis = el_axis_new_or_known(c, a->to->text, total, a->to->loc);
  if (!axis)
    return el_error();
  uint32_t at = (uint32_t)el_axes_find(&xs[0].axes, src.v[0]);
  el_axes_push(c.e, &now, axis);
  el_axes axes = el_spliced(c, &xs[0].axes, at, 1, &now);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_attr attr = {.n_to = 1};
  lm_value *in[LM_RANK];
  if (c.e->m)
    attr.to[0] = el_axis_ir(c.e, axis);
  for (uint32_t i = 0; i < n; i++) {
    el_axes own = {0};
    el_axes_push(c.e, &own, src.v[i]);
    el_axes want = el_spliced(c, &xs[0].axes, at, 1, &own);
    if (want.n != xs[i].axes.n || !el_axes_subset(&want, &xs[i].axes))
      return el_fail(c.e, el_arg_loc(c, 0), "E031", "concat of %s and %s", el_show(c.e, &xs[0]),
                     el_show(c.e, &xs[i]));
    if (!c.e->m)
      continue;
    in[i] = el_in_order(c, xs[i].kind, &want, xs[i].v).v;
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, src.v[i]);
  }
  return el_tensor(xs[0].kind, &axes,
                   c.e->m ? lm_emit(&c.e->b, LM_OP_CONCAT, in, n, &attr, NULL) : NULL);
}
