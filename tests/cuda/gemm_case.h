// gemm_case.h - GEMMs whose results a kernel reads, as modules built from text, for tests that run
// or compile the kernels that pass gemm_kernels makes of both.
#ifndef LM_TESTS_CUDA_GEMM_CASE_H
#define LM_TESTS_CUDA_GEMM_CASE_H
#include "codegen/cuda/cuda.h"
#include "compiler/ir/dot.h"
#include "tests/codegen/run.h"

// x [b, t, d] times w: d rows of n columns, or (`by_k`) n rows of d. `rest` computes the results
// from %p [b, t, n]; `in` are its further parameters.
typedef struct gemm_case {
  const char *name, *axes;
  bool by_k;
  const char *in, *results, *rest;
} gemm_case;

// Gate and up beside each other in n, each f wide; %p is a result, too, for the backward pass.
#define SWIGLU_RESULTS "h: bf16[b, t, f], p: bf16[b, t, n]"
#define SWIGLU(f)                                                                                  \
  "  %g = slice %p (n) -> (f) [0, 1]\n  %u = slice %p (n) -> (f) [" #f ", 1]\n"                    \
  "  %s = logistic %g\n  %a = mul %g, %s\n  %h = mul %a, %u\n  return %h, %p\n"
// Its derivative: %p is the cotangent of h, %q holds gate and up.
#define SWIGLU_VJP_IN ", %q: bf16[b, t, m]"
#define SWIGLU_VJP_RESULTS "q: bf16[b, t, m]"
#define SWIGLU_VJP(n)                                                                              \
  "  %g = slice %q (m) -> (n) [0, 1]\n  %u = slice %q (m) -> (n) [" #n ", 1]\n"                    \
  "  %s = logistic %g\n  %a = mul %g, %s\n  %du = mul %p, %a\n  %c = mul %p, %u\n"                 \
  "  %one = const 1 : bf16\n  %r = sub %one, %s\n  %k = mul %g, %r\n  %l = add %one, %k\n"         \
  "  %o = mul %s, %l\n  %dg = mul %c, %o\n  %z = concat %dg, %du (n, n) -> (m)\n  return %z\n"
// A bias, gelu, the factor of a row and a residual; f32 sums that are stored.
#define GELU_IN ", %bias: f32[n], %row: f32[b, t], %x0: bf16[b, t, n]"
#define GELU_RESULTS "y: bf16[b, t, n], v: f32[b, t, n]"
#define GELU                                                                                       \
  "  %v = add %p, %bias\n  %v2 = mul %v, %v\n  %v3 = mul %v2, %v\n  %c = const 0.044715 : f32\n"   \
  "  %w3 = mul %v3, %c\n  %z = add %v, %w3\n  %k = const 0.7978845608 : f32\n  %zk = mul %z, %k\n" \
  "  %t = tanh %zk\n  %one = const 1 : f32\n  %t1 = add %t, %one\n  %h = const 0.5 : f32\n"        \
  "  %vh = mul %v, %h\n  %g = mul %vh, %t1\n  %gr = mul %g, %row\n  %gb = cast %gr : bf16[b, t, "  \
  "n]\n  %y = add %gb, %x0\n  return %y, %v\n"

static inline void gemm_text(const gemm_case *c, lm_buf *b) {
  bool f32 = strstr(c->results, "f32") != NULL;
  lm_buf_printf(b, "stage step\naxis %s\nfunc @f(%%x: bf16[b, t, d], %%w: bf16[%s]%s) -> (%s) {\n",
                c->axes, c->by_k ? "n, d" : "d, n", c->in, c->results);
  lm_buf_printf(b, "  %%p = dot %%x, %%w over(d) : %s[b, t, n]\n%s}\n", f32 ? "f32" : "bf16",
                c->rest);
}

// Runs pass gemm_kernels for sm_90a, whatever its cost model expects.
static inline void gemm_kernels_make(const lm_module *m) {
  static const char *const forced[] = {"gemm_kernels"};
  lm_plan_options o = lm_cuda_options("sm_90a", false);
  bool ok;
  CHECK_OK(lm_pass_run_list(
      (lm_module *)m, "gemm_kernels,dce",
      &(lm_pass_env){.target = &o.target, .codegen = o.codegen, .forced = forced, .n_forced = 1},
      &ok));
  CHECK(ok);
}

// The plan's kernel that begins with a GEMM; -1: there is none.
static inline int gemm_kernel_of(const lm_plan *plan) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'g')
      return i;
  return -1;
}

// The plan of a case, which has such a kernel; in the arena of its module, which `ctx` owns.
static inline lm_plan *gemm_plan(lm_ctx *ctx, const gemm_case *c, const lm_plan_options *target) {
  lm_buf text = {0};
  gemm_text(c, &text);
  lm_module *m = parse_and_run(ctx, text.p, "fuse");
  lm_buf_free(&text);
  gemm_kernels_make(m);
  lm_plan *plan = lm_plan_build(m, target);
  CHECK(plan && gemm_kernel_of(plan) >= 0);
  return plan;
}
#endif
