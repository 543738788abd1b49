// fp8.c - the operations that say how a cotangent is rounded (fp8.h).
#include "compiler/ops/fp8.h"

#include <string.h>

#include "compiler/ops/ops.h"

bool shape_straight(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  return lm_type_equal(*out, op->in[1]->type) ||
         lm_why_type(why, m, "the second operand is not ", *out, "");
}

lm_dtype lm_fp8_format_of(const lm_op *op) {
  const int64_t *imm = op->attr.imm;
  if (op->attr.n_imm != 2 && op->attr.n_imm != 3)
    return LM_DTYPES;
  if (imm[0] == 4 && imm[1] == 3)
    return LM_E4M3;
  return imm[0] == 5 && imm[1] == 2 ? LM_E5M2 : LM_DTYPES;
}

lm_fp8_axes lm_fp8_axes_of(const lm_attr *a) {
  lm_fp8_axes out = {.n = a->n_axes};
  memcpy(out.v, a->axes, sizeof out.v);
  return out;
}

int64_t lm_fp8_axes_size(const lm_module *m, const lm_fp8_axes *a) {
  int64_t size = 1;
  for (int i = 0; i < a->n; i++)
    size *= lm_axis_size(m, a->v[i]);
  return size;
}

bool lm_fp8_axes_adjacent(lm_type t, const lm_fp8_axes *a) {
  int at = lm_type_find(t, a->v[0]);
  bool adjacent = at >= 0 && at + a->n <= t.rank;
  for (int i = 1; adjacent && i < a->n; i++)
    adjacent = t.axis[at + i] == a->v[i];
  return adjacent;
}

bool shape_round_cotangent(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  if (op->n_in != 1 && op->n_in != 2)
    return lm_why(why, "takes 1 or 2 operands, not %u", op->n_in);
  *out = op->in[0]->type;
  if (!lm_dtype_is_float(out->dtype))
    return lm_why_type(why, m, "", *out, " is not floating");
  if (lm_fp8_format_of(op) == LM_DTYPES)
    return lm_why(why, "needs [4, 3] or [5, 2]");
  int64_t third = op->attr.n_imm == 3 ? op->attr.imm[2] : 0;
  if (op->attr.n_axes && third < 1)
    return lm_why(why, "the elements of a block are not given");
  if (!op->attr.n_axes && (third < 0 || third >> m->mesh.n))
    return lm_why(why, "%lld is no set of axes of the mesh", (long long)third);
  lm_fp8_axes along = lm_fp8_axes_of(&op->attr);
  if (along.n && !lm_fp8_axes_adjacent(*out, &along))
    return lm_why(why, "the axes are not adjacent in this order");
  if (along.n && !lm_fp8_blocks_fit(lm_fp8_axes_size(m, &along), third))
    return lm_why(why, "the axes are not of whole blocks");
  lm_type scalar = lm_type_make(LM_F32, NULL, 0);
  return op->n_in == 1 || (!op->attr.n_axes && lm_type_equal(op->in[1]->type, scalar)) ||
         lm_why(why, "the scale is not a scalar f32");
}
