// run_folder.h - the folder of a run: space for checkpoints (run_lock.c has its lock).
#ifndef LM_TRAIN_RUN_FOLDER_H
#define LM_TRAIN_RUN_FOLDER_H
#include "runtime/train/progress.h"

// LM_ENV if there is no space for a checkpoint of so many bytes; a note if not all of those that
// are kept fit, and another one that is being written.
lm_status lm_run_folder_space(const char *dir, int64_t checkpoint, int64_t kept, lm_progress *p);
bool lm_run_folder_same(const char *a, const char *b); // both exist and are one folder
#endif
