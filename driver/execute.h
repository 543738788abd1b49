// execute.h - a compiled project in memory: loaded kernels, arenas, and a trainer.
#ifndef LM_DRIVER_EXECUTE_H
#define LM_DRIVER_EXECUTE_H
#include "driver/compile.h"
#include "runtime/train/trainer.h"

typedef struct lm_execution {
  const lm_compiled *compiled;
  lm_exec *exec;
  lm_trainer *trainer; // NULL until lm_execution_train
} lm_execution;

// Loads the kernels and allocates the arenas. `c` must outlive the execution; close it in any case.
lm_status lm_execution_start(const lm_compiled *c, const lm_exec_options *o, lm_execution *out);
typedef struct lm_execution_training {
  lm_data *data;
  lm_comm *comm;         // NULL: one process
  int64_t last;          // the last step that is executed; 0: the last step of the run
  lm_timeline *timeline; // optional
  bool resumes;          // a checkpoint will replace the parameters, so `from` is not read
} lm_execution_training;
// Makes a trainer at step 0, with initial parameters or the weights of the model's `from`.
lm_status lm_execution_train(lm_execution *x, const lm_execution_training *o);
// Seconds of one call of a plan's function: the shortest of the calls made in at most `most`
// seconds, fewer if some confirm it. There are at least two calls, after a first one that does not
// count. 0 if the plan has no such function.
lm_status lm_execution_func_time(const lm_execution *x, lm_func_id id, int64_t seq, double most,
                                 double *out);
void lm_execution_close(lm_execution *x);
#endif
