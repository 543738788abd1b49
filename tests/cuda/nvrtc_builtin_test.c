// nvrtc_builtin_test.c - the runtime's own kernels for every architecture. Skipped, saying so, where there is no NVRTC.
#define _GNU_SOURCE                    // memmem
#include <string.h>

#include "codegen/cuda/cuda.h"
#include "runtime/cuda/builtin.h"
#include "runtime/cuda/compile.h"
#include "tests/runtime/check.h"

int main(void) {
  lm_buf version = {0};
  lm_status missing = lm_cuda_nvrtc_version(&version);
  if (missing) {
    printf("skipped: %s\n", missing->text);
    lm_status_free(missing);
    return 0;
  }
  char dir[] = "/tmp/lmc-nvrtc-builtin-XXXXXX";
  CHECK(mkdtemp(dir));
  setenv("LMC_CACHE", dir, 1);
  lm_arena *a = lm_arena_create();
  lm_plan_kernel kernel = {.name = "lm_builtin", .source = lm_cuda_builtin_text()};
  lm_plan plan = {.prelude = lm_cuda_prelude_text(a), .kernels = &kernel, .n_kernels = 1};
  for (int i = 0; lm_cuda_archs[i]; i++) {
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
  lm_buf_free(&version);
  lm_arena_destroy(a);
}
