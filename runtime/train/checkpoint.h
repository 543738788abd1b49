// checkpoint.h - a run's state on disk: folders step-000400 with
//   model.safetensors      parameters, f32, by logical name (layers.17.attn.wq) in logical shapes
//   optimizer.safetensors  optimizer states the same way, each name behind its state's: m.layers.17.attn.wq
//   state.json             step, seed, what must not change on resume, and the run's own numbers
// Written under a hidden name, synced, renamed: a folder of that name is complete. The same run gives the same bytes.
#ifndef LM_TRAIN_CHECKPOINT_H
#define LM_TRAIN_CHECKPOINT_H
#include "runtime/train/guard.h"

typedef struct lm_train_key { const char *key, *value; } lm_train_key;   // e.g. {"optimizer.betas", "(0.9, 0.95)"}

typedef struct lm_checkpoint {
  int64_t step;                        // done
  uint64_t seed;
  const lm_train_key *keys; int n_keys;   // what must not change; compared by text on resume
  double best; int64_t best_step;      // of the evaluation whose best checkpoint stays; best NAN: none yet
  double stop_best; int64_t bad_evals; // of early stopping: the best so far, evaluations since without a gain
  int64_t tokens;                      // seen so far
  lm_guard guard;
} lm_checkpoint;

// Bytes that one takes on disk, but for its few hundred bytes of text.
int64_t lm_checkpoint_bytes(const lm_plan *plan);

// LM_USER, and nothing is saved, if a parameter or state is not finite.
// Saves as dir/step-… and then removes all but the newest `keep` (0: all stay), counting only steps up to this one, and
// whatever an abandoned run left of later steps. `also` (-1: none) is a step that stays, the best one.
lm_status lm_checkpoint_save(const lm_trainer *t, const char *dir, const lm_checkpoint *c, int keep, int64_t also);

// Loads a checkpoint folder, or the newest complete one of a run folder. In *c keys must be given, the rest is filled
// in; LM_USER if a key differs or the tensors are not the plan's. *out_found false, without error: `path` is a folder
// without checkpoints, or nothing is there.
lm_status lm_checkpoint_load(lm_trainer *t, const char *path, lm_checkpoint *c, bool *out_found);

// The newest complete checkpoint's folder of a run folder, or `path` itself if it is one; NULL if there is none.
lm_status lm_checkpoint_newest(lm_arena *a, const char *path, const char **out);
// The same for "last", "best" or a step's number. LM_USER if there is none.
lm_status lm_checkpoint_find(lm_arena *a, const char *path, const char *which, const char **out);
#endif
