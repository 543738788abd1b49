// trained.h - a model with its weights, as a command's argument names them: the folder of a run, of
// which one checkpoint is taken, or a file whose model is `from` weights.
#ifndef LMC_TRAINED_H
#define LMC_TRAINED_H
#include "lmc/session.h"

// Which checkpoint; commands that take RUN|FILE have it.
#define LM_OPT_STEP                                                                                \
  {                                                                                                \
    .name = "step", .kind = LM_OPT_TEXT, .value = "N|best|last",                                   \
    .help = "which checkpoint of the run (last)"                                                   \
  }

// Opens the program of RUN or FILE. *out_weights: the checkpoint's file; NULL: what the model is
// `from`. LM_USER if there are no weights.
lm_status lm_trained_open(lm_session *s, lm_cli *cli, const char **out_weights);
// Fills `arena`, laid out as the plan's parameters.
lm_status lm_trained_load(const lm_session *s, const char *weights, float *arena);
// Lowers and plans no function but for the maps: parameters and their foreign names are all that is
// needed.
lm_status lm_trained_params(lm_session *s);
#endif
