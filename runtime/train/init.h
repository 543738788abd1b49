// init.h - initial values of parameters. Element i of the parameter `path` depends only on (seed,
// path, i): it uses word i mod 4 of Philox block i / 4 under lm_philox_key(seed, lm_hash(path)).
// Normal values come from the word pairs (0, 1) and (2, 3) by the Box-Muller transform,
// sqrt(-2 ln u) cos 2πv and sqrt(-2 ln u) sin 2πv with u and v in (0, 1), in float32. The
// elementary functions are implemented here, so that all machines and C libraries give equal
// values.
#ifndef LM_TRAIN_INIT_H
#define LM_TRAIN_INIT_H
#include "runtime/base/dtype.h"
#include "runtime/hal/tensor.h"

// Elements first … first + n - 1 of the parameter.
void lm_init_fill(lm_init init, uint64_t seed, const char *path, int64_t first, int64_t n,
                  float *out);
// Sets all trained parameters.
lm_status lm_init_params(lm_exec *e, const lm_plan *plan, uint64_t seed);
#endif
