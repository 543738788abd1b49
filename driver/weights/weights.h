// weights.h - reads and writes the parameters of a plan, under native and foreign names.
#ifndef LM_DRIVER_WEIGHTS_H
#define LM_DRIVER_WEIGHTS_H
#include "driver/compile.h"
#include "runtime/hal/tensor.h"
#include "runtime/weights/foreign.h"

// The parameters of a plan, trained and then frozen ones: in an executor, or as dense tensors in
// the host's memory.
typedef struct lm_weights {
  lm_exec *exec;
  lm_foreign_native *host; // if exec is NULL; frozen parameters in their own type
  int n_host;
  bool trained_only; // without the frozen parameters
  bool base;         // without the parameters that edits of the model add
  // only those that these weights of `lowered` are for, in the file without the prefix; NULL: all
  const lm_lowered_source *source;
  const lm_lowered *lowered;
} lm_weights;
static inline lm_weights lm_weights_in(lm_exec *e) {
  return (lm_weights){.exec = e};
}
// The bytes that lm_weights_alloc takes; INT64_MAX: that many or more.
int64_t lm_weights_bytes(const lm_plan *plan, bool trained_only);
// In the host's memory, zeros; free with lm_weights_free.
lm_weights lm_weights_alloc(const lm_plan *plan, bool trained_only);
void lm_weights_free(lm_weights w);
// Fills w, which is in the host's memory, with the parameters of an executor.
lm_status lm_weights_take(lm_exec *e, const lm_plan *plan, lm_weights w);
// Writes the parameters of w, which is in the host's memory, to an executor.
lm_status lm_weights_put(const lm_plan *plan, lm_weights w, lm_exec *e);

// Fills w from a safetensors file or a folder of them, by native names. One LM_USER status lists
// every tensor that is missing, has another shape, is not a float, or is unknown.
lm_status lm_weights_load(const lm_compiled *c, const char *path, lm_weights w);
// Fills w with the weights that the recipe's model and its subs are `from`: a file or a folder of
// safetensors, a run, of which the newest undamaged checkpoint is taken, or one checkpoint. LM_ENV
// if that one is damaged. Parameters that edits add, or that no weights are for, get their initial
// values; those that are computed from other parameters need an executor.
lm_status lm_weights_load_from(const lm_compiled *c, lm_weights w);
// The path that lm_weights_load_from reads for a source. It reports nothing but errors.
lm_status lm_weights_from(const lm_compiled *c, const lm_lowered_source *x, const char **out);
// The source of a parameter; NULL: none.
const lm_lowered_source *lm_weights_source_of(const lm_compiled *c, const char *path);
// Error E215 at each source whose file or folder does not exist.
lm_status lm_weights_from_check(const lm_compiled *c);
// As lm_weights_load, through `map hf`.
lm_status lm_weights_import(const lm_compiled *c, const char *path, lm_weights w);
// Writes w, which is in the host's memory, as one file with native names.
lm_status lm_weights_save(const lm_compiled *c, const char *path, lm_weights w);
// The parameters of w, which is in the host's memory, under their foreign names; parameters that
// edits add, and foreign tensors that also have elements of others, are left out. `a` holds memory
// of *out. The caller destroys *out before w.
lm_status lm_weights_foreign(const lm_compiled *c, lm_arena *a, lm_weights w, lm_foreign **out);
lm_status lm_weights_no_map(const lm_compiled *c); // the error of a model without `map hf`
#endif
