// nest.c - loop nests over axes, with a stride per operand.
#include "compiler/eval/internal.h"

int64_t lm_eval_size(const lm_eval *e, lm_axis a) {
  const lm_axis_info *i = &e->m->axes[a];
  const lm_extent_info *x = i->dyn ? &e->m->extents[i->dyn - 1] : NULL;
  int64_t given = !i->dyn ? 0 : e->extent[(x->of ? x->of : i->dyn) - 1];
  if (!given)
    return i->size;
  if (x->most && given > x->most)
    return x->most;
  return x->of ? given * x->times : given;
}

void nest_add(const lm_eval *e, nest *n, lm_axis a) {
  n->axis[n->rank] = a;
  n->size[n->rank++] = lm_eval_size(e, a);
}

nest nest_over(const lm_eval *e, const lm_axis *axes, int n) {
  nest out = {0};
  for (int i = 0; i < n; i++)
    nest_add(e, &out, axes[i]);
  return out;
}

int64_t stride_of(const lm_eval *e, lm_type t, lm_axis a) {
  int at = lm_type_find(t, a);
  if (at < 0)
    return 0;
  int64_t s = 1;
  for (int i = at + 1; i < t.rank; i++)
    s *= lm_eval_size(e, t.axis[i]);
  return s;
}

void nest_operand(const lm_eval *e, nest *n, int k, lm_type t) {
  for (int i = 0; i < n->rank; i++)
    n->step[k][i] = stride_of(e, t, n->axis[i]);
}

void nest_operand_capacity(const lm_eval *e, nest *n, int k, lm_type t) {
  for (int i = 0; i < n->rank; i++) {
    int at = lm_type_find(t, n->axis[i]);
    n->step[k][i] = at >= 0;
    for (int j = at + 1; at >= 0 && j < t.rank; j++)
      n->step[k][i] *= lm_axis_size(e->m, t.axis[j]);
  }
}

static void nest_row(const nest *n, const int64_t *index, int64_t *at) {
  for (int k = 0; k < LM_NEST_OPERANDS; k++) {
    at[k] = n->start[k];
    for (int i = 0; i + 1 < n->rank; i++)
      at[k] += index[i] * n->step[k][i];
  }
}

void nest_run(const nest *n, nest_inner *inner, void *user) {
  int64_t index[LM_NEST_AXES] = {0};
  int64_t at[LM_NEST_OPERANDS];
  int64_t step[LM_NEST_OPERANDS] = {0};
  int last = n->rank - 1;
  for (int k = 0; k < LM_NEST_OPERANDS && last >= 0; k++)
    step[k] = n->step[k][last];
  for (;;) {
    nest_row(n, index, at);
    inner(user, last >= 0 ? n->size[last] : 1, at, step);
    int i = last - 1;
    while (i >= 0 && ++index[i] == n->size[i])
      index[i--] = 0;
    if (i < 0)
      return;
  }
}

typedef struct copy {
  double *dst;
  const double *src;
  bool add;
} copy;

static void copy_inner(void *user, int64_t n, const int64_t *at, const int64_t *step) {
  const copy *c = user;
  for (int64_t i = 0; i < n; i++) {
    double *to = &c->dst[at[0] + i * step[0]];
    double from = c->src[at[1] + i * step[1]];
    *to = c->add ? *to + from : from;
  }
}

void lm_eval_copy(const nest *n, double *dst, const double *src, bool add) {
  nest_run(n, copy_inner, &(copy){dst, src, add});
}
