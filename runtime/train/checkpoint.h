// checkpoint.h - saves and loads checkpoints: folders step-000400 with
//   model.safetensors      parameters, f32, by logical name (layers.17.attn.wq) in logical shapes;
//                          those of evaluations if the optimizer has `eval`
//   optimizer.safetensors  optimizer state in the same form, with the state's name as a prefix:
//                          m.layers.17.attn.wq
//                          each in several files if it is large (checkpoint_files.h)
//   state.json             step, seed, the settings that must not change on resume, and the
//                          position of the run
//   checksums.txt          checksums of these files (checkpoint_sum.h)
//
// A checkpoint is written under a hidden name, synced and renamed, so a folder with the final name
// is complete. Equal runs write equal bytes. Files are compared with their checksums before they
// are used, since a disk may return other bytes than were written.
#ifndef LM_TRAIN_CHECKPOINT_H
#define LM_TRAIN_CHECKPOINT_H
#include "runtime/train/guard.h"

// A setting of the recipe, e.g. {"optimizer.betas", "(0.9, 0.95)"}.
typedef struct lm_train_key {
  const char *key, *value;
} lm_train_key;

typedef struct lm_checkpoint {
  int64_t step; // completed steps
  uint64_t seed;
  const lm_train_key *keys; // settings of the recipe that must not change; the caller compares them
  int n_keys;
  const lm_train_key *model; // description of the program's functions; as keys
  int n_model;
  // The best value of the evaluation that selects the checkpoint to keep, and its step. NAN: none.
  double best;
  int64_t best_step;
  // Early stopping: the best value so far, and evaluations since then without an improvement.
  double stop_best;
  int64_t bad_evals;
  const char *stop_on; // the evaluation and metric that early stopping watches; NULL means ""
  const char *ended;   // the settings under which early stopping ended the run; "": it did not
  int64_t tokens;      // trained on so far
  uint64_t data;       // lm_data_key of the training data; 0: unknown
  int64_t n_micro;     // micro-batches per step; 0: unknown
  const char *mesh;    // lm_run_mesh_text; "", NULL: one process
  lm_guard guard;
  lm_loss_scale loss_scale; // of the next step; 0: the model has none
} lm_checkpoint;

// Bytes of a checkpoint's tensors on disk.
int64_t lm_checkpoint_bytes(const lm_plan *plan);

typedef struct lm_checkpoint_options {
  const char *dir;  // receives the folder step-…
  int64_t max_file; // bytes of tensors in a file
  int keep;         // afterwards older checkpoints are removed until so many remain; 0: none is
  int64_t also;     // a further step to keep, the best one; -1: none
  bool background;  // a thread writes a copy in the host's memory while the caller continues
} lm_checkpoint_options;

// A checkpoint that is being written. Each rank writes its part of the files; the folder has its
// final name when all are complete. All ranks call `begin` and `end` in the same order, with the
// same options.
typedef struct lm_checkpoint_saving lm_checkpoint_saving;
// Returns when the values have been written or, in the background, copied. LM_USER: a parameter or
// a state is not finite; nothing is saved. *out is NULL after an error.
lm_status lm_checkpoint_save_begin(const lm_trainer *t, const lm_checkpoint *c,
                                   const lm_checkpoint_options *o, lm_checkpoint_saving **out);
// True if the files of this rank are complete or have failed, so that `end` does not wait for them.
bool lm_checkpoint_save_written(const lm_checkpoint_saving *x);
// Waits, and publishes the checkpoint. Frees x. After an error there is no checkpoint of that step,
// and the others are as before.
lm_status lm_checkpoint_save_end(lm_checkpoint_saving *x);
// Waits for this rank's files and frees x, which may be NULL, without a checkpoint: of a run that
// has failed. Rank 0 removes the files. Other ranks may still write some after that, in a folder
// that is no checkpoint; the next save removes them.
void lm_checkpoint_save_abandon(lm_checkpoint_saving *x);

typedef enum {
  LM_CHECKPOINT_STATE = 1,
  LM_CHECKPOINT_WEIGHTS = 2,
  LM_CHECKPOINT_ALL = 3
} lm_checkpoint_part; // the files that will be read

// A checkpoint whose files (those that will be read) are undamaged.
typedef struct lm_checkpoint_choice {
  const char *folder; // NULL: there is no checkpoint
  int64_t step;       // of the chosen checkpoint
  int64_t newest;     // of the newest checkpoint, which may be damaged
  const char *damage; // describes the damage of each newer checkpoint, a line each; NULL: no damage
} lm_checkpoint_choice;

// `path` is the folder of a run or, for "last", also of a checkpoint. which: "last" (the newest
// undamaged checkpoint), "best", or the number of a step. LM_USER: there is no such checkpoint.
// LM_ENV: the checkpoint, or for "last" every checkpoint, is damaged.
lm_status lm_checkpoint_choose(lm_arena *a, const char *path, const char *which,
                               lm_checkpoint_part part, lm_checkpoint_choice *out);

// Loads the checkpoint "last" of a path. Fills in *c except keys and model. Without an error,
// out->folder is NULL if `path` does not exist or has no checkpoints. LM_USER: the tensors do not
// match the plan.
lm_status lm_checkpoint_load(lm_arena *a, lm_trainer *t, const char *path, lm_checkpoint *c,
                             lm_checkpoint_choice *out);
#endif
