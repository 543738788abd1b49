// bench.h - timing training steps: what `lmc bench` and its --ablate share.
#ifndef LMC_BENCH_H
#define LMC_BENCH_H
#include "lmc/open.h"

// The command's file and its data, of a variant of the plan and with another micro-batch (0: the
// recipe's).
lm_status lm_bench_open(lm_session *s, lm_cli *cli, lm_variant variant, int64_t micro);
lm_status lm_bench_plan(lm_session *s);  // from there to a plan
lm_status lm_bench_start(lm_session *s); // to loaded kernels; lm_session_train goes on to step 0
// Runs step i (from 1), finished batches over and over.
lm_status lm_bench_step(lm_session *s, int64_t i, double *out_ms);

// One row a pass: a step with all of them and without it, run in turn, so many times at most and
// for about so many seconds.
lm_status lm_bench_ablate(lm_cli *cli, int64_t turns, double budget);
#endif
