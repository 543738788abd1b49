// rank_rows.h - the messages of one rank of a mesh to the others in a training step.
#ifndef LM_DRIVER_RANK_ROWS_H
#define LM_DRIVER_RANK_ROWS_H
#include "runtime/plan/plan.h"
#include "target/target.h"

// The collectives of a step with the same kind, axis of the mesh, size and source line.
typedef struct lm_rank_row {
  const lm_plan_comm *comm;
  const char *label;       // operation and source line
  int64_t times;           // in a step
  int64_t messages, bytes; // that the rank sends in all of them
  double beside;           // predicted seconds of the steps that run while they are under way
} lm_rank_row;
typedef struct lm_rank_rows {
  const lm_plan *plan;
  lm_rank_row *v;
  uint32_t n, cap;
  int64_t messages, bytes; // of all rows
} lm_rank_rows;

// Of the rank at which the plan is placed. n_micro: micro-batches of a step. Allocates in `a`.
lm_rank_rows lm_rank_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro);
// Adds `beside` of each row, on a machine. The transfers themselves take no time.
void lm_rank_rows_beside(lm_rank_rows *rows, const lm_target *t, int64_t n_micro);
// The row with the most bytes first.
void lm_rank_rows_print(const lm_rank_rows *rows, lm_buf *out);
void lm_rank_rows_json(const lm_rank_rows *rows, lm_buf *out); // an array
// "param 1.2 MB, grad 1.2 MB, …": the arenas of a rank.
void lm_rank_memory_print(const lm_plan *p, lm_buf *out);
#endif
