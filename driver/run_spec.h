// run_spec.h - the numbers of a run, resolved from the recipe, from the data and from the choice of
// a micro-batch. The recipe itself does not change once it is resolved.
#ifndef LM_DRIVER_RUN_SPEC_H
#define LM_DRIVER_RUN_SPEC_H
#include "driver/stages.h"
#include "dsl/lower/columns.h"
#include "runtime/data/feed/data.h"

typedef struct lm_run_spec {
  const lm_recipe *recipe;  // the project's, with the sizes that its data fixes
  int64_t seq;              // tokens in a row, at the end of the run
  int64_t rows, n_micro;    // rows of a call of @micro, calls in a step
  int64_t predicted;        // tokens of the micro-batch whose time is predicted; 0: of the rows
  bool divides;             // the program is the part of one rank of the recipe's mesh
  int pp;                   // stages of a pipeline; 0 and 1: there is none
  int chunks;               // stages of a rank, of an interleaved pipeline; 0: one
  int multiple;             // the number of micro-batches in a step is one of it; 0 and 1: any
  int pipeline;             // micro-batches of a call, which pass through the stages; 0: it is one
  int parts;                // of the rows of a micro-batch, one for each rank; 0 and 1: one
  bool stages_divide;       // pp divides the rows of a micro-batch
  bool micro_auto;          // the micro-batch may be chosen to fit memory
  int64_t recorded_micro;   // tokens that this run has chosen before; 0: none
  double epoch_tokens;      // 0: not known
  int64_t steps;            // 0 until the model is lowered, since they may follow from its size
  lm_run_stages stages;     // the same
  lm_column_shapes columns; // further columns of the data, as far as they are known
} lm_run_spec;

static inline int64_t lm_run_micro(const lm_run_spec *x) { // tokens of a micro-batch
  return x->rows * x->seq / (x->pipeline ? x->pipeline : 1);
}

// The share of the time in which a stage of the pipeline has no micro-batch; 0 without one.
static inline double lm_run_bubble(const lm_run_spec *x) {
  double passes = (double)x->pipeline * (x->chunks ? x->chunks : 1);
  return x->pipeline ? (x->pp - 1.0) / (passes + x->pp - 1.0) : 0;
}

// Sets recipe, seq, rows, n_micro and micro_auto; dp and recorded_micro are set. `data`: prepared
// batches, which determine the sequence length and, without `batch` in the recipe, the tokens of a
// step; NULL: the recipe determines both. False if batch, micro and sequence length are not
// multiples of each other, which is reported.
bool lm_run_spec_size(lm_arena *a, const lm_recipe *r, const lm_data_info *data, lm_run_spec *x);
// The columns of texts: their axis of documents has the size that the recipe gives.
lm_column_shapes lm_run_columns(lm_ctx *c, const lm_recipe *r);
// Micro-batches of `micro` tokens: whole rows, and a divisor of the batch.
void lm_run_spec_set_micro(lm_run_spec *x, int64_t micro);
// Sets steps and stages for a model of `params` parameters.
void lm_run_spec_set_steps(lm_arena *a, lm_run_spec *x, double params);
#endif
