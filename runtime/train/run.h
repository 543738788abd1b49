// run.h - the training loop: steps, metrics, evaluations, checkpoints, resumption, interruption.
//
// A step that goes wrong is the guard's (guard.h): its batch is left out, or the run returns to its
// newest checkpoint.
//
// A run that begins again in its folder, or resumes from one of its older checkpoints, moves the
// checkpoints that it supersedes aside (checkpoint_folder.h). The caller has compared keys and
// model with those of the checkpoint.
//
// SIGINT, SIGTERM or SIGHUP (a terminal that closes) lets the step in progress finish, saves and
// stops; a second one ends the process at once. Only one run at a time in a process, as signals
// belong to the process.
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
  int64_t every;                 // steps
  bool metrics[LM_EVAL_METRICS]; // what is written; what a file's bytes are unknown for is not
} lm_run_eval;

typedef struct lm_run_watch {
  int eval;
  lm_eval_metric metric;
} lm_run_watch; // eval: index, -1: none

// One run at a time reads and writes a folder. Before anything there is read: a file descriptor
// that holds it until it is closed, or the process ends; 0: there is no such folder yet. LM_USER if
// another run is at work in it.
lm_status lm_run_folder_lock(const char *dir, int *out);

typedef struct lm_run_options {
  lm_trainer *trainer; // parameters and states hold the values of step 0
  int64_t steps;       // the last step
  uint64_t seed;
  const char *dir; // run folder; NULL: nothing is written
  int lock;        // of that folder, held by the caller; 0: it is locked when it is opened
  int64_t every;
  int keep; // checkpoints: every 0: only the last step; keep 0: all
  lm_resume resume;
  const char *resume_path;
  const lm_train_key *keys;
  int n_keys; // saved with each checkpoint, as is the next (checkpoint.h)
  const lm_train_key *model;
  int n_model;
  const lm_run_eval *evals;
  int n_evals;
  lm_run_watch best; // the checkpoint of its least value stays
  lm_run_watch stop;
  int patience;
  double min_delta; // ends after so many evaluations without a gain of min_delta
  lm_guard_options guard;
  lm_progress progress; // `to` and what is shown
  // Called once it is certain that the run goes on in its folder, before its first step; may be
  // NULL.
  lm_status (*begin)(void *user);
  lm_status (*after_step)(void *user, int64_t step, const lm_step_result *r,
                          lm_progress *p); // may be NULL
  void (*warn)(void *user,
               const char *text); // what is to be told however little is shown; may be NULL
  void *user;
} lm_run_options;

typedef struct lm_run_outcome {
  int64_t resumed, step; // step that was resumed (0: from the start), last step done
  int interrupted;       // the signal that did it; 0: none
  bool stopped_early;
  int64_t skipped; // steps left out, as they went wrong
  int64_t empty;   // steps left out, as the weights of their tokens sum to nothing
  lm_step_result last;
} lm_run_outcome;

lm_status lm_run_train(const lm_run_options *o, lm_run_outcome *out);
#endif
