// eval.h - a reference interpreter in float64: what the IR means, for tests and for probes at
// compile time.
//
// Every value is a dense row-major array of doubles with the axes of its type at their extents;
// ints and bools are whole numbers. Nothing is fast here but inner loops over strides.
#ifndef LM_EVAL_H
#define LM_EVAL_H
#include "compiler/ir/ir.h"

typedef struct lm_tensor {
  lm_type type;
  int64_t n;
  double *v;
} lm_tensor; // owns v
typedef struct lm_eval lm_eval;

lm_eval *lm_eval_create(lm_module *m);
void lm_eval_destroy(lm_eval *e);
// Extent of the axes with `dyn k`, at most their size; the size until it is set.
void lm_eval_extent_set(lm_eval *e, int k, int64_t extent);
// Round every result to its type (f32, bf16) rather than keep float64.
void lm_eval_round_set(lm_eval *e, bool round);
// Parameters, their gradients (what accum added) and caches, with their stacked axes; zero at
// first, at capacity.
lm_tensor *lm_eval_global(lm_eval *e, const char *name);
lm_tensor *lm_eval_gradient(lm_eval *e, const char *name);

// A tensor of zeros at the extents of e.
lm_tensor lm_eval_tensor(const lm_eval *e, lm_type type);
void lm_tensor_free(lm_tensor *t);
// out: f's results, which the caller frees; untouched on failure. Fails if an argument has another
// type, or if an index of `at`, `param`, `accum` or `append` leaves its axis.
lm_status lm_eval_call(lm_eval *e, const lm_func *f, const lm_tensor *args, lm_tensor *out);
// One operation that has one result and touches no state, from its operands at capacity; the caller
// frees *out.
void lm_eval_known(lm_module *m, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// One element of an elementwise operation with operands.
double lm_eval_scalar(const lm_op *op, const double *in);
// Hendrycks & Gimpel 2016 in the form with tanh, that of dot_gelu.
double lm_eval_gelu(double x);
#endif
