// causal_axes.c - axes of positions and of the history, and what positions may depend on.
#include "compiler/passes/causal.h"

bool lm_probe_has(const bool *set, lm_type t, lm_axis *out) {
  for (int i = 0; i < t.rank; i++)
    if (set[t.axis[i]]) {
      *out = t.axis[i];
      return true;
    }
  return false;
}

bool lm_probe_gridded(const probe *p, lm_type t) {
  lm_axis a, b;
  return lm_probe_has(p->is_position, t, &a) && lm_probe_has(p->is_history, t, &b);
}

bool lm_probe_over(const lm_op *op, const bool *set) {
  for (int i = 0; i < op->attr.n_axes; i++)
    if (set[op->attr.axes[i]])
      return true;
  return false;
}

bool lm_probe_hides(const probe *p, int64_t t, int64_t s) {
  return s > p->last[t] || p->seg[s] != p->seg[t];
}
