// gemm_call.h - a matrix multiplication with an epilogue as one call of cuBLASLt. Private to
// gemm.c and gemm_call.c.
#ifndef LM_RUNTIME_CUDA_GEMM_CALL_H
#define LM_RUNTIME_CUDA_GEMM_CALL_H
#include "runtime/cuda/gemm.h"

// row: elements of the bias, along C's axis of unit stride. An address is 0 if its part is absent.
typedef struct lm_cuda_epilogue {
  lm_cuda_address residual, bias, gelu_input;
  int64_t row;
  bool gelu;
} lm_cuda_epilogue;

// C (+)= A B, `batch.size` times. With an epilogue, batch.size is 1. aa, bb, cc: dtypes. scale_a,
// scale_b: addresses of what codes are multiplied by, of the kinds `scales`; 0: none.
typedef struct lm_cuda_call {
  lm_cuda_small_gemm p;
  lm_plan_batch batch;
  int aa, bb, cc;
  lm_cuda_address a, b, c, scale_a, scale_b;
  lm_scales scales[2];
  bool fast; // sums may be in narrower accumulators
  lm_cuda_epilogue epi;
  const lm_plan_step *step; // that it is of, for messages
} lm_cuda_call;

// Runs the call, by the library or, if it does not support the types, strides or alignment, by
// builtin kernels. While measuring (lm_cuda_gemms_measure): chooses the algorithm instead.
lm_status lm_cuda_call_run(lm_cuda_gemms *g, const lm_cuda_call *x, lm_cuda_address workspace);
const lm_cuda_builtins *lm_cuda_gemms_builtins(const lm_cuda_gemms *g);
#endif
