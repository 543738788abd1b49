// cost_rows.h - a training step as a table with one row for each distinct kernel and each shape of
// GEMM.
#ifndef LM_DRIVER_COST_ROWS_H
#define LM_DRIVER_COST_ROWS_H
#include "runtime/base/timeline.h"
#include "runtime/plan/plan.h"
#include "target/target.h"

typedef struct lm_cost_row {
  const lm_plan_step *step; // the first of its kind
  const char *name;         // operations and source lines; sizes of a GEMM
  int64_t times;            // calls in a training step
  double flops, bytes;      // of all these calls
  double least;             // minimum of seconds, by the roofline
  bool memory;              // the bound is memory bandwidth, not arithmetic
  double seconds;           // measured; 0: not measured
} lm_cost_row;

enum {
  LM_STEP_FUNCS = 3
}; // micro, norm, update

typedef struct lm_cost_rows {
  const lm_plan *plan;
  lm_cost_row *v;
  uint32_t n, cap;
  uint32_t *row[LM_STEP_FUNCS]; // of each plan step of each function
  double least, seconds;        // of all rows
} lm_cost_rows;

// n_micro: micro-batches of a step. Rows are allocated in `a`.
lm_cost_rows lm_cost_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro,
                               const lm_target *t, lm_dtype dtype);
// Adds the times that a timeline recorded of `steps` training steps.
void lm_cost_rows_measure(lm_cost_rows *rows, const lm_timeline *t, int64_t steps);
// The most expensive row first, by measured time if there is one.
void lm_cost_rows_print(const lm_cost_rows *rows, lm_buf *out);
void lm_cost_rows_json(const lm_cost_rows *rows, lm_buf *out); // an array
#endif
