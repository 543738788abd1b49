// sass.h - facts about machine code (SASS, of sm_90 and later) that NVRTC's log does not have.
#ifndef LM_CUDA_SASS_H
#define LM_CUDA_SASS_H
#include "runtime/base/base.h"

// True if the image is machine code for NVIDIA's GPUs.
bool lm_sass_is(const char *image, size_t n);
// True if a kernel may begin before the kernel in front of it has ended: it waits for the end
// (ACQBULK) before it touches memory or branches, and no load reads global memory as constant
// (LDG.CONSTANT, which the wait does not order). False if the image has no such kernel.
bool lm_sass_begins_first(const char *image, size_t n, const char *kernel);
#endif
