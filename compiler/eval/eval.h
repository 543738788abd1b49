// eval.h - the reference interpreter of the IR in float64, for tests and for analyses at compile
// time.
//
// Every value is a dense row-major array of doubles with the axes of its type at their extents;
// ints and bools are integral doubles. Only the inner loops over strides are optimized.
#ifndef LM_EVAL_H
#define LM_EVAL_H
#include "compiler/ir/ir.h"

typedef struct lm_tensor {
  lm_type type;
  int64_t n;
  double *v; // owned
} lm_tensor;
typedef struct lm_eval lm_eval;

lm_eval *lm_eval_create(lm_module *m);
void lm_eval_destroy(lm_eval *e);
// Sets the extent of the axes with `dyn k`, at most their size, which is the default.
void lm_eval_extent_set(lm_eval *e, int k, int64_t extent);
// Rounds every result to its dtype (f32, bf16) instead of keeping float64.
void lm_eval_round_set(lm_eval *e, bool round);
// Parameters and caches, and the gradients that accum adds to, with their stacked axes, at
// capacity; initially zero. The interpreter owns them.
lm_tensor *lm_eval_global(lm_eval *e, const char *name);
lm_tensor *lm_eval_gradient(lm_eval *e, const char *name);

// A tensor of zeros at the extents of e.
lm_tensor lm_eval_tensor(const lm_eval *e, lm_type type);
void lm_tensor_free(lm_tensor *t);
// Sets out to f's results, which the caller frees with lm_tensor_free; unchanged on failure. Fails
// with LM_BUG_STATUS if an argument has the wrong type, if an index of `at`, `param`, `accum` or
// `append` is out of bounds, or at a collective if the mesh has several ranks.
lm_status lm_eval_call(lm_eval *e, const lm_func *f, const lm_tensor *args, lm_tensor *out);

// The ranks of the module's mesh, each with its own globals and gradients. They run each operation
// in lockstep.
typedef struct lm_eval_mesh lm_eval_mesh;
lm_eval_mesh *lm_eval_mesh_create(lm_module *m);
void lm_eval_mesh_destroy(lm_eval_mesh *e);
lm_eval *lm_eval_mesh_rank(lm_eval_mesh *e, int rank);
// As lm_eval_call; the arguments and results of rank r are from args[r * arguments] and
// out[r * results] on.
lm_status lm_eval_mesh_call(lm_eval_mesh *e, const lm_func *f, const lm_tensor *args,
                            lm_tensor *out);
// The rank's part of a tensor that has whole axes where `type` has divided ones; the caller frees
// it. lm_eval_whole_set writes the part back.
lm_tensor lm_eval_part(const lm_module *m, int rank, const lm_tensor *whole, lm_type type);
void lm_eval_whole_set(const lm_module *m, int rank, const lm_tensor *part, lm_tensor *whole);

// Evaluates one operation with a single result and no state; operands are at capacity. The caller
// frees *out.
void lm_eval_known(lm_module *m, const lm_op *op, const lm_tensor *in, lm_tensor *out);
// Evaluates one element of an elementwise operation that has operands.
double lm_eval_scalar(const lm_op *op, const double *in);
// gelu of dot_gelu: the tanh approximation of Hendrycks & Gimpel 2016.
double lm_eval_gelu(double x);
#endif
