// levels.c - primitives over a tuple of numbers, the levels: the index of the nearest one, and the
// level of an index. Both are decisions between two halves of the levels, down to one: n - 1
// comparisons and selections of scalars, which every backend computes.
#include "dsl/elab/prim.h"

enum {
  MAX_LEVELS = 256
};

typedef struct levels {
  double limit[MAX_LEVELS]; // leaf i + 1 is chosen above limit[i]
  double leaf[MAX_LEVELS];
  uint32_t n;
} levels;

// False: reported; the number of levels is then 0, or the numbers are unknown while only checking.
static bool levels_read(el_call_site c, levels *out) {
  el_val v = el_arg(c, 1);
  if (v.k == V_ERROR)
    return false;
  bool many = v.k == V_TUPLE && v.n > MAX_LEVELS;
  if (v.k != V_TUPLE || v.n < 2 || many) {
    const char *shown = many ? lm_arena_printf(c.e->a, "a tuple of %u", v.n) : el_show(c.e, &v);
    return EL_REJECT(c.e, el_arg_loc(c, 1), E400, c.x->a->text, MAX_LEVELS, shown);
  }
  for (uint32_t i = 0; i < v.n; i++) {
    if (v.items[i].k == V_ERROR)
      return false;
    if (v.items[i].k != V_NUM || (c.e->m && !v.items[i].known))
      return EL_REJECT(c.e, el_arg_loc(c, 1), E400, c.x->a->text, MAX_LEVELS, el_show(c.e, &v));
    out->leaf[i] = v.items[i].num;
  }
  out->n = v.n;
  return true;
}

static lm_value *choose(lm_builder *b, lm_value *x, const levels *v, uint32_t first, uint32_t last,
                        lm_dtype leaf) {
  if (first == last)
    return lm_emit_const(b, lm_type_make(leaf, NULL, 0), v->leaf[first]);
  uint32_t middle = (first + last) / 2;
  lm_type scalar = lm_type_make((lm_dtype)x->type.dtype, NULL, 0);
  lm_value *above = lm_emit2(b, LM_OP_GT, x, lm_emit_const(b, scalar, v->limit[middle]));
  lm_value *upper = choose(b, x, v, middle + 1, last, leaf);
  lm_value *lower = choose(b, x, v, first, middle, leaf);
  return lm_emit_select(b, above, upper, lower);
}

static el_val chosen(el_call_site c, const el_val *x, const levels *v, el_kind kind) {
  lm_value *r = x->v ? choose(&c.e->b, x->v, v, 0, v->n - 1, el_dtype(c.e, kind)) : NULL;
  return el_tensor(kind, &x->axes, r);
}

// Levels in f32 ascend; halfway between two the lower one is the nearest.
el_val p_nearest(el_call_site c) {
  levels v = {0};
  el_val x = el_arg_tensor(c, 0);
  if (x.k == V_ERROR || !levels_read(c, &v) || !el_floating(c, &x, el_arg_loc(c, 0)))
    return el_error();
  for (uint32_t i = 0; c.e->m && i + 1 < v.n; i++) {
    if ((float)v.leaf[i] >= (float)v.leaf[i + 1])
      return EL_FAIL(c.e, el_arg_loc(c, 1), E401, v.leaf[i + 1], v.leaf[i]);
    v.limit[i] = (float)(0.5 * (v.leaf[i] + v.leaf[i + 1]));
  }
  for (uint32_t i = 0; i < v.n; i++)
    v.leaf[i] = i;
  x = el_adapt(c.e, &x, K_F32, el_arg_loc(c, 0));
  if (x.v)
    x.v = lm_emit_cast(&c.e->b, x.v, LM_F32);
  return chosen(c, &x, &v, K_INT);
}

// An index out of range is the nearest one in range, as that of `gather`.
el_val p_table(el_call_site c) {
  levels v = {0};
  el_val x = el_arg_tensor(c, 0);
  if (x.k == V_ERROR || !levels_read(c, &v))
    return el_error();
  x = el_adapt(c.e, &x, K_INT, el_arg_loc(c, 0));
  if (x.k == V_ERROR)
    return x;
  if (x.kind != K_INT)
    return EL_FAIL(c.e, el_arg_loc(c, 0), E402, el_show(c.e, &x));
  for (uint32_t i = 0; i < v.n; i++)
    v.limit[i] = i;
  return chosen(c, &x, &v, K_F32);
}
