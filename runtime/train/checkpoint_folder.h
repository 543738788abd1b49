// checkpoint_folder.h - publishes, lists and removes the folders step-000400 of a run.
// checkpoint_sum.h checks them for damage.
#ifndef LM_TRAIN_CHECKPOINT_FOLDER_H
#define LM_TRAIN_CHECKPOINT_FOLDER_H
#include "runtime/base/base.h"

typedef struct lm_checkpoint_steps {
  int64_t *v;
  uint32_t n, cap;
} lm_checkpoint_steps;

// dir/step-000400
char *lm_checkpoint_path(lm_arena *a, const char *dir, int64_t step);
// Newest first; empty if dir does not exist.
lm_status lm_checkpoint_steps_list(lm_arena *a, const char *dir, lm_checkpoint_steps *out);
// Renames `written` to `path`; an existing folder is replaced atomically.
lm_status lm_checkpoint_folder_publish(lm_arena *a, const char *written, const char *path);
// Removes the oldest checkpoints of the steps up to `newest` until `keep` remain (0: removes none).
// Keeps step `also` (-1: none) and all steps after `newest`.
lm_status lm_checkpoint_steps_prune(lm_arena *a, const char *dir, int64_t newest, int keep,
                                    int64_t also);

// When a run is restarted, or resumed from an older checkpoint, its later checkpoints are moved to
// a subfolder superseded-N, with copies of the other files of the run, so that superseded-N is
// itself the folder of a run.
typedef struct lm_checkpoint_aside {
  const char *folder; // NULL: no checkpoint was moved
  lm_checkpoint_steps steps;
} lm_checkpoint_aside;
// Moves the checkpoints of the steps after `last`; -1: all checkpoints.
lm_status lm_checkpoint_steps_set_aside(lm_arena *a, const char *dir, int64_t last,
                                        lm_checkpoint_aside *out);
#endif
