// simt_random_test.c - the random programs of tests/codegen/kernel_random_test.c as CUDA kernels
// under the shim.
// Build: plain
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/simt_run.h"
#include "tests/codegen/kernel_random_test.c"
