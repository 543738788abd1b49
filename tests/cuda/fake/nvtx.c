// nvtx.c - an NVTX tool that prints the ranges on standard error:
// NVTX_INJECTION64_PATH=build/fake/libnvtxtool.so
#include <stdio.h>

#include "runtime/cuda/nvtx.h"
#include "tests/cuda/fake/fake.h"

static int depth;

static int push(const char *name) {
  fprintf(stderr, "range %*s%s\n", 2 * depth, "", name);
  return depth++;
}

static int pop(void) {
  return --depth;
}

FAKE_API int InitializeInjectionNvtx2(lm_nvtx_tables tables) {
  const lm_nvtx_callbacks *callbacks = tables(LM_NVTX_CALLBACKS);
  const lm_nvtx_version *version = tables(LM_NVTX_VERSIONINFO);
  lm_nvtx_function **table;
  unsigned n;
  for (int module = LM_NVTX_CORE; module < LM_NVTX_MODULES; module++)
    if (!callbacks->functions(module, &table, &n) || table[0] || table[n] || !table[1])
      return 0;
  if (version->version != LM_NVTX_VERSION || tables(99) ||
      !callbacks->functions(LM_NVTX_CORE, &table, &n) || n <= LM_NVTX_POP)
    return 0;
  *table[LM_NVTX_PUSH] = (lm_nvtx_function)push;
  *table[LM_NVTX_POP] = (lm_nvtx_function)pop;
  return 1;
}
