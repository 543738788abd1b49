// checkpoint.h - saves and loads checkpoints: folders step-000400 with
//   model.safetensors      parameters, f32, by logical name (layers.17.attn.wq) in logical shapes;
//                          those of evaluations if the optimizer has `eval`
//   optimizer.safetensors  optimizer state in the same form, with the state's name as a prefix:
//                          m.layers.17.attn.wq
//   state.json             step, seed, the settings that must not change on resume, and the
//   position
//                          of the run
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
  const char *mesh;    // of the ranks: "4 ranks (dp 2, tp 2)"; "", NULL: one process
  lm_guard guard;
  lm_loss_scale loss_scale; // of the next step; 0: the model has none
} lm_checkpoint;

// Bytes of a checkpoint's tensors on disk.
int64_t lm_checkpoint_bytes(const lm_plan *plan);

// All ranks call it; rank 0 saves dir/step-…, then removes older checkpoints until `keep` remain
// (0: removes none). `also`
// (-1: none) is a further step to keep, the best one. LM_USER: a parameter or a state is not
// finite; nothing is saved.
lm_status lm_checkpoint_save(const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep,
                             int64_t also);

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
