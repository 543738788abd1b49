// ports.h - connects the columns of a batch to the arguments of a plan's function.
#ifndef LM_TRAIN_PORTS_H
#define LM_TRAIN_PORTS_H
#include "runtime/data/feed/data.h"
#include "runtime/hal/port.h"

// The columns point to the memory of the function's arguments. A column that the function does not
// take points to spare memory, which close frees.
typedef struct lm_batch_ports {
  lm_batch batch;
  int64_t rows, seq;
  void *spare[LM_COLUMNS];
  lm_batch_column *more; // of batch
} lm_batch_ports;
// LM_BUG_STATUS: f takes no column, so rows and seq are unknown.
lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out);
void lm_batch_ports_close(lm_batch_ports *b);
#endif
