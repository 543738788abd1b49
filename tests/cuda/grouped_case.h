// grouped_case.h - grouped GEMMs and their gradients, as modules built from text.
#ifndef LM_TESTS_CUDA_GROUPED_CASE_H
#define LM_TESTS_CUDA_GROUPED_CASE_H
#include "tests/codegen/run.h"

typedef struct grouped_case {
  const char *name, *axes, *w; // w: the axes of the weights
  const char *rows;
} grouped_case;

// Integer arguments are from 0 to 4, and beyond the last of fewer groups. Less 2, some are of no
// group.
#define ROWS                                                                                       \
  "  %k = group_counts %i (b, t, c) -> (g)\n  %o = group_order %i, %k (b, t, c) -> (n)\n"          \
  "  %p = group_inverse %i, %k over(b, t, c)\n  %r = group_rows %x, %o, %p (b, t, c) -> (n)\n"
#define SOME_ROWS "  %two = const 2 : int\n  %i = sub %all, %two\n" ROWS

// The result, the gradients of the rows and of the weights, whose rows are `h`.
static inline void grouped_text(const grouped_case *c, lm_buf *b) {
  const char *ids = strstr(c->rows, "%all") ? "%all" : "%i";
  lm_buf_printf(b,
                "stage step\naxis %s\nfunc @f(%%x: bf16[b, t, d], %s: int[b, t, c], %%w: bf16[%s], "
                "%%h: bf16[n, f]) -> (y: bf16[n, f], v: bf16[n, d], s: f32[g, d, f]) {\n%s",
                c->axes, ids, c->w, c->rows);
  lm_buf_puts(b, "  %y = grouped_dot %r, %w, %k over(d)\n"
                 "  %v = grouped_dot %h, %w, %k over(f)\n"
                 "  %s = grouped_outer %r, %h, %k over(n) : f32[g, d, f]\n"
                 "  return %y, %v, %s\n}\n");
}

// A gated activation of two grouped GEMMs, and cotangents from a third one: a kernel with the last
// of these GEMMs.
#define GATED                                                                                      \
  "  %g = grouped_dot %r, %w, %k over(d)\n  %u = grouped_dot %r, %w2, %k over(d)\n"                \
  "  %s = logistic %g\n  %a = mul %g, %s\n  %y = mul %a, %u\n"                                     \
  "  %q = grouped_dot %h, %w3, %k over(d)\n  %du = mul %q, %a\n  %c = mul %q, %u\n"                \
  "  return %y, %du, %c\n}\n"
static inline void gated_text(const grouped_case *c, lm_buf *b) {
  const char *ids = strstr(c->rows, "%all") ? "%all" : "%i";
  lm_buf_printf(b,
                "stage step\naxis %s\nfunc @f(%%x: bf16[b, t, d], %s: int[b, t, c], %%w: bf16[%s], "
                "%%w2: bf16[%s], %%w3: bf16[%s], %%h: bf16[n, d]) -> (y: bf16[n, f], du: bf16[n, "
                "f], c: bf16[n, f]) {\n%s",
                c->axes, ids, c->w, c->w, c->w, c->rows);
  lm_buf_puts(b, GATED);
}

static inline lm_plan *grouped_plan(lm_ctx *ctx, const grouped_case *c,
                                    const lm_plan_options *target) {
  lm_buf text = {0};
  grouped_text(c, &text);
  lm_module *m = parse_and_run(ctx, text.p, "decompose,cse,dce,fuse");
  lm_buf_free(&text);
  lm_plan *plan = lm_plan_build(m, target);
  CHECK(plan);
  return plan;
}

// The plan's grouped GEMM by warpgroups whose groups are rows of the result, or (`sums`) of k.
static inline int grouped_kernel_of(const lm_plan *plan, bool sums) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].launch.n_maps == 2 && !strstr(plan->kernels[i].source, "copied") == !sums)
      return i;
  LM_BUG("no grouped GEMM by warpgroups");
}
#endif
