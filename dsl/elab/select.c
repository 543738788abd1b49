// select.c - select(condition, x, y).
//
// Both branches are evaluated, as the result has the axes of both. A branch may compute numbers
// that are not finite if it is not selected, or if its condition is a scalar:
// `select(x < peak, x / peak, (1 - x) / (1 - peak))` with peak = 1.
#include "dsl/elab/prim.h"

static el_val branch(el_call_site c, uint32_t i, const el_val *condition) {
  bool known = condition->k == V_BOOL && condition->known;
  bool dead = known && (condition->num != 0) != (i == 1);
  bool guarded = dead || (!known && condition->axes.n == 0);
  c.e->guarded += guarded;
  c.e->dead += dead;
  c.e->nested++;
  el_val v = el_arg(c, i);
  c.e->nested--;
  c.e->guarded -= guarded;
  c.e->dead -= dead;
  return dead && v.k == V_NUM ? el_whole(c.e, 0) : v; // any number of the right type
}

el_val p_select(el_call_site c) {
  el_val k = el_arg(c, 0);
  el_val x = branch(c, 1, &k);
  el_val y = branch(c, 2, &k);
  if (k.k == V_ERROR || x.k == V_ERROR || y.k == V_ERROR)
    return el_error();
  if (k.k == V_BOOL && x.k == V_NUM && y.k == V_NUM)
    return !k.known ? el_unknown_number() : k.num != 0 ? x : y;
  k = el_as_tensor(c.e, &k, el_arg_loc(c, 0));
  bool xn = x.k != V_TENSOR || x.kind == K_NUM;
  bool yn = y.k != V_TENSOR || y.kind == K_NUM;
  if (x.k == V_NUM || x.k == V_TENSOR)
    x = el_adapt(c.e, &x, xn && !yn ? y.kind : K_NUM, el_arg_loc(c, 1));
  if (y.k == V_NUM || y.k == V_TENSOR)
    y = el_adapt(c.e, &y, x.k == V_TENSOR ? x.kind : K_NUM, el_arg_loc(c, 2));
  x = el_as_tensor(c.e, &x, el_arg_loc(c, 1));
  y = el_as_tensor(c.e, &y, el_arg_loc(c, 2));
  if (k.k == V_ERROR || x.k == V_ERROR || y.k == V_ERROR)
    return el_error();
  if (k.kind != K_BOOL || x.kind != y.kind)
    return EL_FAIL(c.e, c.x->loc, E07E, el_show(c.e, &k), el_show(c.e, &x), el_show(c.e, &y));
  const el_axes *both = el_axes_subset(&y.axes, &x.axes) ? &x.axes : &y.axes;
  const el_axes *all = el_axes_subset(&k.axes, both) ? both : &k.axes;
  if (!el_axes_subset(&x.axes, all) || !el_axes_subset(&y.axes, all) ||
      !el_axes_subset(&x.axes, both)) {
    lm_diag *d = EL_ERR(c.e, c.x->loc, E07C, el_show(c.e, &k), el_show(c.e, &x), el_show(c.e, &y));
    el_note_value(c.e, d, &k);
    return el_error();
  }
  return el_in_order(c, x.kind, all, c.e->m ? lm_emit_select(&c.e->b, k.v, x.v, y.v) : NULL);
}
