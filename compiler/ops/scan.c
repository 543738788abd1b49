// scan.c - the shape rule of scan (compiler/ir/scan.h).
#include "compiler/ir/scan.h"
#include <string.h>
#include "compiler/ops/ops.h"

static bool attributes_fit(const lm_op *op, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (a->n_axes != 1 || a->n_imm != 3 || a->imm[0] < 1 || a->imm[1] < 0 || a->imm[2] < 0 ||
      a->imm[2] > 1)
    return lm_why(why, "needs one axis, and [carries, slices, 0 or 1] with at least one carry");
  if (a->imm[0] > op->n_in || a->imm[1] > op->n_in - a->imm[0])
    return lm_why(why, "has %u operands for %lld carries and %lld slices", op->n_in,
                  (long long)a->imm[0], (long long)a->imm[1]);
  return true;
}

static bool operands_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_region *r = op->body;
  lm_axis t = lm_scan_axis(op);
  if (r->n_args != op->n_in)
    return lm_why(why, "the region has %u arguments for %u operands", r->n_args, op->n_in);
  for (uint32_t i = 0; i < op->n_in; i++) {
    lm_type x = op->in[i]->type;
    lm_type want = x;
    bool slice = lm_scan_operand_is_slice(op, i);
    if (slice && (!x.rank || x.axis[0] != t))
      return lm_why_type(why, m, "the slice ", x, " does not have the scan's axis in front");
    if (slice)
      want = lm_type_inner(x, 1);
    else if (lm_type_find(x, t) >= 0)
      return lm_why_type(why, m, "", x, " has the scan's axis and is no slice");
    if (!lm_type_equal(want, r->args[i]->type))
      return lm_why(why, "argument %u is not of its operand's type", i);
  }
  return true;
}

bool shape_scan(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_op *yield = op->body ? op->body->last : NULL;
  if (!yield || yield->code != LM_OP_YIELD)
    return lm_why(why, "the body does not end with a yield");
  if (!attributes_fit(op, why) || !operands_fit(m, op, why))
    return false;
  if (yield->n_in < lm_scan_carries(op))
    return lm_why(why, "%u values are carried", lm_scan_carries(op));
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_type x = yield->in[i]->type;
    if (i < lm_scan_carries(op)) {
      if (!lm_type_equal(x, op->in[i]->type))
        return lm_why_type(why, m, "the next value of a carry is ", x, "");
      out[i] = x;
      continue;
    }
    if (x.rank == LM_RANK || lm_type_find(x, lm_scan_axis(op)) >= 0)
      return lm_why_type(why, m, "", x, " cannot be stacked along the scan's axis");
    out[i] = lm_type_stacked(lm_scan_axis(op), x);
  }
  return true;
}
