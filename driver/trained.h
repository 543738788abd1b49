// trained.h - a model with its weights: a checkpoint of a run's folder, or a file whose model is
// declared `from` weights.
#ifndef LM_DRIVER_TRAINED_H
#define LM_DRIVER_TRAINED_H
#include "driver/session.h"
#include "driver/weights/weights.h"

typedef struct lm_trained_choice {
  const lm_recipe_choice *from; // path: the folder of a run or a file; its sets follow the run's
  const char *step;             // "N", "best" or "last" of a run's checkpoints; NULL: "last"
  const char *command;          // what the weights are wanted for, named in messages
} lm_trained_choice;

// Opens the program of the run or the file. *out_weights: the checkpoint's file; NULL: the model's
// `from` names the weights. LM_USER if there are no weights.
lm_status lm_trained_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_trained_choice *x, const char **out_weights);
// Fills w. Frozen parameters come from the model's `from` or the seed; LM_USER if these are not
// what the checkpoint was trained on.
lm_status lm_trained_load(const lm_session *s, const char *weights, lm_weights w);
// Lowers and plans the parameters and their foreign names, and `what`: LM_LOWER_MERGED or
// LM_LOWER_PEFT.
lm_status lm_trained_params(lm_session *s, uint32_t what);
// Opens the program of a file, or that of a run, with the choices that the run was started with.
lm_status lm_program_open(lm_session *s, lm_ctx *ctx, const lm_events *events,
                          const lm_recipe_choice *x);
#endif
