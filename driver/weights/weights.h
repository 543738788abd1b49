// weights.h - parameters of a running plan by name: native files, foreign names and layouts.
#ifndef LMC_WEIGHTS_H
#define LMC_WEIGHTS_H
#include "driver/session.h"
#include "runtime/weights/foreign.h"

// The parameters as they lie in `arena` (parameters, gradients or a state), plan->n_params of them,
// made in `a`.
lm_foreign_native *lm_weights_views(lm_arena *a, const lm_plan *plan, float *arena);

// Fills `arena`, laid out as the plan's parameters, from a safetensors file or a folder of them, by
// native names. One LM_USER status lists every tensor that is missing, of another shape, no floats,
// or extra.
lm_status lm_weights_load(const lm_session *s, const char *path, float *arena);
// The same through `map hf`.
lm_status lm_weights_import(const lm_session *s, const char *path, float *arena);
// What lies in `arena`, as one file of native names.
lm_status lm_weights_save(const lm_session *s, const char *path, const float *arena);
// `views` under their foreign names; the caller destroys *out before the views.
lm_status lm_weights_foreign(const lm_session *s, const lm_foreign_native *views, lm_foreign **out);
lm_status lm_weights_no_map(const lm_session *s); // what is said where a model has none
#endif
