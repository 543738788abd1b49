// gpu_random_check.c - the random programs of tests/codegen/kernel_random_test.c on a GPU.
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/gpu_run.h"
#include "tests/codegen/kernel_random_test.c"
