// stack.c - primitives that join tensors: stack and concat.
#include "dsl/elab/prim.h"

// The tensors of a tuple argument, adapted to one kind. 0: reported.
static uint32_t tensors(el_call_site c, el_val **out) {
  el_val v = el_arg(c, 0);
  if (v.k == V_ERROR)
    return 0;
  if (v.k != V_TUPLE || v.n == 0 || v.n > LM_RANK) {
    EL_ERR(c.e, el_arg_loc(c, 0), E063, c.x->a->text, LM_RANK, el_show(c.e, &v));
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
      EL_ERR(c.e, el_arg_loc(c, 0), E07F, c.x->a->text, el_show(c.e, &v));
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
    return EL_FAIL(c.e, c.x->loc, E048);
  if (!(axis = el_axis_new_or_known(c, a->expr->text, lm_size_number(c.e->a, n), a->loc)) ||
      (before && !el_one_axis(c, before->expr, &anchor)))
    return el_error();
  const el_axes *base = &xs[0].axes;
  for (uint32_t i = 1; i < n; i++)
    if (xs[i].axes.n != base->n || !el_axes_subset(&xs[i].axes, base))
      return EL_FAIL(c.e, el_arg_loc(c, 0), E03C, el_show(c.e, &xs[0]), el_show(c.e, &xs[i]));
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
    return EL_FAIL(c.e, a->loc, E064, n);
  lm_size total = {0};
  for (uint32_t i = 0; i < n; i++) {
    if (el_lacks(c, &xs[i], src.v[i], a->loc) || el_moves_positions(c, src.v[i], a->loc))
      return el_error();
    if (!lm_size_add(c.e->a, total, src.v[i]->size, 1, &total)) {
      el_size_undecided(c, a->loc);
      return el_error();
    }
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
      return EL_FAIL(c.e, el_arg_loc(c, 0), E03D, el_show(c.e, &xs[0]), el_show(c.e, &xs[i]));
    if (!c.e->m)
      continue;
    in[i] = el_in_order(c, xs[i].kind, &want, xs[i].v).v;
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, src.v[i]);
  }
  return el_tensor(xs[0].kind, &axes,
                   c.e->m ? lm_emit(&c.e->b, LM_OP_CONCAT, in, n, &attr, NULL) : NULL);
}
