// ports.h - connects the columns of a batch to the arguments of a plan's function.
#ifndef LM_TRAIN_PORTS_H
#define LM_TRAIN_PORTS_H
#include "runtime/data/feed/data.h"
#include "runtime/hal/port.h"

// An argument that has a part of the positions: `runs` parts of `bytes` bytes each.
typedef struct lm_batch_cut {
  const char *whole; // the column
  char *part;        // the argument
  int64_t runs, bytes;
  int parts, own; // the parts of each run, and the number of this rank's
  bool balanced;  // an early and a late half of one, as lm_plan_mesh says
} lm_batch_cut;

// The columns have whole rows. They point to the memory of the function's arguments; those of which
// an argument has a part, and those that the function does not take, to memory that close frees.
typedef struct lm_batch_ports {
  lm_batch batch;
  int64_t rows, seq; // of the columns
  void **spare;
  int n_spare;
  lm_batch_column *more; // of batch
  lm_batch_cut *cuts;
  int n_cuts;
} lm_batch_ports;
// LM_BUG_STATUS: f takes no column, so rows and seq are unknown.
lm_status lm_batch_ports_open(lm_exec *e, const lm_plan *p, const lm_plan_func *f,
                              lm_batch_ports *out);
// Copies this rank's positions of the columns to the arguments. Call it after they are filled.
void lm_batch_ports_cut(const lm_batch_ports *b);
void lm_batch_ports_close(lm_batch_ports *b);
#endif
