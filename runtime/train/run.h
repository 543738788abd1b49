// run.h - the training loop: steps, metrics, evaluations, checkpoints, resuming, interruption.
//
// A checkpoint in the background is written by a thread from a copy in the host's memory. There is
// one at a time: the next one waits, and so do a rollback and the end of the run. If it fails, that
// is reported and the run continues; a checkpoint in the foreground that fails ends the run.
//
// The guard (guard.h) skips bad steps or rolls the run back to its newest checkpoint.
//
// A run that restarts in its folder, or resumes from one of its older checkpoints, moves the
// superseded checkpoints to a subfolder (checkpoint_folder.h). The caller compares keys and model
// with the checkpoint's.
//
// On SIGINT, SIGTERM, SIGHUP or SIGUSR1 the run finishes the current step, saves and stops; a
// second signal ends the process immediately. A process can have only one run at a time, since
// signal handlers are global.
#ifndef LM_TRAIN_RUN_H
#define LM_TRAIN_RUN_H
#include "runtime/train/checkpoint.h"
#include "runtime/train/eval.h"
#include "runtime/train/progress.h"

typedef enum {
  LM_RESUME_AUTO,
  LM_RESUME_NEVER,
  LM_RESUME_PATH
} lm_resume;

typedef struct lm_run_eval {
  const char *name;
  int part;
  int64_t every;                 // steps between evaluations
  bool metrics[LM_EVAL_METRICS]; // whether to report each metric; NAN is never reported
} lm_run_eval;

typedef struct lm_run_watch {
  int eval; // index; -1: none
  lm_eval_metric metric;
} lm_run_watch;

// Locks the folder of a run; call it before reading anything there. *out is a file descriptor that
// holds the lock until it is closed or the process ends; 0: the folder does not exist. LM_USER:
// another run holds the lock.
lm_status lm_run_folder_lock(const char *dir, int *out);

typedef struct lm_run_options {
  lm_trainer *trainer; // parameters and states hold the values of step 0
  lm_comm *comm;       // the trainer's; rank 0 writes, reports and decides. NULL: one process
  int64_t steps;       // the last step
  uint64_t seed;
  const char *dir;  // folder of the run; NULL: nothing is written
  int lock;         // lock of dir that the caller holds; 0: lm_run_train locks dir
  int64_t every;    // steps between checkpoints; 0: only after the last step
  int keep;         // maximum number of checkpoints; 0: no limit
  int64_t max_file; // bytes of tensors in a file of a checkpoint; 0: no limit
  bool background;  // checkpoints are written while the run continues; all but the last
  bool logs;        // each of several ranks writes a log (rank_log.h)
  lm_resume resume;
  const char *resume_path;
  const lm_train_key *keys; // saved with each checkpoint (checkpoint.h)
  int n_keys;
  const lm_train_key *model; // as keys
  int n_model;
  const char *schedule; // of a pipeline, if not gpipe: sums are taken in another order
  const lm_run_eval *evals;
  int n_evals;
  lm_run_watch best; // the checkpoint with the minimum of this metric is kept
  // Early stopping: the run ends after `patience` evaluations that do not improve the metric by
  // min_delta.
  lm_run_watch stop;
  int patience;
  double min_delta;
  lm_guard_options guard;
  lm_progress progress; // the caller sets the public members
  // Called before the first step, once the run is certain to use its folder; not if the folder's
  // own run is finished, so that values it was started with are not recorded. Optional.
  lm_status (*begin)(void *user);
  // Called if the run would resume from a checkpoint of `path` whose data was another one; a
  // failure ends the run. Optional.
  lm_status (*other_data)(void *user, const char *path);
  // Called after each step. Optional.
  lm_status (*after_step)(void *user, int64_t step, const lm_step_result *r, lm_progress *p);
  void (*warn)(void *user, const char *text); // reports a warning, at any verbosity. Optional.
  void *user;
} lm_run_options;
// The ranks of a run as its checkpoints name them: "2 ranks (pp 2) with interleaved 2"; "": one
// process.
const char *lm_run_mesh_text(lm_arena *a, const lm_plan *plan, const char *schedule);

typedef struct lm_run_outcome {
  int64_t resumed; // step of the checkpoint that was resumed; 0: none
  int64_t step;    // last completed step
  int interrupted; // the signal that interrupted the run; 0: none
  bool stopped_early;
  int64_t skipped;   // bad steps
  int64_t empty;     // steps whose weights sum to 0 or less
  int64_t overflows; // steps that were skipped to halve the loss scale
  lm_step_result last;
} lm_run_outcome;

lm_status lm_run_train(const lm_run_options *o, lm_run_outcome *out);
#endif
