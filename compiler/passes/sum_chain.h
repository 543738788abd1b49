// sum_chain.h - gradients that are sums over ranks: a collective, kernels of its result, an accum.
#ifndef LM_COMPILER_SUM_CHAIN_H
#define LM_COMPILER_SUM_CHAIN_H
#include "compiler/ir/ir.h"

enum {
  LM_SUM_CHAIN = 4 // maximum of the operations behind the collective
};

// Operations from the collective's result to the accum, which move together.
typedef struct lm_sum_chain {
  lm_op *v[LM_SUM_CHAIN]; // the accum is first
  int n;
  lm_op *collective;
} lm_sum_chain;

// The chain that ends with op. uses: of values, by id (lm_func_uses). False: op is no accum, its
// operand is no such sum, or f adds to the parameter's gradient elsewhere, so that the order of the
// accums decides its bits; packed parameters.
bool lm_sum_chain_find(lm_module *m, lm_func *f, const uint32_t *uses, lm_op *op,
                       lm_sum_chain *out);
void lm_sum_chain_move(const lm_sum_chain *c, lm_op *before);
// Numbers the operations of a region in `mark`.
void lm_region_number(lm_region *r);

// True if a bucket may have the collective: a reduce_scatter along an axis of the mesh with buckets
// whose operand has at most LM_COLL_BUCKET_BYTES.
bool lm_sum_may_bucket(const lm_module *m, const lm_op *sum);
// True if the sum is in a bucket of several (pass bucket): a reduce_scatter beside another one.
bool lm_sum_in_bucket(const lm_module *m, const lm_op *sum);
// The first sum of the bucket.
lm_op *lm_bucket_first(const lm_module *m, lm_op *sum);
#endif
