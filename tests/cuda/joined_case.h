// joined_case.h - gradients of weights, which one launch computes, as modules built from text.
#ifndef LM_TESTS_CUDA_JOINED_CASE_H
#define LM_TESTS_CUDA_JOINED_CASE_H
#include "codegen/cuda/cuda.h"
#include "tests/codegen/run.h"

// Sums over t of x [t, d], y [t, f] and z [t, h]. The GEMMs wait for the last one.
#define JOINED                                                                                     \
  "param @u : f32[d, f] = zeros\nparam @v : f32[f, d] = zeros\nparam @w : f32[h, d] = zeros\n"     \
  "func @f(%x: bf16[t, d], %y: bf16[t, f], %z: bf16[t, h]) -> (r: bf16[t, d]) {\n"                 \
  "  %gu = dot %x, %y over(t) : f32[d, f]\n  accum @u, %gu\n"                                      \
  "  %gv = dot %y, %x over(t) : f32[f, d]\n  accum @v, %gv\n"                                      \
  "  %r = mul %x, %x\n  %gw = dot %z, %r over(t) : f32[h, d]\n  accum @w, %gw\n  return %r\n}\n"
// Of two layers, in reverse order; the gradient of @u is a sum over both.
#define JOINED_LAYERS                                                                              \
  "param @u : f32[d, f] = zeros\nparam @v : f32[n, f, d] stacked 1 as @v.# = zeros\n"              \
  "param @w : f32[n, h, d] stacked 1 as @w.# = zeros\n"                                            \
  "func @f(%x: bf16[t, d], %y: bf16[t, f], %z: bf16[t, h]) -> (r: bf16[t, d]) {\n"                 \
  "  %r = loop 2 %i carry(%c = %x) {\n"                                                            \
  "    %gv = dot %y, %c over(t) : f32[f, d]\n    accum @v[%i * -1 + 1], %gv\n"                     \
  "    %gw = dot %z, %c over(t) : f32[h, d]\n    accum @w[%i * -1 + 1], %gw\n"                     \
  "    %gu = dot %c, %y over(t) : f32[d, f]\n    accum @u, %gu\n"                                  \
  "    %k = mul %c, %c\n    yield %k\n  }\n  return %r\n}\n"

typedef struct joined_case {
  const char *name, *axes, *text;
  int joined; // GEMMs of the largest launch
} joined_case;

static inline lm_module *joined_module(lm_ctx *ctx, const joined_case *c, const char *passes) {
  lm_buf text = {0};
  lm_buf_printf(&text, "stage step\naxis %s\n%s", c->axes, c->text);
  lm_module *m = parse_and_run(ctx, text.p, passes);
  lm_buf_free(&text);
  return m;
}

static inline lm_plan *joined_plan(lm_ctx *ctx, const joined_case *c,
                                   const lm_plan_options *target) {
  lm_plan *plan = lm_plan_build(joined_module(ctx, c, "decompose,cse,dce,fuse"), target);
  CHECK(plan);
  return plan;
}

// The kernel of the launch of most GEMMs.
static inline int joined_kernel_of(const lm_plan *plan) {
  int best = -1;
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'j' &&
        (best < 0 || plan->kernels[i].launch.n_maps > plan->kernels[best].launch.n_maps))
      best = i;
  CHECK(best >= 0);
  return best;
}
#endif
