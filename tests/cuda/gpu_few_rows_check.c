// gpu_few_rows_check.c - the GEMMs of tests/cuda/simt_few_rows_test.c on a GPU.
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/gpu_run.h"
#include "tests/cuda/simt_few_rows_test.c"
