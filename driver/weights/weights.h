// weights.h - reads and writes the parameters of a plan, under native and foreign names.
#ifndef LM_DRIVER_WEIGHTS_H
#define LM_DRIVER_WEIGHTS_H
#include "driver/compile.h"
#include "runtime/weights/foreign.h"

// Views of the plan->n_params parameters in `arena` (parameters, gradients or an optimizer state),
// allocated in `a`.
lm_foreign_native *lm_weights_views(lm_arena *a, const lm_plan *plan, float *arena);

// Fills `arena`, laid out as the plan's parameters, from a safetensors file or a folder of them, by
// native names. One LM_USER status lists every tensor that is missing, has another shape, is not a
// float, or is unknown.
lm_status lm_weights_load(const lm_compiled *c, const char *path, float *arena);
// The weights that the recipe's model is `from`: a file or a folder of safetensors, a run of which
// the newest undamaged checkpoint is taken, or one checkpoint. LM_ENV if that one is damaged.
lm_status lm_weights_load_from(const lm_compiled *c, float *arena);
// As lm_weights_load, through `map hf`.
lm_status lm_weights_import(const lm_compiled *c, const char *path, float *arena);
// Writes `arena` as one file with native names.
lm_status lm_weights_save(const lm_compiled *c, const char *path, const float *arena);
// `views` under their foreign names; the caller destroys *out before the views.
lm_status lm_weights_foreign(const lm_compiled *c, const lm_foreign_native *views,
                             lm_foreign **out);
lm_status lm_weights_no_map(const lm_compiled *c); // the error of a model without `map hf`
#endif
