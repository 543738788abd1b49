// checkpoint_folder.h - the folders step-000400 of a run: how one comes and goes. Which are whole: checkpoint_sum.h.
#ifndef LM_TRAIN_CHECKPOINT_FOLDER_H
#define LM_TRAIN_CHECKPOINT_FOLDER_H
#include "runtime/base/base.h"

typedef struct lm_checkpoint_steps { int64_t *v; uint32_t n, cap; } lm_checkpoint_steps;

// dir/step-000400
char *lm_checkpoint_path(lm_arena *a, const char *dir, int64_t step);
// Newest first; none if there is no such folder.
lm_status lm_checkpoint_steps_list(lm_arena *a, const char *dir, lm_checkpoint_steps *out);
// Puts the written folder in place; what stands there already is exchanged for it in one step.
lm_status lm_checkpoint_folder_publish(lm_arena *a, const char *written, const char *path);
// Of the steps up to `newest`, `keep` stay (0: all), and `also` (-1: none); all later ones go.
lm_status lm_checkpoint_steps_prune(lm_arena *a, const char *dir, int64_t newest, int keep, int64_t also);
#endif
