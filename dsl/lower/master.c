// master.c - see master.h.
//
//   %u = rng %step, %row, 0, %instance [seed, hash("master/" + name), columns]
//   %r = mul (floor (mul %u, 2^16)), 2^-16        0, 2^-16, … 1 - 2^-16
//   %e = binade %x
//   %k = floor (add (mul (div %x, %e), 2^7), %r)  x / ulp, where ulp is a unit in the last place
//   %y = mul (mul %k, 2^-7), %e
//
// f32 has 16 bits of mantissa more than bf16, so x / e * 2^7 is a multiple of 2^-16 below 2^8: all
// operations are exact except the sum, which is rounded to a multiple of 2^-15 from 2^8 on; that
// is below 2^8 + 1, so its floor is exact too.
#include "dsl/lower/master.h"
#include <math.h>
#include <string.h>

static lm_value *number(lm_elab *e, double v) {
  return lm_emit_const(&e->b, lm_type_make(LM_F32, NULL, 0), v);
}

static lm_value *whole_number(lm_elab *e, int64_t v) {
  return lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), (double)v);
}

// The number of each row of the last axis.
static lm_value *rows_of(lm_elab *e, lm_type t) {
  lm_value *rows = whole_number(e, 0);
  for (int k = 0; k + 1 < t.rank; k++) {
    lm_type line = lm_type_make(LM_INT, &t.axis[k], 1);
    lm_type so_far = lm_type_make(LM_INT, t.axis, k + 1);
    lm_value *at = lm_emit(&e->b, LM_OP_IOTA, NULL, 0, NULL, &line);
    if (!k) {
      rows = at;
      continue;
    }
    rows = lm_emit2(&e->b, LM_OP_MUL, rows, whole_number(e, lm_axis_size(e->m, t.axis[k])));
    rows = lm_emit2(&e->b, LM_OP_ADD, lm_emit_expand(&e->b, rows, so_far), at);
  }
  return rows;
}

static lm_value *uniform(lm_elab *e, lm_type t, const lm_master_draw *draw) {
  const char *stream = lm_arena_printf(e->a, "master/%s", draw->name);
  int64_t columns = t.rank ? lm_axis_size(e->m, t.axis[t.rank - 1]) : 1;
  lm_attr attr = {
      .imm = {(int64_t)e->seed, (int64_t)(lm_hash(stream, strlen(stream), 0) >> 1), columns},
      .n_imm = 3,
  };
  lm_value *rows = rows_of(e, t);
  lm_value *in[] = {draw->step, rows, whole_number(e, 0), draw->instance};
  return lm_emit(&e->b, LM_OP_RNG, in, 4, &attr, &t);
}

lm_value *lm_master_round(lm_elab *e, lm_value *x, const lm_master_draw *draw) {
  lm_builder *b = &e->b;
  lm_value *u = uniform(e, x->type, draw);
  lm_value *steps = lm_emit1(b, LM_OP_FLOOR, lm_emit2(b, LM_OP_MUL, u, number(e, 0x1p16)));
  lm_value *binade = lm_emit1(b, LM_OP_BINADE, x);
  lm_value *some = lm_emit2(b, LM_OP_GT, binade, number(e, 0));
  lm_value *finite = lm_emit2(b, LM_OP_LT, binade, number(e, INFINITY));
  lm_value *scale = number(e, 0x1p7);
  lm_value *units = lm_emit2(b, LM_OP_MUL, lm_emit2(b, LM_OP_DIV, x, binade), scale);
  lm_value *sum = lm_emit2(b, LM_OP_ADD, units, lm_emit2(b, LM_OP_MUL, steps, number(e, 0x1p-16)));
  lm_value *whole = lm_emit1(b, LM_OP_FLOOR, sum);
  lm_value *y = lm_emit2(b, LM_OP_MUL, lm_emit2(b, LM_OP_MUL, whole, number(e, 0x1p-7)), binade);
  y = lm_emit_select(b, finite, y, x);
  return lm_emit_select(b, some, y, number(e, 0));
}
