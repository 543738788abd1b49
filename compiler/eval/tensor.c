// tensor.c - the tensors of the interpreter: dense arrays of float64.
#include <string.h>
#include "compiler/eval/internal.h"

lm_tensor lm_tensor_create(lm_type t, int64_t n) {
  return (lm_tensor){t, n, lm_calloc((size_t)n, sizeof(double))};
}

lm_tensor lm_eval_tensor(const lm_eval *e, lm_type type) {
  int64_t n = 1;
  for (int i = 0; i < type.rank; i++)
    n *= lm_eval_size(e, type.axis[i]);
  return lm_tensor_create(type, n);
}

void lm_tensor_free(lm_tensor *t) {
  lm_free(t->v);
  t->v = NULL;
}

lm_tensor lm_tensor_copy(const lm_tensor *t) {
  lm_tensor c = lm_tensor_create(t->type, t->n);
  memcpy(c.v, t->v, (size_t)t->n * sizeof *c.v);
  return c;
}
