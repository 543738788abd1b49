// passes.h - a pass that makes kernels for a GPU, run on a module of a test.
#ifndef LM_TESTS_CUDA_PASSES_H
#define LM_TESTS_CUDA_PASSES_H
#include "codegen/cuda/cuda.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

// Runs the pass, whatever its cost model expects, and dce. units: multiprocessors; 0: those that
// the architecture is taken to have.
static inline void cuda_pass_run(const lm_module *m, const char *pass, const char *arch,
                                 int units) {
  lm_plan_options o = lm_cuda_options(arch, false);
  const char *const passes[] = {pass, "dce"};
  lm_pass_env env = {.target = &o.target, .codegen = o.codegen, .forced = passes, .n_forced = 1};
  if (units)
    o.target.units = units;
  for (size_t i = 0; i < LM_COUNT(passes); i++) {
    bool ok;
    CHECK_OK(lm_pass_run_list((lm_module *)m, passes[i], &env, &ok));
    CHECK(ok);
  }
}
#endif
