// tensors.h - declarations that the files of the update of each parameter by itself share
// (tensors.c).
#ifndef LM_LOWER_TENSORS_H
#define LM_LOWER_TENSORS_H
#include "dsl/lower/master.h"
#include "dsl/lower/moments.h"
#include "dsl/lower/optimizer.h"

// The optimizer of one set of groups, with its arguments.
typedef struct use {
  lm_optimizers all;
  lm_optimizer *root;
  bool perturbs; // it gives the weights at which the gradient of the step is computed
  bool matrices; // one of the optimizers sees matrices
} use;

typedef struct parameter {
  uint32_t global;
  int *sets;           // by instance: its set of groups
  lm_matrix ***m;      // by set and optimizer: of those of matrices
  lm_moment **moments; // by set and state of its optimizer
} parameter;

// Which function of the optimizer is lowered: the update of a step, what an extra gradient changes
// before it, or the change of the parameters to the view of evaluations and back.
typedef enum {
  UPDATE,
  EXTRA,
  TO_EVAL,
  TO_TRAIN
} task;

typedef struct updater {
  task task;
  lm_elab *e;
  const lm_recipe *r;
  lm_lowered_extra *extra;
  use *uses; // by set of groups
  parameter *params;
  uint32_t n_params, cap_params;
  // arguments of the function
  el_val step;
  lm_value *scale;
  lm_value *norm, *weight; // of @update.extra
  lm_value *step_number;   // int; NULL: no parameter is stored in bf16
} updater;

// Instances of a parameter with the same optimizer and arguments: all, or those with the indices
// `first` of the stacked axes, and `count` along the innermost one.
typedef struct instances {
  bool all;
  int64_t first[LM_RANK], count;
} instances;

// ---- tensor_update.c
bool lm_use_make(updater *u, uint64_t set, const el_val *rate, use *out, el_val *out_lr);
lm_type lm_without_stack(const lm_global *g, lm_type t);
lm_type lm_own_type(const lm_global *g); // of one instance of a parameter
// The axes of a parameter as the body of an optimizer of elements or tensors sees them.
el_axes lm_element_axes(lm_elab *e, const lm_global *g, const use *x);
// One evaluation of `update` or another method. values: p, g and the states, of which p and the
// states are changed. False: reported.
bool lm_update_body(updater *u, const use *x, lm_matrix *const *m, const el_axes *axes,
                    lm_value **values);
// Emits the update, or another task, of some instances of a parameter. False: reported.
bool lm_instances_update(updater *u, uint32_t global, const use *x, lm_matrix *const *m,
                         const lm_moment *moments, const instances *some);

// ---- tensor_states.c
// Finds the matrices of a parameter and the forms of its states, and adds the states. False:
// reported.
bool lm_parameter_prepare(updater *u, parameter *p);
// The instances of a parameter after `from` that have the same key as it, along the innermost
// stacked axis unless all have it.
int64_t lm_run_length(const lm_elab *e, const lm_global *g, const int *key, int64_t from);
#endif
