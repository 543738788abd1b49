// bench.h - how fast a recipe trains on this machine, and how much each optimization contributes.
#ifndef LM_DRIVER_BENCH_H
#define LM_DRIVER_BENCH_H
#include "driver/advise/load.h"
#include "driver/session.h"

typedef struct lm_bench_options {
  lm_recipe_choice from;
  lm_target target;
  lm_variant variant;
  int threads; // 0: one for each core
  int64_t steps;
  const char *dump_dir, *load_dir; // as in lm_session
} lm_bench_options;

typedef struct lm_bench_figures {
  const char *compute;    // the type of `real`
  const char *tuned_text; // the step that max-autotune chose; NULL: the default one
  const char *tuned_step; // the same as JSON
  double ms_per_step, ms_mean, ms_first;
  double ms_processor; // of all threads; the least of a step
  double first_s;      // from the start to the end of the first step
  double gemm_ms;      // the GEMMs of a step alone; 0: not measured
  double compile_s;    // lowering, planning, tuning and loading
  double tokens_per_s, model_flops, peak_flops;
  int64_t params, peak_bytes, resident_bytes;
  int kernels, compiled, tuned, measured;
  lm_load load; // before the steps
} lm_bench_figures;

// Times `steps` training steps after a first one, and the GEMMs of the model's weights alone. Texts
// are allocated in the context's arena.
lm_status lm_bench_run(lm_ctx *ctx, const lm_events *events, const lm_bench_options *o,
                       lm_bench_figures *out);

// One pass of the ablation: a step with it and a step without it.
typedef struct lm_ablation_row {
  const char *pass;
  bool same;       // the plan does not depend on the pass
  bool off;        // the default plan is the one without it
  bool unmeasured; // no time was left
  double with_ms, without_ms;
  int64_t with_bytes, without_bytes;
  lm_load load; // before the first step of the first row
} lm_ablation_row;

// 0 if it was not measured.
double lm_ablation_ratio(const lm_ablation_row *x);

typedef struct lm_ablation_options {
  // steps: timed steps of a row. They are fewer if the budget ends, and more if they are short and
  // do not confirm each other. The variant and the folders are not used.
  lm_bench_options bench;
  double budget; // time limit in seconds
  // Receives each row as soon as it is measured. micro: tokens of the micro-batch that was timed.
  void (*row)(void *user, const lm_ablation_row *x, int64_t micro);
  void *user;
} lm_ablation_options;

lm_status lm_ablation_run(lm_ctx *ctx, const lm_events *events, const lm_ablation_options *o);

// Shared: a session from a file to a plan, and from there to step 0. micro: tokens of a
// micro-batch; 0: the recipe's.
lm_status lm_bench_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                        const lm_bench_options *o, int64_t micro);
lm_status lm_bench_plan(lm_session *s);
lm_status lm_bench_start(lm_session *s);
#endif
