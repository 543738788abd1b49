// stages.h - the stages of a run: their steps, sequence lengths and sources.
#ifndef LM_DRIVER_STAGES_H
#define LM_DRIVER_STAGES_H
#include "dsl/recipe/recipe.h"

typedef struct lm_run_stage {
  int64_t first, last; // steps, from 1; last < first: the run is too short for the stage
  int64_t seq, rows;   // tokens in a row, rows of a step
  const lm_recipe_weight *mix;
  uint32_t n_mix;   // 0: the rows of all sources are one set
  int64_t func_seq; // lm_func_key.seq of the functions that compute its micro-batches
  double flops;     // of the model, a micro-batch; 0: not known yet
} lm_run_stage;
typedef struct lm_run_stages {
  lm_run_stage *v;
  int n;
} lm_run_stages;

// The first step, from 0, of a stage that begins at this share of a run.
int64_t lm_stage_first(double from, int64_t steps);
// At least one stage. seq: tokens in a row at the end of the run; rows: rows of that length in a
// step.
lm_run_stages lm_stages_find(lm_arena *a, const lm_recipe *r, int64_t steps, int64_t seq,
                             int64_t rows);
void lm_stages_print(const lm_run_stages *s, lm_buf *b); // one line each, for people
void lm_stages_json(const lm_run_stages *s, lm_buf *b);
#endif
