// control.c - loops, calls, kernels and the ends of regions.
#include <string.h>
#include "compiler/ir/internal.h"
#include "compiler/ops/ops.h"

bool shape_none(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  return true;
}

static const lm_op *yield_of(const lm_op *op, lm_buf *why) {
  const lm_op *y = op->body ? op->body->last : NULL;
  if (y && y->code == LM_OP_YIELD)
    return y;
  lm_why(why, "the body does not end with a yield");
  return NULL;
}

static bool types_agree(const lm_module *m, const char *what, lm_type want, lm_type got,
                        lm_buf *why) {
  if (lm_type_equal(want, got))
    return true;
  lm_buf_printf(why, "%s is ", what);
  lm_type_print(m, got, why);
  return lm_why_type(why, m, ", not ", want, "");
}

// Arguments of the body: the index, then the carries. Yielded: the next carries, then the values to
// stack.
bool shape_loop(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_op *yield = yield_of(op, why);
  if (!yield)
    return false;
  if (op->attr.n_imm < 1 || op->attr.n_imm > 2 || op->attr.imm[0] < 1 ||
      op->attr.imm[0] > INT32_MAX)
    return lm_why(why, "the trip count is not from 1 to 2^31 - 1");
  if (op->body->n_args != op->n_in + 1 || yield->n_in < op->n_in)
    return lm_why(why, "%u values are carried", op->n_in);
  if (!types_agree(m, "the index", lm_type_make(LM_INT, NULL, 0), op->body->args[0]->type, why))
    return false;
  for (uint32_t i = 0; i < op->n_in; i++) {
    out[i] = op->in[i]->type;
    if (!types_agree(m, "the argument of a carry", out[i], op->body->args[i + 1]->type, why))
      return false;
    if (!types_agree(m, "the next value of a carry", out[i], yield->in[i]->type, why))
      return false;
  }
  if (op->attr.n_axes && lm_axis_size(m, op->attr.axes[0]) != op->attr.imm[0])
    return lm_why(why, "the size of axis %s is not the trip count %lld",
                  lm_axis_name(m, op->attr.axes[0]), (long long)op->attr.imm[0]);
  if (yield->n_in == op->n_in)
    return true;
  if (op->attr.n_axes != 1)
    return lm_why(why, "stacked results need an axis");
  for (uint32_t i = op->n_in; i < yield->n_in; i++) {
    lm_type x = yield->in[i]->type;
    if (x.rank == LM_RANK)
      return lm_why(why, "a stacked result has more than %d axes", LM_RANK);
    if (lm_type_find(x, op->attr.axes[0]) >= 0)
      return lm_why_type(why, m, "", x, " has the loop's axis already");
    out[i] = lm_type_stacked(op->attr.axes[0], x);
  }
  return true;
}

bool shape_call(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_func *f = lm_func_find(m, op->attr.sym);
  if (!f || !f->body->last || f->body->last->code != LM_OP_RETURN)
    return lm_why(why, "there is no function @%s", op->attr.sym);
  if (op->n_in != f->body->n_args)
    return lm_why(why, "@%s takes %u operands", f->name, f->body->n_args);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!types_agree(m, "an operand", f->body->args[i]->type, op->in[i]->type, why))
      return false;
  for (uint32_t i = 0; i < f->n_out; i++)
    out[i] = f->body->last->in[i]->type;
  return true;
}

static lm_type without(lm_type t, const lm_axis *axes, int n) {
  lm_type u = {
      .dtype = t.dtype,
  };
  for (int i = 0; i < t.rank; i++) {
    bool drop = false;
    for (int j = 0; j < n; j++)
      drop |= axes[j] == t.axis[i];
    if (!drop)
      u.axis[u.rank++] = t.axis[i];
  }
  return u;
}

// The body has the operands' full types. With `to`, results from imm[0] on are column sums over the
// parallel axes, in one chunk per index of axis `to`: `to` replaces the parallel axes, in front.
bool shape_kernel(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  const lm_attr *a = &op->attr;
  const lm_op *yield = yield_of(op, why);
  if (!yield)
    return false;
  if (op->body->n_args != op->n_in)
    return lm_why(why, "the body has %u arguments for %u operands", op->body->n_args, op->n_in);
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!types_agree(m, "an argument", op->in[i]->type, op->body->args[i]->type, why))
      return false;
  if (a->n_to > 1 || a->n_imm != a->n_to || (a->n_to && !a->n_axes))
    return lm_why(why,
                  "column sums need parallel axes, one axis `to` and the index of the first sum");
  if (a->n_to && (a->imm[0] < 0 || a->imm[0] > yield->n_in))
    return lm_why(why, "there is no result %lld", (long long)a->imm[0]);
  for (uint32_t i = 0; i < yield->n_in; i++) {
    lm_type t = yield->in[i]->type;
    for (int j = 0; j < a->n_axes; j++)
      if (lm_type_find(t, a->axes[j]) < 0) {
        lm_why_type(why, m, "result ", t, " lacks outer axis ");
        return lm_why(why, "%s", lm_axis_name(m, a->axes[j]));
      }
    bool sums = a->n_to && i >= a->imm[0];
    out[i] = sums ? lm_type_stacked(a->to[0], without(t, a->axes, a->n_axes)) : t;
  }
  return true;
}
