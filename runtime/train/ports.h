// ports.h - where a batch goes among the arguments of a plan's function.
#ifndef LM_TRAIN_PORTS_H
#define LM_TRAIN_PORTS_H
#include "runtime/data/feed/data.h"
#include "runtime/hal/port.h"

// Columns that f does not take get memory of their own, which close frees.
typedef struct lm_batch_ports {
  lm_batch batch;
  int64_t rows, seq;
  void *spare[5];
} lm_batch_ports;
// LM_BUG_STATUS if f takes none of them: then rows and seq cannot be known.
lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out);
void lm_batch_ports_close(lm_batch_ports *b);
#endif
