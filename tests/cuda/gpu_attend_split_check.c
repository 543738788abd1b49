// gpu_attend_split_check.c - the attentions of tests/cuda/simt_attend_split_test.c on a GPU.
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/gpu_run.h"
#include "tests/cuda/simt_attend_split_test.c"
