// cost_step.c - see cost.h: one step of a plan.
#include <math.h>

#include "compiler/plan/cost.h"

static double threads_of(const lm_plan *p, const lm_plan_step *s, const lm_plan_launch *launch) {
  int64_t capacity[LM_COUNT(p->extents)];
  for (int i = 0; i < p->n_extents; i++)
    capacity[i] = p->extents[i].capacity;
  double points = (double)lm_plan_extent_value(&s->space, capacity);
  double blocks = launch->blocks          ? (double)launch->blocks
                  : launch->per_block > 0 ? ceil(points / (double)launch->per_block)
                                          : 0;
  return blocks * launch->threads * (launch->unroll ? launch->unroll : 1);
}

static bool is_kept(const lm_plan_buf *b) {
  return b->arena == LM_ARENA_PARAM || b->arena == LM_ARENA_COPY || b->arena == LM_ARENA_FIXED ||
         b->arena == LM_ARENA_CACHE;
}

double lm_cost_cold(const lm_plan_step *s) {
  double sum = 0;
  for (int i = 0; i < s->n_read; i++)
    sum += is_kept(&s->bufs[i]) ? (double)s->bufs[i].bytes : 0;
  return fmin(sum, (double)s->moved);
}

// Of generated code, whose instructions are counted.
static lm_cost code_cost(const lm_target *t, const lm_plan *p, const lm_plan_step *s) {
  const lm_plan_launch *launch = &p->kernels[lm_plan_step_kernel(s)].launch;
  return lm_cost_of_kernel(t, &(lm_cost_kernel){.bytes = (double)s->moved,
                                                .cold = lm_cost_cold(s),
                                                .again = s->again,
                                                .instructions = s->instructions,
                                                .threads = threads_of(p, s, launch),
                                                .waits = (double)launch->waits});
}

static lm_cost kernel_cost(const lm_target *t, const lm_plan *p, const lm_plan_step *s) {
  const lm_plan_launch *launch = &p->kernels[s->kernel].launch;
  if (s->attend) {
    lm_plan_attend a = *s->attend;
    a.instructions = s->instructions;
    return lm_cost_of_attend(t, &a, (double)s->moved, launch->n_maps > 0);
  }
  if (s->multiplied > 0)
    return lm_cost_of_mix(t, &(lm_cost_mix){.bytes = (double)s->moved,
                                            .flops = s->multiplied,
                                            .instructions = s->instructions,
                                            .blocks = (double)s->space.fixed,
                                            .positions = (double)launch->waits,
                                            .dtype = LM_BF16});
  if (s->joined) {
    lm_cost_gemm all[LM_PLAN_MAPS];
    for (int i = 0; i < s->joined; i++)
      all[i] = lm_cost_gemm_at(p, s, i);
    return lm_cost_of_joined(t, all, s->joined, NULL);
  }
  if (s->gemm) {
    lm_cost_gemm_kernel k = lm_cost_gemm_kernel_of(p, s);
    return lm_cost_of_gemm_kernel(t, &k);
  }
  return code_cost(t, p, s);
}

lm_cost lm_cost_of_step(const lm_target *t, const lm_plan *p, const lm_plan_step *s) {
  if (s->kind == LM_STEP_KERNEL)
    return kernel_cost(t, p, s);
  if (s->kind == LM_STEP_GEMM && s->gemm->code && s->instructions > 0)
    return code_cost(t, p, s); // of few rows
  if (s->kind == LM_STEP_GEMM) {
    lm_cost_gemm g = lm_cost_gemm_of(p, s);
    return lm_cost_of_gemm(t, &g);
  }
  return lm_cost_of_kernel(t, &(lm_cost_kernel){.bytes = (double)s->moved});
}

bool lm_cost_launches(const lm_plan_step *s) {
  return s->kind != LM_STEP_LOOP && s->kind != LM_STEP_END && !lm_plan_step_copies(s);
}
