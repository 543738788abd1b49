// nvrtc.h - setup of a test that compiles with NVRTC. Included first.
#ifndef LM_TESTS_CUDA_NVRTC_H
#define LM_TESTS_CUDA_NVRTC_H
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include <string.h>

#include "runtime/cuda/compile.h"

// Prints that the test is skipped and exits if there is no NVRTC. own_cache: uses an empty cache,
// whatever LMC_CACHE says.
static inline void nvrtc_begin(bool own_cache) {
  lm_buf version = {0};
  lm_status missing = lm_cuda_nvrtc_version(&version);
  if (missing) {
    printf("skipped: %s\n", missing->text);
    lm_status_free(missing);
    exit(0);
  }
  lm_buf_free(&version);
  if (own_cache)
    unsetenv("LMC_CACHE");
  cache_begin();
}

// Whether a test that compiles for every architecture leaves this one out: sm_103 has the
// instructions of sm_100a, and is for the nightly tests.
static inline bool nvrtc_leaves_out(const char *arch) {
  return !strcmp(arch, "sm_103") && !getenv("LM_TEST_NIGHTLY");
}
#endif
