// train.h - a training run: from a recipe to steps, checkpoints, evaluations and samples.
//
//   open    program and recipe, the run's folder locked, the checkpoint that it resumes from
//   plan    data, plan, tuning, loaded kernels
//   run     the steps
//
// Each continues the previous one. Close it in any case.
#ifndef LM_DRIVER_TRAIN_H
#define LM_DRIVER_TRAIN_H
#include "driver/generate.h"
#include "driver/resume.h"
#include "runtime/train/run.h"

typedef struct lm_training_options {
  lm_recipe_choice from;
  const char *dir; // the run's folder; NULL: the recipe's, and without `save` nothing is written
  lm_resume_choice resume;
  bool logs;                // lm_run_options
  bool profile;             // records when each kernel runs
  const char *profile_path; // NULL: profile.json in the run's folder
  FILE *to;                 // receives the status of the training; NULL: nothing
  bool terminal;            // `to` is a terminal
  bool samples;             // they are made, by all ranks
  // Receives the text of samples; NULL on all ranks but the first.
  void (*write)(void *user, const char *p, size_t n);
  void *user;
} lm_training_options;

typedef struct lm_training_sample {
  int64_t every; // steps; 0: after the last one only
  lm_sample_options o;
  lm_request request;
} lm_training_sample;

typedef struct lm_training {
  lm_session s; // target, variant and kernel folders are set before it is opened
  lm_training_options options;
  const char *dir; // NULL: nothing is saved
  lm_training_sample *samples;
  lm_resumption resumption;
  lm_run_options o;
} lm_training;

lm_status lm_training_open(lm_training *x, lm_ctx *ctx, const lm_events *events,
                           const lm_training_options *o);
lm_status lm_training_plan(lm_training *x);
// Steps that are left and the seconds that they take, by one micro-batch of each stage; 0 seconds
// if ranks exchange data in a micro-batch, since one rank alone cannot measure it.
lm_status lm_training_time(const lm_training *x, int64_t *out_steps, double *out_seconds);
lm_status lm_training_run(lm_training *x, lm_run_outcome *out);
void lm_training_close(lm_training *x);
#endif
