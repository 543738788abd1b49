// compile.h - compiles a plan's kernels to machine code by NVRTC, which needs no GPU.
//
// Kernels that are not in the cache are distributed over one program per core, compiled in parallel
// and cached by the content of each kernel.
#ifndef LM_CUDA_COMPILE_H
#define LM_CUDA_COMPILE_H
#include "runtime/plan/plan.h"

typedef struct lm_cuda_image {
  const char *bytes;
  size_t n;
} lm_cuda_image;

// Properties of the plan's kernel with the same index.
typedef struct lm_cuda_kernel {
  int image;         // index of the image with its code
  int registers;     // per thread
  int shared;        // bytes of static shared memory per block
  int spilled;       // bytes of registers that a thread spills to memory
  bool begins_first; // it touches no memory before lm_grid_begin, nor reads any as constant
  bool hindered;     // the assembler serialized warpgroup GEMMs or ignored setmaxnreg
} lm_cuda_kernel;

typedef struct lm_cuda_code {
  lm_arena *arena; // owns everything
  lm_cuda_kernel *kernels;
  int n_kernels;
  lm_cuda_image *images;
  uint32_t n_images, cap_images;
  int compiled; // kernels that were not in the cache
  double seconds;
} lm_cuda_code;

typedef struct lm_cuda_compile_options {
  const char *arch; // "sm_90a"
  int driver;       // CUDA version of the driver that must load the code; 0: it is not loaded
  int threads;      // 0: as many as the process may use
  const char *dump_dir, *load_dir; // as lm_exec_options, files NAME.cu
  bool check_waits;   // waits for mbarriers that do not end stop the kernel (prelude/bulk.cuh)
  const bool *narrow; // by kernel: its buffers are not aligned to 16 bytes; NULL: by the plan
} lm_cuda_compile_options;

// The supported architectures, NULL-terminated.
extern const char *const lm_cuda_archs[];
// Prints "NVRTC 13.0"; LM_ENV if there is no NVRTC.
lm_status lm_cuda_nvrtc_version(lm_buf *out);
lm_status lm_cuda_compile(const lm_plan *plan, const lm_cuda_compile_options *o, lm_cuda_code *out);
// By kernel, in `a`: true if a launch may begin before the end of the kernel in front of it, and so
// no operand is read as a constant.
bool *lm_cuda_early_find(const lm_plan *plan, const char *arch, lm_arena *a);
// Describes why the kernel is slower than its text suggests: its warpgroup GEMMs are serialized, or
// it spills registers. Returns false, and prints nothing, if there is no reason.
bool lm_cuda_kernel_flaw(const lm_cuda_kernel *k, lm_buf *out);
void lm_cuda_code_free(lm_cuda_code *c);
#endif
