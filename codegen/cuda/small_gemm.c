// small_gemm.c - what products on a GPU do with their result before they store it: the epilogues of
// cuBLASLt.
//
// cublasLtMatmul gives D = f(A B + beta C + bias): C may be another matrix than D, a bias has an
// element for each of D's rows of columns (our unit stride) in D's type, gelu is the form with tanh
// and can store what it is taken of, whose leading dimension is then a multiple of 8. None of this
// is there for f64. How exact gelu is in f32 is not said, so it is used where a result is rounded
// to bf16.
#include "codegen/cuda/emit.h"

bool lm_cuda_epilogue_is_supported(const lm_plan_gemm *g) {
  const lm_plan_extent *row = g->c_n == 1 ? &g->n : &g->m;
  bool types = g->dtype_ab == LM_F32 || g->dtype_ab == LM_BF16;
  return types && (!g->gelu || (g->dtype_c == LM_BF16 && row->fixed % 8 == 0));
}
