// order.c - the order in which points of the parallel axes are numbered.
//
// Neighbouring threads compute neighbouring points. A warp uses all bytes of the sectors that it
// moves where the axis that varies fastest is contiguous in memory. That is the last parallel axis,
// unless another one is contiguous in more bytes of the operands and results, as for a sum over the
// middle axis of [a, b, c] whose result is [c, a].
#include "codegen/cuda/emit.h"

lm_ix cuda_result_index(cuda_emit *e, int pass, uint32_t r) {
  lm_type t = e->g.kernel->out[r]->type;
  lm_ix ix[LM_RANK];
  e->g.pass = pass;
  lm_gen_loop_indices(&e->g, t, ix);
  return lm_gen_result_index(&e->g, r, t, ix);
}

// Bytes of sectors for the elements of an access, if a parallel axis varies fastest.
static double access_bytes(const cuda_emit *e, const lm_ix *at, lm_type t, int pass, int axis) {
  const lm_gen_domain *d = &e->g.domains[pass];
  int64_t bytes = lm_dtype_bytes((lm_dtype)t.dtype);
  int64_t step = lm_ix_coef(at, e->g.parallel[axis]) * bytes;
  for (int i = 0; i < d->n; i++)
    if (lm_ix_coef(at, d->loop[i].var) == 1)
      step = bytes;
  step = step < 0 ? -step : step;
  step = step < bytes ? bytes : step > CUDA_SECTOR ? CUDA_SECTOR : step;
  return (double)lm_type_elements(e->g.m, t) * (double)step;
}

static double result_bytes(cuda_emit *e, uint32_t r, int axis) {
  int pass = 0;
  while (!lm_schedule_pass_writes(e->g.s, pass, r))
    if (++pass == (int)e->g.s->n_passes)
      return 0;
  lm_ix at = cuda_result_index(e, pass, r);
  return access_bytes(e, &at, e->g.kernel->out[r]->type, pass, axis);
}

static double bytes_of(cuda_emit *e, int axis) {
  double sum = 0;
  for (uint32_t i = 0; i < e->g.n_accesses; i++) {
    const lm_gen_access *a = &e->g.accesses[i];
    if (a->operand >= 0)
      sum += access_bytes(e, &a->ix, a->type, a->pass, axis);
  }
  for (uint32_t r = 0; r < e->g.kernel->n_out; r++)
    sum += result_bytes(e, r, axis);
  return sum;
}

// True if each thread group has a point, and points are not added in the order of their numbers.
static bool may_choose(const cuda_emit *e) {
  return e->form == CUDA_TEAM && !e->rows && !e->scan && !e->g.kernel->attr.n_to;
}

void cuda_order_choose(cuda_emit *e) {
  const lm_attr *a = &e->g.kernel->attr;
  e->fastest = a->n_axes - 1;
  if (!may_choose(e) || a->n_axes < 2)
    return;
  // The last axis stays if another one saves less than a fifth.
  double least = 0.8 * bytes_of(e, e->fastest);
  for (int i = 0; i + 1 < a->n_axes; i++) {
    const lm_axis_info *x = &e->g.m->axes[a->axes[i]];
    double bytes = x->dyn || x->size < CUDA_WARP ? least : bytes_of(e, i);
    if (bytes < least) {
      least = bytes;
      e->fastest = i;
    }
  }
}

int cuda_order(const cuda_emit *e, int *order) {
  int n = e->g.kernel->attr.n_axes, from = e->fastest, to = e->fastest, k = 0;
  while (from > 0 && e->parallel_merge[from - 1])
    from--;
  while (to >= 0 && to + 1 < n && e->parallel_merge[to])
    to++;
  for (int i = 0; i < n; i++)
    if (i < from || i > to)
      order[k++] = i;
  for (int i = from; i <= to && i >= 0; i++)
    order[k++] = i;
  return n;
}
