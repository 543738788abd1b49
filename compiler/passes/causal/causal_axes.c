// causal_axes.c - axes of positions and of the history, and what positions may depend on.
#include "compiler/passes/causal/causal.h"

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

// ---- axes of any size

typedef struct resizable {
  const lm_module *m;
  bool *axes;
  bool fixed; // something depends on the size
} resizable;

static bool reads_index(const lm_op *op) {
  switch (op->code) {
  case LM_OP_SUM:
  case LM_OP_MAX:
  case LM_OP_DOT:
  case LM_OP_EXPAND:
  case LM_OP_LOOP:
  case LM_OP_PERMUTE:
  case LM_OP_RENAME:
  case LM_OP_HISTORY: return false;
  default: return !(lm_op_info_of(op)->traits & LM_T_ELEMENTWISE);
  }
}

static void made_of(resizable *x, const lm_op *op) {
  for (int i = 0; i < op->attr.n_axes; i++) {
    lm_axis from = op->attr.axes[i], to = op->attr.to[i];
    if (!x->axes[from])
      continue;
    x->axes[to] = true;
    x->fixed |= lm_axis_size(x->m, from) != lm_axis_size(x->m, to);
  }
}

static void resizable_visit(lm_op *op, void *user) {
  resizable *x = user;
  lm_axis a;
  if (op->code == LM_OP_RENAME || op->code == LM_OP_HISTORY)
    made_of(x, op);
  else if (op->code == LM_OP_IOTA || op->code == LM_OP_PARAM)
    x->fixed |= lm_probe_has(x->axes, op->out[0]->type, &a);
  else if (reads_index(op))
    x->fixed |= lm_probe_over(op, x->axes);
}

bool *lm_probe_axes(const lm_module *m, const lm_func *f, lm_axis t) {
  resizable x = {m, lm_calloc(m->n_axes, sizeof *x.axes), false};
  x.axes[t] = true;
  lm_region_walk(f->body, resizable_visit, &x);
  if (!x.fixed)
    return x.axes;
  lm_free(x.axes);
  return NULL;
}
