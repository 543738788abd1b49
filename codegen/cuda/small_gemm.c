// small_gemm.c - which GEMMs generated kernels compute (grouped.c, few_rows.c), and the epilogues
// of cuBLASLt, which computes the others and applies them to its result before it is stored.
//
// cublasLtMatmul computes D = f(A B + beta C + bias). C may be another matrix than D. A bias has
// one element for each row of D in cuBLASLt's column order (our unit stride), in the type of D.
// gelu is the tanh form and can store its operand, whose leading dimension must then be a multiple
// of 8. f64 has no epilogues. The accuracy of gelu in f32 is not documented, so gelu is used only
// if the result is rounded to bf16 or f16.
#include "codegen/cuda/emit.h"
#include "compiler/ir/dot.h"

bool lm_cuda_epilogue_is_supported(const lm_plan_gemm *g) {
  const lm_plan_extent *row = g->c_n == 1 ? &g->n : &g->m;
  bool types = g->dtype_ab == LM_F32 || lm_dtype_is_half((lm_dtype)g->dtype_ab);
  bool rounds = lm_dtype_is_half((lm_dtype)g->dtype_c);
  return types && (!g->gelu || (rounds && row->fixed % 8 == 0));
}

static bool has_scales(const lm_target *t, lm_scales kind, int64_t k) {
  if (kind == LM_SCALES_VEC32)
    return t->codes_mx && k % lm_scales_of(kind).elements == 0;
  return kind == LM_SCALES_NUMBER || t->codes_blocks;
}

// The rules of cuBLASLt: sizes are multiples of 16, k of a block of 32 elements, and, before
// sm_100, both operands are contiguous along k ("TN"; a and b are its matrices A and B or the
// reverse).
bool lm_cuda_scales(const lm_target *t, const lm_plan_gemm *g) {
  const lm_plan_extent *sizes[] = {&g->m, &g->n, &g->k};
  bool fits = t->math[LM_E4M3].native && !g->n_batch;
  for (int i = 0; i < 3; i++)
    fits = fits && !sizes[i]->n_dyn && sizes[i]->fixed % LM_CODES_MULTIPLE == 0;
  for (int i = 0; i < 2; i++)
    fits = fits && has_scales(t, g->scales[i], g->k.fixed);
  return fits && (!t->codes_by_k || (g->a_k == 1 && g->b_k == 1));
}

bool lm_cuda_gemm_is_profitable(const lm_target *t, const lm_plan_gemm *g) {
  (void)t;
  return g->groups.count > 0 || cuda_few_rows_fits(g);
}

bool lm_cuda_gemm_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                       lm_arena *arena, lm_kernel_code *out) {
  if (g->groups.count)
    return cuda_grouped_emit(o, g, any_rows, arena, out);
  return cuda_few_rows_emit(o, g, NULL, arena, out);
}

bool lm_cuda_gemm_of_emit(const lm_plan_options *o, const lm_plan_gemm *g, const lm_op *kernel,
                          lm_arena *arena, lm_kernel_code *out) {
  return !g->groups.count && cuda_few_rows_emit(o, g, kernel, arena, out);
}
