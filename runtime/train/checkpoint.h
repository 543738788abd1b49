// checkpoint.h - a run's state on disk: folders step-000400 with
//   model.safetensors      parameters, f32, by logical name (layers.17.attn.wq) in logical shapes
//   optimizer.safetensors  optimizer states the same way, each name behind its state's:
//   m.layers.17.attn.wq state.json             step, seed, what must not change on resume, and the
//   run's own numbers checksums.txt          of these files (checkpoint_sum.h)
// Written under a hidden name, synced, renamed: a folder of that name is complete. The same run
// gives the same bytes. What is read is held against its checksum first: a disk may give back other
// bytes than it was given.
#ifndef LM_TRAIN_CHECKPOINT_H
#define LM_TRAIN_CHECKPOINT_H
#include "runtime/train/guard.h"

typedef struct lm_train_key {
  const char *key, *value;
} lm_train_key; // e.g. {"optimizer.betas", "(0.9, 0.95)"}

typedef struct lm_checkpoint {
  int64_t step; // done
  uint64_t seed;
  const lm_train_key *keys;
  int n_keys; // of the recipe: what must not change; the caller compares
  const lm_train_key *model;
  int n_model; // what the program computes, part by part; the same
  double best;
  int64_t best_step; // of the evaluation whose best checkpoint stays; best NAN: none yet
  double stop_best;
  int64_t bad_evals; // of early stopping: the best so far, evaluations since without a gain
  const char *stop_on,
      *ended;      // what it watches; the terms on which it ended the run, "": it has not. NULL: ""
  int64_t tokens;  // seen so far
  uint64_t data;   // lm_data_key of what was trained on; 0: not known
  int64_t n_micro; // micro-batches in a step; 0: not known
  lm_guard guard;
} lm_checkpoint;

// Bytes that one takes on disk, but for its few hundred bytes of text.
int64_t lm_checkpoint_bytes(const lm_plan *plan);

// LM_USER, and nothing is saved, if a parameter or state is not finite.
// Saves as dir/step-… and then removes all but the newest `keep` (0: all stay), counting only steps
// up to this one, and whatever an abandoned run left of later steps. `also` (-1: none) is a step
// that stays, the best one.
lm_status lm_checkpoint_save(const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep,
                             int64_t also);

typedef enum {
  LM_CHECKPOINT_STATE = 1,
  LM_CHECKPOINT_WEIGHTS = 2,
  LM_CHECKPOINT_ALL = 3
} lm_checkpoint_part; // what will be read

// A checkpoint whose files, as far as they will be read, are what was written.
typedef struct lm_checkpoint_choice {
  const char *folder;   // NULL: there is none at all
  int64_t step, newest; // its step and the newest one's, where it is the newest whole one
  const char
      *damage; // what is wrong with the ones that are newer, a line each; NULL: there is none
} lm_checkpoint_choice;

// `path` is a run's folder, or, for "last", a checkpoint's. which: "last", the newest one that is
// whole; "best", or a step's number: LM_USER if there is no such one. LM_ENV if none is whole, or
// the one that was asked for is not.
lm_status lm_checkpoint_choose(lm_arena *a, const char *path, const char *which,
                               lm_checkpoint_part part, lm_checkpoint_choice *out);

// Loads the "last" one of a path. In *c keys and model stay as given, the rest is filled in;
// LM_USER if the tensors are not the plan's. out->folder NULL, without error: `path` is a folder
// without checkpoints, or nothing is there.
lm_status lm_checkpoint_load(lm_arena *a, lm_trainer *t, const char *path, lm_checkpoint *c,
                             lm_checkpoint_choice *out);
#endif
