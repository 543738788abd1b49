// init.h - initial values of parameters. Element i of the parameter `path` depends only on (seed,
// path, i): it uses word i mod 4 of Philox block i / 4 under lm_philox_key(seed, lm_hash(path)).
// Normal values come from the word pairs (0, 1) and (2, 3) by the Box-Muller transform,
// sqrt(-2 ln u) cos 2πv and sqrt(-2 ln u) sin 2πv with u and v in (0, 1), in float32. The
// elementary functions are implemented here, so that all machines and C libraries give equal
// values.
#ifndef LM_TRAIN_INIT_H
#define LM_TRAIN_INIT_H
#include "runtime/base/dtype.h"
#include "runtime/plan/plan.h"

void lm_init_fill(lm_init init, uint64_t seed, const char *path, float *out, int64_t n);
void lm_init_params(const lm_plan *plan, uint64_t seed, float *arena); // arena: LM_ARENA_PARAM
void lm_init_frozen(const lm_plan *plan, uint64_t seed, void *arena);  // arena: LM_ARENA_FIXED
#endif
