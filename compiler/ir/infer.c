// infer.c - the number and the types of an operation's results, from its operands and attributes.
#include "compiler/ir/internal.h"
#include "compiler/ops/ops.h"

int64_t lm_op_result_count(const lm_module *m, const lm_op *op, lm_buf *why) {
  const lm_op_info *info = lm_op_info_of(op);
  if (info->n_out >= 0)
    return info->n_out;
  int64_t yields = op->body && op->body->last ? (int64_t)op->body->last->n_in : -1;
  if (yields >= 0 && op->code != LM_OP_ATTEND_VJP)
    return yields;
  if (yields >= 3)
    return yields - 2; // the cotangent of v for score, mask and factor
  if (yields >= 0) {
    lm_why(why, "the region yields no score, mask and factor");
    return -1;
  }
  const lm_func *f = op->attr.sym ? lm_func_find(m, op->attr.sym) : NULL;
  if (f)
    return f->n_out;
  lm_why(why, op->attr.sym ? "there is no function @%s" : "there is no body%s",
         op->attr.sym ? op->attr.sym : "");
  return -1;
}

static bool axes_known(const lm_module *m, const lm_axis *axes, int n, lm_buf *why) {
  for (int i = 0; i < n; i++)
    if (!axes[i] || axes[i] >= m->n_axes)
      return lm_why(why, "an unknown axis");
  return true;
}

static bool attributes_fit(const lm_module *m, const lm_op *op, lm_buf *why) {
  uint32_t has = lm_op_info_of(op)->attrs;
  const lm_attr *a = &op->attr;
  if (a->n_axes && !(has & LM_A_AXES))
    return lm_why(why, "takes no axes");
  if (a->n_to && !(has & LM_A_TO))
    return lm_why(why, "takes no new axes");
  if (a->n_imm && !(has & LM_A_IMM))
    return lm_why(why, "takes no [numbers]");
  if (a->sym && !(has & LM_A_SYM))
    return lm_why(why, "takes no @name");
  if (!a->sym && (has & LM_A_SYM))
    return lm_why(why, "needs a @name");
  if (!a->mesh != !(has & LM_A_MESH) || a->mesh > m->mesh.n)
    return lm_why(why, has & LM_A_MESH ? "needs an axis of the mesh" : "takes no axis of the mesh");
  if (!op->body != !(has & LM_A_BODY))
    return lm_why(why, op->body ? "takes no body" : "needs a body");
  return axes_known(m, a->axes, a->n_axes, why) && axes_known(m, a->to, a->n_to, why);
}

bool lm_op_infer(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_op_info *info = lm_op_info_of(op);
  if (info->n_in >= 0 && op->n_in != (uint32_t)info->n_in)
    return lm_why(why, "takes %d operands, not %u", info->n_in, op->n_in);
  if (!attributes_fit(m, op, why))
    return false;
  if (info->traits & LM_T_TYPED && !lm_type_wellformed(m, out[0], why))
    return false;
  if (!lm_op_shape(m, op, out, why))
    return false;
  if (info->n_out == 1 && !lm_type_wellformed(m, out[0], why))
    return false;
  return true;
}
