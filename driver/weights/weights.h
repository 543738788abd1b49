// weights.h - reads and writes the parameters of a plan, under native and foreign names.
#ifndef LM_DRIVER_WEIGHTS_H
#define LM_DRIVER_WEIGHTS_H
#include "driver/compile.h"
#include "runtime/weights/foreign.h"

// Memory laid out as the plan's arenas of parameters. frozen NULL: the trained ones only. trained
// may be gradients or an optimizer state, then without frozen.
typedef struct lm_weights {
  float *trained; // LM_ARENA_PARAM
  void *frozen;   // LM_ARENA_FIXED
} lm_weights;
lm_weights lm_weights_in(lm_exec *e); // the arenas of an executor, to write to
// Allocated; free with lm_weights_free.
lm_weights lm_weights_alloc(const lm_plan *plan);
void lm_weights_free(lm_weights w);
// Views of the parameters that w has, *out_n of them, allocated in `a`.
lm_foreign_native *lm_weights_views(lm_arena *a, const lm_plan *plan, lm_weights w, size_t *out_n);

// Fills w from a safetensors file or a folder of them, by native names. One LM_USER status lists
// every tensor that is missing, has another shape, is not a float, or is unknown.
lm_status lm_weights_load(const lm_compiled *c, const char *path, lm_weights w);
// The weights that the recipe's model is `from`: a file or a folder of safetensors, a run of which
// the newest undamaged checkpoint is taken, or one checkpoint. LM_ENV if that one is damaged.
lm_status lm_weights_load_from(const lm_compiled *c, lm_weights w);
// The path that lm_weights_load_from reads. It reports nothing but errors.
lm_status lm_weights_from(const lm_compiled *c, const char **out);
// As lm_weights_load, through `map hf`.
lm_status lm_weights_import(const lm_compiled *c, const char *path, lm_weights w);
// Writes w as one file with native names.
lm_status lm_weights_save(const lm_compiled *c, const char *path, lm_weights w);
// The parameters of w under their foreign names; foreign tensors that also have elements of others
// are left out. `a` holds the views. The caller destroys *out first.
lm_status lm_weights_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, lm_foreign **out);
lm_status lm_weights_no_map(const lm_compiled *c); // the error of a model without `map hf`
#endif
