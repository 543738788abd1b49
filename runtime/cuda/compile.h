// compile.h - machine code for a plan's kernels, by NVRTC: straight to the device's instructions,
// no device needed.
//
// Kernels that the cache lacks are dealt into one program a core, compiled side by side, and filed
// under the content of each.
#ifndef LM_CUDA_COMPILE_H
#define LM_CUDA_COMPILE_H
#include "runtime/plan/plan.h"

typedef struct lm_cuda_image {
  const char *bytes;
  size_t n;
} lm_cuda_image;

typedef struct lm_cuda_kernel { // of the plan's kernel with the same number
  int image;                    // where its code lies
  int registers;                // of a thread
  int shared;                   // bytes of a block
  int spilled;                  // bytes of registers that a thread keeps in memory
  // the assembler has products of warpgroups wait for each other, or deals out no registers
  bool hindered;
} lm_cuda_kernel;

typedef struct lm_cuda_code {
  lm_arena *arena; // holds all of it
  lm_cuda_kernel *kernels;
  int n_kernels;
  lm_cuda_image *images;
  uint32_t n_images, cap_images;
  int compiled; // kernels that were not in the cache
  double seconds;
} lm_cuda_code;

typedef struct lm_cuda_compile_options {
  const char *arch; // "sm_90a"
  int driver;  // the CUDA that the driver knows, which must load the code; 0: nothing is to be run
  int threads; // 0: as many as the process may use
  const char *dump_dir, *load_dir; // as lm_exec_options, files NAME.cu
  const bool *narrow; // by kernel: its buffers lie at odd addresses; NULL: as the plan says
} lm_cuda_compile_options;

// The architectures that plans are compiled for, NULL at the end.
extern const char *const lm_cuda_archs[];
const char *lm_cuda_arch_find(const char *name); // as it stands there; NULL if it does not
// "NVRTC 13.0"; LM_ENV without it.
lm_status lm_cuda_nvrtc_version(lm_buf *out);
lm_status lm_cuda_compile(const lm_plan *plan, const lm_cuda_compile_options *o, lm_cuda_code *out);
// Of the plan's kernels, in `a`: whether some step gives it a buffer that is not at a multiple of
// 16 bytes.
bool *lm_cuda_narrow_find(const lm_plan *plan, lm_arena *a);
void lm_cuda_code_free(lm_cuda_code *c);
#endif
