// cost_step.c - see cost.h: one step of a plan.
#include <math.h>

#include "compiler/plan/cost.h"

static lm_cost kernel_cost(const lm_target *t, const lm_plan *p, const lm_plan_step *s) {
  const lm_plan_launch *launch = &p->kernels[s->kernel].launch;
  if (s->attend)
    return lm_cost_of_attend(t, s->attend, (double)s->moved, launch->n_maps > 0);
  if (s->gemm) {
    lm_cost_gemm_kernel k = lm_cost_gemm_kernel_of(p, s);
    return lm_cost_of_gemm_kernel(t, &k);
  }
  int64_t capacity[LM_COUNT(p->extents)];
  for (int i = 0; i < p->n_extents; i++)
    capacity[i] = p->extents[i].capacity;
  double points = (double)lm_plan_extent_value(&s->space, capacity);
  double blocks = launch->per_block > 0 ? ceil(points / (double)launch->per_block) : 0;
  double threads = blocks * launch->threads * (launch->unroll ? launch->unroll : 1);
  return lm_cost_of_kernel(t, &(lm_cost_kernel){(double)s->moved, s->instructions, threads});
}

lm_cost lm_cost_of_step(const lm_target *t, const lm_plan *p, const lm_plan_step *s) {
  if (s->kind == LM_STEP_KERNEL)
    return kernel_cost(t, p, s);
  if (s->kind == LM_STEP_GEMM) {
    lm_cost_gemm g = lm_cost_gemm_of(p, s);
    return lm_cost_of_gemm(t, &g);
  }
  return lm_cost_of_kernel(t, &(lm_cost_kernel){.bytes = (double)s->moved});
}

bool lm_cost_launches(const lm_plan_step *s) {
  return s->kind != LM_STEP_LOOP && s->kind != LM_STEP_END && !lm_plan_step_copies(s);
}
