// common.c - helpers of the shape rules.
#include "compiler/ops/ops.h"

bool lm_why(lm_buf *why, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(why, fmt, ap);
  va_end(ap);
  return false;
}

bool lm_why_type(lm_buf *why, const lm_module *m, const char *before, lm_type t,
                 const char *after) {
  lm_buf_puts(why, before);
  lm_type_print(m, t, why);
  lm_buf_puts(why, after);
  return false;
}

const char *lm_axis_name(const lm_module *m, lm_axis a) {
  return m->axes[a].name;
}

bool lm_computes(const lm_module *m, lm_type t, lm_buf *why) {
  return !lm_dtype_is_code((lm_dtype)t.dtype) ||
         lm_why_type(why, m, "the operand is ", t, ", a code: cast it first");
}

bool lm_broadcast(const lm_module *m, const lm_op *op, lm_type *out, lm_buf *why) {
  *out = op->in[0]->type;
  for (uint32_t i = 1; i < op->n_in; i++)
    if (op->in[i]->type.rank > out->rank)
      *out = op->in[i]->type;
  for (uint32_t i = 0; i < op->n_in; i++)
    if (!lm_type_subset(op->in[i]->type, *out)) {
      lm_why_type(why, m, "", op->in[i]->type, " does not broadcast to ");
      return lm_why_type(why, m, "", *out, "");
    }
  return true;
}

bool lm_axis_counts(const lm_module *m, lm_axis n, const lm_axis *axes, int n_axes) {
  lm_extent_info all = {.times = 1};
  lm_extent_info own = {.of = m->axes[n].dyn, .times = 1};
  int64_t size = 1;
  for (int i = 0; i < n_axes; i++) {
    const lm_axis_info *a = &m->axes[axes[i]];
    if ((a->dyn && all.of) || __builtin_mul_overflow(size, a->size, &size))
      return false;
    all.of = a->dyn ? a->dyn : all.of;
    all.times *= a->dyn ? 1 : a->size;
  }
  if (own.of && m->extents[own.of - 1].of && !m->extents[own.of - 1].most)
    own = m->extents[own.of - 1];
  if (all.of && m->extents[all.of - 1].of && !m->extents[all.of - 1].most) {
    all.times *= m->extents[all.of - 1].times;
    all.of = m->extents[all.of - 1].of;
  }
  return size == m->axes[n].size && all.of == own.of && (!all.of || all.times == own.times);
}
