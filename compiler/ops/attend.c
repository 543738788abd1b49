// attend.c - the shape rules of softmax attention. compiler/passes/attend/attend.c defines both
// operations.
#include <string.h>
#include "compiler/ir/attend.h"
#include "compiler/ops/ops.h"

static bool region_op_fits(const lm_op *attend, const lm_op *op) {
  switch (op->code) {
  case LM_OP_KERNEL:
  case LM_OP_RENAME: return attend->code == LM_OP_ATTEND_VJP;
  case LM_OP_DOT:
  case LM_OP_SUM:
  case LM_OP_PERMUTE:
  case LM_OP_RNG:
  case LM_OP_YIELD: return true;
  default: return lm_op_info_of(op)->traits & LM_T_ELEMENTWISE;
  }
}

static bool region_fits(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_region *r = op->body;
  uint32_t lead = op->code == LM_OP_ATTEND_VJP;
  if (r->n_args != op->n_in + lead)
    return lm_why(why, "the region has %u arguments for %u operands", r->n_args, op->n_in);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_type_equal(op->in[i]->type, r->args[i + lead]->type))
      return lm_why(why, "argument %u is not of its operand's type", i);
  for (const lm_op *o = r->first; o; o = o->next)
    if (!region_op_fits(op, o))
      return lm_why(why, "%s is not allowed in the region", lm_op_info_of(o)->name);
  if (!r->last || r->last->code != LM_OP_YIELD || r->last->n_in < LM_ATTEND_COTANGENTS)
    return lm_why(why, "the region does not yield score, mask and factor");
  return !lead || lm_type_equal(r->args[0]->type, lm_attend_space(op)) ||
         lm_why(why, "the cotangent is not of the score's type");
}

static bool yields_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  lm_type score = lm_attend_space(op);
  lm_type mask = lm_attend_yield(op, LM_ATTEND_MASK)->type;
  lm_type factor = lm_attend_yield(op, LM_ATTEND_FACTOR)->type;
  if (!lm_dtype_is_float(score.dtype) || !lm_attend_tiled(op, score))
    return lm_why_type(why, m, "the score is ", score, "");
  if (mask.dtype != LM_BOOL || !lm_type_subset(mask, score))
    return lm_why_type(why, m, "the mask is ", mask, "");
  if (!lm_dtype_is_float(factor.dtype) || !lm_type_subset(factor, score))
    return lm_why_type(why, m, "the factor is ", factor, "");
  return true;
}

static int64_t tiles(const lm_module *m, lm_axis a, int64_t tile) {
  return (lm_axis_size(m, a) + tile - 1) / tile;
}

// True if the last axes of the map are the tiles along t and s.
static bool map_fits(const lm_module *m, const lm_op *op, lm_buf *why) {
  const int64_t *imm = op->attr.imm;
  int n = op->attr.n_imm;
  bool rounds = n == 3 && imm[2] == 1 && op->code == LM_OP_ATTEND;
  if (!n || (rounds && !imm[0] && !imm[1]))
    return true;
  if ((n != 2 && !rounds) || imm[0] < 1 || imm[1] < 1)
    return lm_why(why, "needs the sizes of two tiles, and 1 if its weights are rounded");
  lm_type map = op->in[lm_attend_map(op)]->type;
  lm_type rows = {
      .rank = map.rank < 2 ? 0 : (uint8_t)(map.rank - 2),
  };
  bool ok = map.dtype == LM_INT && map.rank >= 2;
  for (int k = 0; ok && k < 2; k++)
    ok = lm_axis_size(m, map.axis[map.rank - 2 + k]) == tiles(m, op->attr.axes[k], op->attr.imm[k]);
  memcpy(rows.axis, map.axis, rows.rank * sizeof *rows.axis);
  return (ok && lm_type_subset(rows, lm_attend_space(op))) ||
         lm_why_type(why, m, "the map is ", map, "");
}

static bool attends(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_attr *a = &op->attr;
  if (a->n_axes != 2 || a->axes[0] == a->axes[1])
    return lm_why(why, "is over two axes, t and s");
  if (op->n_in < lm_attend_rest(op))
    return lm_why(why, "has too few operands");
  if (!region_fits(m, op, why) || !yields_fit(m, op, why) || !map_fits(m, op, why))
    return false;
  lm_type v = op->in[LM_ATTEND_V]->type;
  bool ok = lm_dtype_is_float(v.dtype) && lm_type_find(v, a->axes[1]) >= 0 &&
            lm_type_find(v, a->axes[0]) < 0;
  return ok || lm_why_type(why, m, "the values are ", v, "");
}

// The score's axes without s, then the axes that only v has.
static bool result_types(const lm_module *m, const lm_op *op, lm_type *out_o, lm_type *out_lse,
                         lm_buf *why) {
  lm_type space = lm_attend_space(op);
  lm_type v = op->in[LM_ATTEND_V]->type;
  *out_lse = (lm_type){.dtype = LM_F32};
  for (int i = 0; i < space.rank; i++)
    if (space.axis[i] != lm_attend_s(op))
      out_lse->axis[out_lse->rank++] = space.axis[i];
  *out_o = *out_lse;
  out_o->dtype = v.dtype;
  for (int i = 0; i < v.rank; i++) {
    if (lm_type_find(space, v.axis[i]) >= 0)
      continue;
    if (out_o->rank == LM_RANK)
      return lm_why(why, "the result has more than %d axes", LM_RANK);
    out_o->axis[out_o->rank++] = v.axis[i];
  }
  return true;
}

bool shape_attend(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  return attends(m, op, why) && result_types(m, op, &out[0], &out[1], why);
}

bool shape_attend_vjp(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  lm_type o;
  lm_type lse;
  if (!attends(m, op, why) || !result_types(m, op, &o, &lse, why))
    return false;
  bool ok = lm_type_equal(op->in[LM_ATTEND_O]->type, lm_attend_has_delta(op) ? lse : o) &&
            lm_type_equal(op->in[LM_ATTEND_DO]->type, o) &&
            lm_type_equal(op->in[LM_ATTEND_LSE]->type, lse);
  if (!ok)
    return lm_why(why, "o, lse and the cotangent of o are not of the attend's types");
  out[0] = op->in[LM_ATTEND_V]->type;
  for (uint32_t i = LM_ATTEND_COTANGENTS; i < op->body->last->n_in; i++) {
    out[i - LM_ATTEND_COTANGENTS + 1] = lm_attend_yield(op, i)->type;
    if (lm_attend_tiled(op, lm_attend_yield(op, i)->type))
      return lm_why(why, "a cotangent has both t and s");
  }
  return true;
}
