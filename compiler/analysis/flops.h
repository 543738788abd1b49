// flops.h - floating-point operations, computed from shapes, and the weight GEMMs of a model.
#ifndef LM_ANALYSIS_FLOPS_H
#define LM_ANALYSIS_FLOPS_H
#include "compiler/ir/ir.h"

// FLOPs of a dot, an attention or a kernel, at capacity. An attention with a causal mask counts
// half.
double lm_flops_of(const lm_module *m, const lm_op *op);

// The mask of an attention hides about half of the pairs: it compares positions of t and s.
bool lm_attend_is_causal(const lm_op *attend);

// Model FLOPs of a training step, as for MFU (Chowdhery et al. 2022, except that a causal mask
// halves an attention): the dots and attentions of the loss and of its gradients, without
// recomputation and without the bubble of a pipeline. That is three times the loss, and less if
// parameters are frozen.
typedef struct lm_model_flops {
  lm_func_key func;
  double flops;
} lm_model_flops;
lm_model_flops lm_model_flops_of(const lm_func *f);

// y[m, n] = x[m, k] w[k, n], where w is a parameter; executed `count` times.
typedef struct lm_weight_gemm {
  int64_t m, k, n;
  int count;
} lm_weight_gemm;
typedef struct lm_weight_gemms {
  lm_weight_gemm *v;
  uint32_t n, cap;
} lm_weight_gemms;

// The weight GEMMs of @loss, allocated in `a`; the module must have no calls.
lm_weight_gemms lm_weight_gemms_find(lm_arena *a, lm_module *m);
#endif
