// check.h - checks of recipes that need no weights, data or device.
#ifndef LM_DRIVER_CHECK_H
#define LM_DRIVER_CHECK_H
#include "driver/session.h"

typedef struct lm_check_options {
  lm_recipe_choice from; // recipe NULL: every recipe of the file
  lm_target target;
} lm_check_options;

// Checks a file's recipes. Errors are diagnostics; `checked` is called for each recipe that has
// none, with its lowered session. *out_n: the number of recipes, 0 if the file has none.
lm_status lm_check_run(lm_ctx *ctx, const lm_events *events, const lm_check_options *o,
                       void (*checked)(void *user, const lm_session *s), void *user, int *out_n);
#endif
