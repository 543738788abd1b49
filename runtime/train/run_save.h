// run_save.h - private interface of run.c and run_save.c: a run in progress and its checkpoints.
#ifndef LM_TRAIN_RUN_SAVE_H
#define LM_TRAIN_RUN_SAVE_H
#include "runtime/train/decisions.h"
#include "runtime/train/log.h"
#include "runtime/train/run.h"

// A run in progress.
typedef struct lm_run {
  const lm_run_options *o;
  lm_run_outcome *out;
  lm_arena *arena;
  lm_progress progress;
  lm_checkpoint state;
  lm_run_log *log;              // NULL: no folder
  struct lm_rank_log *rank_log; // NULL: none
  const char *newest; // folder of the newest checkpoint that was saved or resumed; NULL: none
  int64_t saved;      // step of the newest checkpoint in the run's own folder; -1: none
  lm_checkpoint_saving *saving; // that is being written in the background; NULL: none
  int64_t saving_step;          // its step
  int lock;                     // lock of the run's folder that this run owns; 0: none
  bool evals_empty;             // an evaluation without weight was reported
  bool best;                    // an evaluation of this step is the best so far
  lm_decisions now;             // of the current step
} lm_run;

static inline lm_timeline *lm_run_timeline(const lm_run *r) {
  return lm_trainer_options_of(r->o->trainer)->timeline;
}
static inline void lm_run_warn(const lm_run *r, const char *text) {
  if (r->o->warn)
    r->o->warn(r->o->user, text);
}
// Identifies the data of the next batch.
lm_status lm_run_data_key(const lm_run *r, uint64_t *out);
const char *lm_run_mesh(const lm_run *r); // as checkpoints name it

// Saves the present state unless the folder has it, or begins to, in the background.
lm_status lm_run_save(lm_run *r);
// Waits for the checkpoint in the background, if there is one. Its failure is reported; the status
// is that of the run.
lm_status lm_run_background_end(lm_run *r);
// The same for a run that ends with the error s, which it returns.
lm_status lm_run_background_close(lm_run *r, lm_status s);
#endif
