// reduce.c - primitives that combine elements along axes: reductions, dot, gather, scatter_add,
// history.
#include "dsl/elab/edit.h"
#include "dsl/elab/prim.h"

// ---- reductions, dot, gather and scatter
static el_val reduce(el_call_site c, lm_opcode op, bool mean) {
  el_val x = el_arg_tensor(c, 0);
  el_axes axes = {0};
  if (x.k == V_ERROR)
    return x;
  c.of = (el_operands){{&x}, 1};
  if (!el_positional(c, 1))
    axes = x.axes;
  else if (!el_positional_axes(c, 1, &axes))
    return el_error();
  if (el_over_elements(c, &axes, c.x->loc) || el_over_nothing(c, &x.axes, &axes, c.x->loc))
    return el_error();
  for (uint32_t i = 0; i < axes.n; i++)
    if (el_lacks(c, &x, axes.v[i], el_arg_loc(c, 1)))
      return el_error();
  if (x.kind == K_BOOL || (mean && x.kind == K_INT))
    return EL_FAIL(c.e, el_arg_loc(c, 0), E05E, c.x->a->text, el_show(c.e, &x));
  el_axes left = el_axes_minus(c.e, &x.axes, &axes);
  if (!x.v || !axes.n)
    return el_tensor(x.kind, &left, x.v);
  lm_type t = el_ir_type(c.e, x.kind, &axes);
  lm_type scalar = lm_type_make((lm_dtype)t.dtype, NULL, 0);
  lm_value *v = lm_emit_reduce(&c.e->b, op, x.v, t.axis, t.rank);
  if (mean) {
    bool dynamic = lm_type_dynamic(c.e->m, t);
    double elements = (double)lm_type_elements(c.e->m, t);
    for (uint32_t i = 0; i < axes.n; i++)
      elements /= axes.v[i]->micro_batches > 1 ? (double)axes.v[i]->micro_batches : 1;
    lm_value *n =
        dynamic ? lm_emit_reduce(&c.e->b, LM_OP_SUM, lm_emit_const(&c.e->b, t, 1), t.axis, t.rank)
                : lm_emit_const(&c.e->b, scalar, elements);
    v = lm_emit2(&c.e->b, LM_OP_DIV, v, n);
  }
  return el_tensor(x.kind, &left, v);
}
el_val p_sum(el_call_site c) {
  return reduce(c, LM_OP_SUM, false);
}
el_val p_max(el_call_site c) {
  return reduce(c, LM_OP_MAX, false);
}
el_val p_mean(el_call_site c) {
  return reduce(c, LM_OP_SUM, true);
}

bool el_dot_axes(el_call_site c, const el_axes *x, const el_axes *w, const el_axes *over,
                 const el_axes *shared, el_axes *out) {
  *out = el_axes_minus(c.e, x, over);
  el_axes own = el_axes_minus(c.e, w, over);
  own = el_axes_minus(c.e, &own, shared);
  for (uint32_t i = 0; i < own.n; i++)
    el_axes_push(c.e, out, own.v[i]);
  return el_distinct(c, out);
}

el_val el_dot(el_call_site c, const el_val *x, const el_val *w, const el_axes *over) {
  el_axes axes;
  if (!el_dot_axes(c, &x->axes, &w->axes, over, &x->axes, &axes))
    return el_error();
  lm_value *v = NULL;
  if (c.e->m) {
    lm_type t = el_ir_type(c.e, x->kind, over);
    v = lm_emit_dot(&c.e->b, x->v, w->v, t.axis, t.rank);
  }
  return el_in_order(c, x->kind, &axes, v);
}

el_val p_dot(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_val w = el_arg_tensor(c, 1);
  el_axes over = {0};
  if (x.k == V_ERROR || w.k == V_ERROR)
    return el_error();
  if (!el_positional(c, 2) || el_positional(c, 2)->kind != ARG_POS)
    return EL_FAIL(c.e, c.x->loc, E05D);
  const ast_expr *list = el_positional(c, 2)->expr;
  c.of = (el_operands){{&x, &w}, 2};
  if (!el_arg_axes(c, list, &over))
    return el_error();
  for (uint32_t i = 0; i < over.n; i++) {
    const el_val *lacking = !el_axes_has(&x.axes, over.v[i])   ? &x
                            : !el_axes_has(&w.axes, over.v[i]) ? &w
                                                               : NULL;
    if (!lacking)
      continue;
    lm_diag *d = EL_ERR(c.e, el_arg_loc(c, lacking == &x ? 0 : 1), E031, "dot");
    lm_diag_label(c.e->c, d, "%s has no axis '%s'", el_show(c.e, lacking), over.v[i]->name);
    el_note_value(c.e, d, &x);
    el_note_value(c.e, d, &w);
    return el_error();
  }
  if (x.kind == K_NUM && w.kind != K_NUM)
    x = el_adapt(c.e, &x, w.kind, el_arg_loc(c, 0));
  if (w.kind == K_NUM)
    w = el_adapt(c.e, &w, x.kind == K_NUM ? K_F32 : x.kind, el_arg_loc(c, 1));
  if (x.kind == K_NUM)
    x = el_adapt(c.e, &x, K_F32, el_arg_loc(c, 0));
  if (x.kind != w.kind || !el_floating(c, &x, el_arg_loc(c, 0))) {
    if (x.kind != w.kind)
      lm_diag_help(c.e->c, EL_ERR(c.e, c.x->loc, E036, "dot", el_show(c.e, &x), el_show(c.e, &w)),
                   "cast one: f32(…) or real(…)");
    return el_error();
  }
  el_val grouped;
  if (el_dot_of_groups(c, &x, &w, &over, &grouped))
    return grouped;
  el_val y = el_dot(c, &x, &w, &over);
  return el_dot_edited(c, (el_use){&x, &w, &over, NULL}, y);
}

static el_val index_has_axis(el_call_site c, const el_val *index, const el_axis *v) {
  lm_diag *d = EL_ERR(c.e, el_arg_loc(c, 1), E07A, el_show(c.e, index), v->name);
  lm_diag_help(c.e->c, d,
               "rename the axis of the table: gather(rename(table, %s -> row), index, row)",
               v->name);
  return el_error();
}

el_val p_gather(el_call_site c) {
  el_val t = el_arg_tensor(c, 0);
  el_val i = el_arg_tensor(c, 1);
  el_axis *v;
  if (t.k == V_ERROR || i.k == V_ERROR || !el_positional_axis(c, 2, &v) ||
      el_lacks(c, &t, v, el_arg_loc(c, 2)))
    return el_error();
  i = el_adapt(c.e, &i, K_INT, el_arg_loc(c, 1));
  if (i.k == V_ERROR || i.kind != K_INT)
    return i.k == V_ERROR ? i : EL_FAIL(c.e, el_arg_loc(c, 1), E05F, el_show(c.e, &i));
  if (t.kind == K_NUM)
    t = el_adapt(c.e, &t, K_F32, el_arg_loc(c, 0));
  el_gather_record(c.e, &t, v, c.x->loc);
  if (el_axes_find(&i.axes, v) >= 0)
    return index_has_axis(c, &i, v);
  el_axes one = {0}, axes = i.axes;
  el_axes_push(c.e, &one, v);
  el_axes rest = el_axes_minus(c.e, &t.axes, &one);
  el_axes own = el_axes_minus(c.e, &rest, &i.axes);
  if (own.n != rest.n && own.n) {
    lm_diag *d = EL_ERR(c.e, c.x->loc, E065, el_show(c.e, &t), el_show(c.e, &i));
    el_note_value(c.e, d, &t);
    return el_error();
  }
  for (uint32_t k = 0; k < own.n; k++)
    el_axes_push(c.e, &axes, own.v[k]);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_attr attr = {.n_axes = 1};
  if (c.e->m)
    attr.axes[0] = el_axis_ir(c.e, v);
  return el_in_order(
      c, t.kind, &axes,
      c.e->m ? lm_emit(&c.e->b, LM_OP_GATHER, (lm_value *[]){t.v, i.v}, 2, &attr, NULL) : NULL);
}

// The updates with the index's axes first and in its order, as the IR has them.
static lm_value *updates_ordered(el_call_site c, const el_val *x, const el_axes *index,
                                 const el_axes *rest) {
  el_axes order = *index;
  for (uint32_t k = 0; k < rest->n; k++)
    el_axes_push(c.e, &order, rest->v[k]);
  lm_type t = el_ir_type(c.e, x->kind, &order);
  return lm_emit_permute(&c.e->b, x->v, t.axis, t.rank);
}

el_val p_scatter_add(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_val i = el_arg_tensor(c, 1);
  el_axis *v;
  if (x.k == V_ERROR || i.k == V_ERROR || !el_positional_axis(c, 2, &v))
    return el_error();
  if (i.kind != K_INT || !el_axes_subset(&i.axes, &x.axes))
    return EL_FAIL(c.e, c.x->loc, E0AC, el_show(c.e, &x), el_show(c.e, &i));
  if (el_over_elements(c, &i.axes, c.x->loc))
    return el_error();
  if (el_axes_has(&i.axes, v))
    return EL_FAIL(c.e, el_arg_loc(c, 2), E0AD, v->name);
  el_axes axes = {0}, rest = el_axes_minus(c.e, &x.axes, &i.axes);
  el_axes_push(c.e, &axes, v);
  for (uint32_t k = 0; k < rest.n; k++)
    el_axes_push(c.e, &axes, rest.v[k]);
  if (!el_distinct(c, &axes))
    return el_error();
  lm_attr attr = {.n_axes = 1};
  lm_type t = {0};
  if (c.e->m) {
    attr.axes[0] = el_axis_ir(c.e, v);
    t = el_ir_type(c.e, x.kind, &axes);
    x.v = updates_ordered(c, &x, &i.axes, &rest);
  }
  return el_tensor(x.kind, &axes,
                   c.e->m ? lm_emit(&c.e->b, LM_OP_SCATTER, (lm_value *[]){x.v, i.v}, 2, &attr, &t)
                          : NULL);
}

// ---- positions

// The cache with x at the position of the call. axes: those of x with s for t. NULL: too many axes.
static lm_value *append_to_cache(lm_elab *e, const el_val *x, const el_axes *axes, el_axis *t,
                                 el_axis *s) {
  el_cache c;
  if (!el_cache_make(e, el_ir_type(e, x->kind, axes), &c))
    return NULL;
  c.attr.n_axes = c.attr.n_to = 1;
  c.attr.axes[0] = el_axis_ir(e, t);
  c.attr.to[0] = el_axis_ir(e, s);
  c.in[c.n++] = e->at;
  c.in[c.n++] = x->v;
  return lm_emit(&e->b, LM_OP_APPEND, c.in, c.n, &c.attr, NULL);
}

static el_val history(lm_elab *e, const el_val *v, el_axis *t, el_axis *s, lm_loc at) {
  if (v->k != V_TENSOR) {
    if (v->k != V_ERROR)
      EL_ERR(e, at, E066, el_show(e, v));
    return el_error();
  }
  if (!el_axes_has(&v->axes, t)) {
    lm_diag *d = EL_ERR(e, at, E031, "history");
    lm_diag_label(e->c, d, "%s has no axis '%s'", el_show(e, v), t->name);
    return el_error();
  }
  el_val x = el_adapt(e, v, K_F32, at);
  el_axes axes = {0};
  for (uint32_t i = 0; i < x.axes.n; i++)
    el_axes_push(e, &axes, x.axes.v[i] == t ? s : x.axes.v[i]);
  if (!x.v)
    return el_tensor(x.kind, &axes, NULL);
  if (e->mode == EL_DECODE && el_axis_ir(e, t) == e->position) {
    lm_value *all = append_to_cache(e, &x, &axes, t, s);
    if (!all)
      return EL_FAIL(e, at, E06D, LM_RANK);
    return el_tensor(x.kind, &axes, all);
  }
  lm_attr attr = {
      .n_axes = 1,
      .n_to = 1,
  };
  attr.axes[0] = el_axis_ir(e, t);
  attr.to[0] = el_axis_ir(e, s);
  return el_tensor(x.kind, &axes, lm_emit(&e->b, LM_OP_HISTORY, &x.v, 1, &attr, NULL));
}

bool el_is_positions(lm_elab *e, el_axis *t) {
  if (e->m)
    return e->mode != EL_UPDATE && el_axis_ir(e, t) == e->position;
  for (el_axis_bind *b = e->frame->self ? e->frame->self->inst->axes : NULL; b; b = b->up)
    if (b->axis == t)
      return false;
  return e->mode != EL_UPDATE;
}

static void report_not_positions(lm_elab *e, const el_axis *t, lm_loc at) {
  lm_diag *d = EL_ERR(e, at, E0D5, t->name);
  lm_diag_help(e->c, d, "it is the last axis of tok, pos and seg: t in apply(tok: int[b, t], …)");
}

el_val p_history(el_call_site c) {
  lm_elab *e = c.e;
  el_val v = el_arg(c, 0);
  const ast_arg *a = el_arg_arrow(c, 1, "t -> s");
  el_axis *t;
  if (v.k == V_ERROR || !a || !el_one_axis(c, a->expr, &t))
    return el_error();
  if (!el_arrow_name(c, a))
    return el_error();
  if (e->in_library)
    e->library_failed = true;
  bool cached = e->m && e->mode == EL_DECODE && el_axis_ir(e, t) == e->position;
  lm_size size = cached ? lm_size_number(e->a, e->capacity) : t->size;
  el_axis *s = el_axis_lookup(e, a->to->text);
  if (s && (!lm_size_equal(s->size, size) || s->dyn != (cached ? e->history_dyn : t->dyn)))
    return EL_FAIL(e, a->to->loc, E067, a->to->text);
  if (s == t)
    return EL_FAIL(e, a->to->loc, E06A, t->name);
  if (!el_is_positions(e, t)) {
    report_not_positions(e, t, a->loc);
    return el_error();
  }
  if (!s) {
    s = el_axis_new(e, a->to->text, size, cached ? e->history_dyn : t->dyn);
    el_axis_bind_name(e, a->to->text, s);
  }
  s->history = true;
  if (v.k != V_TUPLE)
    return history(e, &v, t, s, el_arg_loc(c, 0));
  el_val *items = LM_NEW_N(e->a, el_val, v.n + 1);
  for (uint32_t i = 0; i < v.n; i++)
    items[i] = history(e, &v.items[i], t, s, el_arg_loc(c, 0));
  return el_tuple(e, items, v.n);
}
