// init.h - initial values of parameters. Element i of the parameter named `path` is a function of
// (seed, path, i) alone: word i mod 4 of Philox block i / 4 under lm_philox_key(seed,
// lm_hash(path)). Normal numbers are made from pairs of words (0, 1) and (2, 3) by Box and Muller:
// sqrt(-2 ln u) cos 2πv and sin 2πv, u and v in (0, 1), in float32 by functions of its own, so that
// every machine and C library makes the same ones.
#ifndef LM_TRAIN_INIT_H
#define LM_TRAIN_INIT_H
#include "runtime/base/dtype.h"
#include "runtime/plan/plan.h"

void lm_init_fill(lm_init init, uint64_t seed, const char *path, float *out, int64_t n);
void lm_init_params(const lm_plan *plan, uint64_t seed, float *arena); // arena: LM_ARENA_PARAM
#endif
