// exec.h - runs plans on an NVIDIA GPU: the device that this process sees first, one stream.
//
// Kernels come from NVRTC through the cache (compile.h), products from cuBLASLt (gemm.h), memory is
// laid out in memory.h. A function whose steps depend on no run-time extent is recorded as a CUDA
// graph in its second run, the first having settled everything that is settled once; from then on
// it is launched as one.
//
// In the environment: LMC_CUDA_SYNC=1 waits after every step, so that a failure names its kernel;
// LMC_CUDA_GRAPHS=0 launches every step by itself.
#ifndef LM_CUDA_EXEC_H
#define LM_CUDA_EXEC_H
#include "runtime/cuda/driver.h"
#include "runtime/hal/exec.h"

// The plan, of code for CUDA, must outlive the exec. LM_ENV without driver, GPU, NVRTC or cuBLASLt,
// or without memory enough. arch: NULL, or what the plan must run as: another than the GPU's is
// LM_ENV.
lm_status lm_cuda_exec_create(const lm_plan *plan, const char *arch, const lm_exec_options *o,
                              lm_exec **out);
int64_t lm_cuda_workspace(void); // bytes beside the plan's arenas
#endif
