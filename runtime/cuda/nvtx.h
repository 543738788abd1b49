// nvtx.h - named ranges for NVIDIA's profilers (Nsight Systems, Nsight Compute) that run this
// process. Not thread-safe. Without a profiler the functions do nothing.
#ifndef LM_CUDA_NVTX_H
#define LM_CUDA_NVTX_H
#include <stddef.h>
#include <stdint.h>

void lm_nvtx_open(void);             // call before the others; further calls do nothing
void lm_nvtx_push(const char *name); // copies the name
void lm_nvtx_pop(void);

// The interface of NVIDIA's nvtxTypes.h (version 3 of the protocol, unchanged since CUDA 10);
// tests/cuda/headers_test.c compares it with the header if the toolkit is installed.
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
