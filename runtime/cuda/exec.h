// exec.h - runs plans on an NVIDIA GPU, on one stream, and its copies and collectives on others
// (lanes.h).
//
// Kernels are compiled by NVRTC (compile.h), GEMMs are computed by cuBLASLt (gemm.h), memory is
// managed by memory.h. The second run of a function without run-time extents is recorded as a CUDA
// graph, since its first run has made all choices that are made once; later runs launch the graph.
// Functions with collectives of several ranks (nccl.h) are not recorded.
//
// Environment variables: LMC_CUDA_SYNC=1 synchronizes after every step, so that an error names its
// kernel; LMC_CUDA_GRAPHS=0 disables graphs; LMC_CUDA_CHECK=1 compiles kernels so that a wait that
// does not end stops the kernel, and implies LMC_CUDA_SYNC=1.
#ifndef LM_CUDA_EXEC_H
#define LM_CUDA_EXEC_H
#include "runtime/cuda/driver.h"
#include "runtime/hal/exec.h"

extern const lm_runtime lm_cuda_runtime;
// The plan must be compiled for CUDA and outlive the executor. arch: optional; LM_ENV if it is not
// the GPU's. device: the number of the GPU. LM_ENV without a driver, GPU, NVRTC or cuBLASLt,
// without NCCL if there are several ranks, or without enough memory.
lm_status lm_cuda_exec_create(const lm_plan *plan, const char *arch, int device,
                              const lm_exec_options *o, lm_exec **out);
#endif
