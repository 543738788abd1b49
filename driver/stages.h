// stages.h - a run as stages of its data: which steps, rows of which length, from which sources.
#ifndef LMC_STAGES_H
#define LMC_STAGES_H
#include "dsl/recipe/recipe.h"

typedef struct lm_run_stage {
  int64_t first, last; // steps, from 1; last < first: the run is too short for it
  int64_t seq, rows;   // places in a row, rows of a step
  const lm_recipe_weight *mix;
  uint32_t n_mix; // none: rows of all sources are one set
  const char *loss,
      *micro;   // functions of the module and the plan that its micro-batches go through
  double flops; // of the model, a micro-batch; 0: not known yet
} lm_run_stage;
typedef struct lm_run_stages {
  lm_run_stage *v;
  int n;
} lm_run_stages;

// The first step, from 0, of a stage that begins at this share of a run.
int64_t lm_stage_first(double from, int64_t steps);
// At least one. seq: places in a row at the end of the run; rows: of a step of such rows.
lm_run_stages lm_stages_find(lm_arena *a, const lm_recipe *r, int64_t steps, int64_t seq,
                             int64_t rows);
void lm_stages_print(const lm_run_stages *s, lm_buf *b); // a line each, for people
void lm_stages_json(const lm_run_stages *s, lm_buf *b);
#endif
