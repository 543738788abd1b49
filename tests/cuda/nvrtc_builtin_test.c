// nvrtc_builtin_test.c - the runtime's own kernels for every architecture. Prints that it is
// skipped if there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h" // asks the system for memmem, too

#include "codegen/cuda/cuda.h"
#include "runtime/cuda/builtin.h"
#include "tests/runtime/check.h"

int main(void) {
  nvrtc_begin(true);
  lm_arena *a = lm_arena_create();
  lm_plan_kernel kernel = {.name = "lm_builtin", .source = lm_cuda_builtin_text(a)};
  lm_plan plan = {.prelude = lm_cuda_prelude_text(a), .kernels = &kernel, .n_kernels = 1};
  for (int i = 0; lm_cuda_archs[i]; i++) {
    if (nvrtc_leaves_out(lm_cuda_archs[i]))
      continue;
    lm_cuda_code code;
    CHECK_OK(lm_cuda_compile(&plan, &(lm_cuda_compile_options){.arch = lm_cuda_archs[i]}, &code));
    CHECK(code.n_images == 1 && code.compiled == 1);
    for (int k = 0; k < LM_CUDA_BUILTIN_KERNELS; k++) {
      const char *name = lm_cuda_builtin_names[k];
      CHECK(memmem(code.images[0].bytes, code.images[0].n, name, strlen(name) + 1));
    }
    printf("%s: %zu bytes in %.2f s\n", lm_cuda_archs[i], code.images[0].n, code.seconds);
    lm_cuda_code_free(&code);
  }
  lm_arena_destroy(a);
}
