// step_cost.h - the kernels of a training step beside lower bounds of their times on the machine.
#ifndef LM_DRIVER_STEP_COST_H
#define LM_DRIVER_STEP_COST_H
#include "driver/advise/load.h"
#include "driver/inspect/cost_rows.h"
#include "driver/rank_rows.h"
#include "driver/session.h"

// A token of decoding with one row, as the cost model predicts; positions: of the KV cache, which
// is full. lower_bound: seconds to read the weights and the cache. 0: not predicted.
typedef struct lm_decode_cost {
  int64_t positions;
  lm_cost_sum token;
  double lower_bound;
  double draw[LM_DRAW_KINDS]; // seconds in which the token is drawn, beside those
} lm_decode_cost;

typedef struct lm_step_cost {
  lm_cost_rows rows;
  lm_rank_rows ranks; // of a plan with a mesh
  lm_target machine;  // with its figures for `dtype`, the type of `real`
  lm_dtype dtype;
  int threads;
  double tokens;         // of a training step
  lm_decode_cost decode; // on a GPU, of models that decode without a request
  lm_load load;          // before the steps
} lm_step_cost;

// Compiles an open session. measured: also times each kernel in some steps, the least of which
// counts. If not measured, the target need not be this machine. link: between the ranks; NULL: that
// of the target.
lm_status lm_step_cost_find(lm_session *s, bool measured, const lm_link *link, lm_step_cost *out);
#endif
