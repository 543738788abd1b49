// cost_rows.h - a training step as a table: a row for each kernel and each product of a shape,
// however often it runs.
#ifndef LMC_COST_ROWS_H
#define LMC_COST_ROWS_H
#include "runtime/base/timeline.h"
#include "runtime/cpu/roofline.h"
#include "runtime/plan/plan.h"

typedef struct lm_cost_row {
  const lm_plan_step *step; // the first of its kind
  const char *name;         // operations, lines; sizes of a product
  int64_t times;            // in a training step
  double flops, bytes;      // of all of them
  double least;             // seconds by the roofline
  bool memory;              // …since bytes take that long, not arithmetic
  double seconds;           // measured; 0: not
} lm_cost_row;

enum {
  LM_STEP_FUNCS = 3
}; // what a training step runs: micro, norm, update

typedef struct lm_cost_rows {
  const lm_plan *plan;
  lm_cost_row *v;
  uint32_t n, cap;
  uint32_t *row[LM_STEP_FUNCS]; // of each step of each function
  double least, seconds;        // of all
} lm_cost_rows;

// n_micro: micro-batches of a step. Rows live in `a`.
lm_cost_rows lm_cost_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro,
                               const lm_roofline *r);
// Adds what a timeline holds of so many training steps.
void lm_cost_rows_measure(lm_cost_rows *rows, const lm_timeline *t, int64_t steps);
// The dearest first, as measured if it was.
void lm_cost_rows_print(const lm_cost_rows *rows, lm_buf *out);
void lm_cost_rows_json(const lm_cost_rows *rows, lm_buf *out); // an array
#endif
