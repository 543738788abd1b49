// checkpoint_state.h - state.json of a checkpoint: what a run knows besides its tensors.
#ifndef LM_TRAIN_CHECKPOINT_STATE_H
#define LM_TRAIN_CHECKPOINT_STATE_H
#include "runtime/train/checkpoint.h"

void lm_checkpoint_state_print(lm_buf *b, const lm_checkpoint *c);
// Fills in *c, with the keys and the model as they were saved. LM_USER if the file is not the state
// of a run.
lm_status lm_checkpoint_state_read(lm_arena *a, const char *folder, lm_checkpoint *c);
#endif
