// sum_error.h - a bound for the error of a sum in float32.
//
// Terms of either sign cancel, so the error of their sum is relative to the partial sums, not to
// the result. The addition that makes the partial sum S[k] rounds by at most u |S[k]|, u = 2^-24.
// Roundings of different additions behave as independent variables of mean zero and of a variance
// of at most (u S[k])^2 / 3. Six standard deviations of their sum are
//
//   6 u sqrt((S[1]^2 + ... + S[n]^2) / 3)
//
// S follows the order of memory. Kernels add in lanes and blocks, in other orders, but in shorter
// chains, so with smaller partial sums. A sum that does not cancel (terms of one sign, or nearly)
// has a tolerance relative to itself.
#ifndef LM_TESTS_CODEGEN_SUM_ERROR_H
#define LM_TESTS_CODEGEN_SUM_ERROR_H
#include <math.h>
#include <string.h>
#include "compiler/eval/eval.h"
#include "tests/runtime/check.h"

static inline int64_t axis_extent(const lm_module *m, lm_axis axis, const int64_t *extents) {
  const lm_axis_info *a = &m->axes[axis];
  const lm_extent_info *x = a->dyn ? &m->extents[a->dyn - 1] : NULL;
  if (!x || !extents)
    return a->size;
  return x->of ? extents[x->of - 1] * x->times : extents[a->dyn - 1];
}

// The element of a tensor of type `to` that element i of a tensor of type `from` belongs to; `from`
// has all axes of `to`.
static inline int64_t element_of(const lm_module *m, lm_type from, lm_type to,
                                 const int64_t *extents, int64_t i) {
  int64_t at[LM_RANK], out = 0;
  for (int k = from.rank - 1; k >= 0; k--) {
    int64_t n = axis_extent(m, from.axis[k], extents);
    at[k] = i % n;
    i /= n;
  }
  for (int k = 0; k < to.rank; k++)
    out = out * axis_extent(m, to.axis[k], extents) + at[lm_type_find(from, to.axis[k])];
  return out;
}

// Sums of the terms so far, of their magnitudes, and of the squares of S.
typedef struct partial_sum {
  double sum, magnitudes, squares;
} partial_sum;

static inline void partial_add(partial_sum *p, double term) {
  p->sum += term;
  p->magnitudes += fabs(term);
  p->squares += p->sum * p->sum;
}

static inline double partial_error(const partial_sum *p) {
  const double u = 0x1p-24;
  bool cancels = fabs(p->sum) < p->magnitudes / 2;
  return cancels ? 6 * u * sqrt(p->squares / 3) : 0;
}

// Computes the bound for each element of `sum`, given its terms.
static inline double *sum_errors_of(const lm_module *m, const lm_tensor *terms,
                                    const lm_tensor *sum, const int64_t *extents) {
  partial_sum *p = lm_calloc((size_t)sum->n, sizeof *p);
  double *out = lm_calloc((size_t)sum->n, sizeof *out);
  for (int64_t i = 0; i < terms->n; i++)
    partial_add(&p[element_of(m, terms->type, sum->type, extents, i)], terms->v[i]);
  for (int64_t i = 0; i < sum->n; i++)
    out[i] = partial_error(&p[i]);
  lm_free(p);
  return out;
}

// The bound for each element of a result of f that is a sum; NULL for other results. The terms are
// computed by making f return them instead of the sum. The caller frees the result.
static inline double *sum_errors(lm_eval *eval, const lm_func *f, const lm_tensor *args,
                                 const lm_tensor *want, uint32_t result, const int64_t *extents) {
  lm_value **returned = &f->body->last->in[result];
  lm_value *sum = *returned;
  if (!sum->def || sum->def->code != LM_OP_SUM || sum->type.dtype != LM_F32)
    return NULL;
  lm_tensor out[16];
  *returned = sum->def->in[0];
  CHECK_OK(lm_eval_call(eval, f, args, out));
  *returned = sum;
  double *errors = sum_errors_of(f->module, &out[result], &want[result], extents);
  for (uint32_t i = 0; i < f->n_out; i++)
    lm_tensor_free(&out[i]);
  return errors;
}
#endif
