// rank_rows.h - the messages of one rank of a mesh to the others in a training step.
#ifndef LM_DRIVER_RANK_ROWS_H
#define LM_DRIVER_RANK_ROWS_H
#include "runtime/plan/plan.h"
#include "target/link.h"

// The collectives of a step with the same kind, axis of the mesh, size and source line.
typedef struct lm_rank_row {
  const lm_plan_comm *comm;
  const char *label;       // operation and source line
  int64_t times;           // in a step
  int64_t messages, bytes; // that the rank sends in all of them
  // Predicted seconds: of the transfers, if each has its lane alone; of the steps that run while
  // they are under way; in which steps wait for them. transfer and exposed are 0 if the link is
  // unknown.
  double transfer, beside, exposed;
  const lm_plan_step *hides; // the longest step that runs while one is under way; NULL: none
  double hides_seconds;
} lm_rank_row;
typedef struct lm_rank_rows {
  const lm_plan *plan;
  lm_rank_row *v;
  uint32_t n, cap;
  int64_t messages, bytes;  // of all rows
  double transfer, exposed; // of all rows
  const lm_link *link;      // of the prediction; NULL: unknown
  bool gpu;                 // the prediction is of GPUs
} lm_rank_rows;

// link: NULL, or that between the ranks.
typedef struct lm_rank_machine {
  const lm_target *target;
  const lm_link *link;
} lm_rank_machine;

// Of the rank at which the plan is placed. n_micro: micro-batches of a step. Allocates in `a`.
lm_rank_rows lm_rank_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro);
// Adds the predicted seconds. A phase of a collective (runtime/comm/exchange.h) takes the latency
// of the link and the time of the bytes that a rank sends, or receives if these are more; transfers
// slow no step and no other lane.
void lm_rank_rows_times(lm_rank_rows *rows, const lm_rank_machine *m, int64_t n_micro);
// The row with the most bytes first.
void lm_rank_rows_print(const lm_rank_rows *rows, lm_buf *out);
void lm_rank_rows_json(const lm_rank_rows *rows, lm_buf *out); // an array
// "param 1.2 MB, grad 1.2 MB, …": the arenas of a rank.
void lm_rank_memory_print(const lm_plan *p, lm_buf *out);
#endif
