// checkpoint_folder.h - the folders step-000400 of a run: how one comes and goes. Which are whole:
// checkpoint_sum.h.
#ifndef LM_TRAIN_CHECKPOINT_FOLDER_H
#define LM_TRAIN_CHECKPOINT_FOLDER_H
#include "runtime/base/base.h"

typedef struct lm_checkpoint_steps {
  int64_t *v;
  uint32_t n, cap;
} lm_checkpoint_steps;

// dir/step-000400
char *lm_checkpoint_path(lm_arena *a, const char *dir, int64_t step);
// Newest first; none if there is no such folder.
lm_status lm_checkpoint_steps_list(lm_arena *a, const char *dir, lm_checkpoint_steps *out);
// Puts the written folder in place; what stands there already is exchanged for it in one step.
lm_status lm_checkpoint_folder_publish(lm_arena *a, const char *written, const char *path);
// Of the steps up to `newest`, `keep` stay (0: all), and `also` (-1: none). Later ones are never
// removed.
lm_status lm_checkpoint_steps_prune(lm_arena *a, const char *dir, int64_t newest, int keep,
                                    int64_t also);

// The checkpoints of a run that is resumed from before them, or begun again, are moved to a folder
// superseded-N beside them, with copies of what else the run's folder holds, so that superseded-N
// is a run folder itself.
typedef struct lm_checkpoint_aside {
  const char *folder;
  lm_checkpoint_steps steps;
} lm_checkpoint_aside; // folder NULL: there were none
// The steps behind `last`; -1: all of them.
lm_status lm_checkpoint_steps_set_aside(lm_arena *a, const char *dir, int64_t last,
                                        lm_checkpoint_aside *out);
#endif
