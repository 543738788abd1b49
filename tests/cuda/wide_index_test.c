// wide_index_test.c - the width of loop counters in CUDA kernels. A counter may reach twice the
// number of elements before its loop ends, so counters have 64 bits from 2^30 elements on. The
// text is checked, since such tensors do not fit into a test.
#include <string.h>

#include "codegen/cuda/cuda.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

static void test_counter(int64_t elements, const char *counter) {
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis n = %lld\nfunc @f(%%x: f32[n]) -> (y: f32[n]) {\n"
                "  %%y = exp %%x\n  return %%y\n}\n",
                (long long)elements);
  lm_ctx *ctx = lm_ctx_create();
  lm_module *m = lm_module_parse(ctx, lm_source_add(ctx, "test", text.p, text.n));
  CHECK(m);
  lm_plan_options target = lm_cuda_options("sm_90a", false);
  CHECK(lm_pipeline_run(m, LM_STAGE_KERNEL,
                        &(lm_pass_env){.target = &target.target, .codegen = target.codegen}));
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan && plan->n_kernels == 1);
  if (!strstr(plan->kernels[0].source, counter))
    fprintf(stderr, "%lld elements:\n%s", (long long)elements, plan->kernels[0].source);
  CHECK(strstr(plan->kernels[0].source, counter));
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
}

int main(void) {
  test_counter(((int64_t)1 << 30) - 1, "for (int32_t ");
  test_counter((int64_t)1 << 30, "for (int64_t ");
  test_counter(((int64_t)3 << 29) - 1, "for (int64_t ");
}
