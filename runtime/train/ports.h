// ports.h - arguments and results of a plan's functions, by name, in an executor's memory.
#ifndef LM_TRAIN_PORTS_H
#define LM_TRAIN_PORTS_H
#include "runtime/hal/exec.h"
#include "runtime/data/data.h"

// Scalars, converted from and to the port's type. Setting a name that is no argument does nothing: a function takes what
// it uses. Getting one that is no result gives `otherwise`.
void lm_port_set(lm_exec *e, const lm_plan_func *f, const char *name, double value);
double lm_port_get(lm_exec *e, const lm_plan_func *f, const char *name, double otherwise);
double lm_port_value(lm_exec *e, const lm_plan_port *p);

// Where a batch goes. Columns that f does not take get memory of their own, which close frees.
typedef struct lm_batch_ports { lm_batch batch; int64_t rows, seq; void *spare[5]; } lm_batch_ports;
// LM_BUG_STATUS if f takes none of them: then rows and seq cannot be known.
lm_status lm_batch_ports_open(lm_exec *e, const lm_plan_func *f, lm_batch_ports *out);
void lm_batch_ports_close(lm_batch_ports *b);
#endif
