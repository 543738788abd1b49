// gpu_states_check.c - the cases of tests/cuda/simt_states_test.c on a GPU.
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/gpu_run.h"
#include "tests/cuda/simt_states_test.c"
