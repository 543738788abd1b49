// bench.h - timing training steps: what `lmc bench` and its --ablate share.
#ifndef LMC_BENCH_H
#define LMC_BENCH_H
#include "lmc/session.h"

// From the command's file to a trainer at step 0; compile_s: seconds from the recipe to loaded kernels.
lm_status lm_bench_start(lm_session *s, lm_cli *cli, const char *passes_off, double *out_compile_s);
// Runs step i (from 1), finished batches over and over.
lm_status lm_bench_step(lm_session *s, int64_t i, double *out_ms);

// One row a pass: a step with all of them and without it, run in turn.
lm_status lm_bench_ablate(lm_cli *cli, int64_t steps);
#endif
