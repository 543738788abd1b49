// cost_rows.h - a training step as a table with one row for each distinct kernel and each shape of
// GEMM.
#ifndef LM_DRIVER_COST_ROWS_H
#define LM_DRIVER_COST_ROWS_H
#include "compiler/plan/cost.h"
#include "runtime/base/timeline.h"

typedef struct lm_cost_row {
  const lm_plan_step *step; // the first of its kind
  const char *name;         // operations and source lines; sizes of a GEMM
  int64_t times;            // calls in a training step
  double flops, bytes;      // of all these calls
  double instructions;      // of all these calls of a generated kernel, of all lanes
  double lower_bound;       // of seconds, by the roofline
  double predicted;         // seconds, by the cost model
  double apart;             // seconds predicted for the library's GEMM and a kernel; else 0
  lm_cost_bound bound;      // of the predicted time
  double seconds;           // measured, the least time of each call; 0: not measured
} lm_cost_row;

typedef struct lm_cost_rows {
  const lm_plan *plan;
  lm_cost_row *v;
  uint32_t n, cap;
  lm_cost_call calls[LM_COST_CALLS]; // the functions of a training step
  int n_calls;
  uint32_t *row[LM_COST_CALLS];           // of each plan step of each function
  lm_cost_sum func[LM_COST_CALLS], step;  // predicted, with the gaps between launches
  double lower_bound, predicted, seconds; // of all rows
  double unit;                            // FLOP/s of the table's column of rates: 1e9 or 1e12
  double *call;                           // of each call of a step, the least that was measured
  uint32_t n_call, cap_call;
} lm_cost_rows;

// n_micro: micro-batches of a step. dtype: of the peak for kernels. Rows are allocated in `a`.
lm_cost_rows lm_cost_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro,
                               const lm_target *t, lm_dtype dtype);
// Measures the rows by the timeline of one training step. After several, each call of a kernel has
// the least of its times, so that other load of the machine adds little. Allocates in `a`.
void lm_cost_rows_measure(lm_arena *a, lm_cost_rows *rows, const lm_timeline *t);
// The most expensive row first, by measured time if there is one, in 80 columns; then kernels that
// compute a GEMM, beside the time of the library's GEMM and a separate kernel; then the functions.
void lm_cost_rows_print(const lm_cost_rows *rows, lm_buf *out);
void lm_cost_rows_json(const lm_cost_rows *rows, lm_buf *out); // an array
#endif
