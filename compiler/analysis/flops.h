// flops.h - floating-point operations, counted from shapes, and the matrix products of a model.
#ifndef LM_ANALYSIS_FLOPS_H
#define LM_ANALYSIS_FLOPS_H
#include "compiler/ir/ir.h"

// Of a product, an attention or a kernel, at capacity. An attention whose mask orders positions
// counts half.
double lm_flops_of(const lm_module *m, const lm_op *op);

// What a training step takes by the usual count: three times the products and attentions of a loss,
// before anything is computed twice.
typedef struct lm_model_flops {
  lm_sym func;
  double flops;
} lm_model_flops;
lm_model_flops lm_model_flops_of(const lm_func *f);

// y[m, n] = x[m, k] w[k, n], where w is a parameter, `count` times.
typedef struct lm_weight_product {
  int64_t m, k, n;
  int count;
} lm_weight_product;
typedef struct lm_weight_products {
  lm_weight_product *v;
  uint32_t n, cap;
} lm_weight_products;

// Of @loss, allocated in `a`; the module has no calls.
lm_weight_products lm_weight_products_find(lm_arena *a, lm_module *m);
#endif
