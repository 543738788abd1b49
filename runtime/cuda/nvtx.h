// nvtx.h - ranges of time under names, for a profiler of NVIDIA's (Nsight Systems, Nsight Compute)
// that runs this process. One thread uses them. Where no profiler listens they do nothing.
#ifndef LM_CUDA_NVTX_H
#define LM_CUDA_NVTX_H
#include <stddef.h>
#include <stdint.h>

void lm_nvtx_open(void);             // before the others; more than once is as good
void lm_nvtx_push(const char *name); // which need not last
void lm_nvtx_pop(void);

// What an application and a tool agree on, as NVIDIA's nvtxTypes.h has it (version 3 of the
// protocol, which has been the same since CUDA 10); tests/cuda/headers_test.c compares them where
// the toolkit is installed.
enum {
  LM_NVTX_VERSION = 3,
  LM_NVTX_CALLBACKS = 1,
  LM_NVTX_VERSIONINFO = 3, // tables that a tool asks for
  LM_NVTX_CORE = 1,
  LM_NVTX_CUDA,
  LM_NVTX_OPENCL,
  LM_NVTX_CUDART,
  LM_NVTX_CORE2,
  LM_NVTX_SYNC,
  LM_NVTX_MODULES,
  LM_NVTX_PUSH = 9,
  LM_NVTX_POP = 11, // of the module CORE
};
typedef void (*lm_nvtx_function)(void);
typedef struct lm_nvtx_callbacks {
  size_t bytes;
  int (*functions)(int module, lm_nvtx_function ***out_table,
                   unsigned *out_n); // where the tool puts its own
} lm_nvtx_callbacks;
typedef struct lm_nvtx_version {
  size_t bytes;
  uint32_t version, reserved;
  void (*set)(uint32_t version);
} lm_nvtx_version;
typedef const void *(*lm_nvtx_tables)(uint32_t id);
typedef int (*lm_nvtx_initialize)(
    lm_nvtx_tables tables); // InitializeInjectionNvtx2 of a tool's library; 0: it failed
#endif
