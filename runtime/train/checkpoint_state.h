// checkpoint_state.h - reads and writes state.json of a checkpoint.
#ifndef LM_TRAIN_CHECKPOINT_STATE_H
#define LM_TRAIN_CHECKPOINT_STATE_H
#include "runtime/train/checkpoint.h"

void lm_checkpoint_state_print(lm_buf *b, const lm_checkpoint *c);
// Fills in *c, with the saved keys and model. LM_USER: the file is not the state of a run.
lm_status lm_checkpoint_state_read(lm_arena *a, const char *folder, lm_checkpoint *c);
#endif
