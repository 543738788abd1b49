// simt_route_test.c - the cases of tests/codegen/route_test.c as CUDA kernels under the shim, on a
// GPU of one multiprocessor, whose blocks compute several tiles each.
// Build: plain
#include "tests/codegen/cache.h" // asks the system for nftw, so before all others
#include "tests/cuda/simt_run.h"

static lm_plan_options one_unit(void) {
  lm_plan_options o = simt_options();
  o.target.units = 1;
  return o;
}
#undef RUN_OPTIONS
#define RUN_OPTIONS one_unit
#include "tests/codegen/route_test.c"
