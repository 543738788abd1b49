// gemm_key.c - see gemm_key.h.
#include "runtime/cuda/gemm_key.h"

#include <string.h>

#include "runtime/base/dtype.h"

enum {
  ALIGN_MAX = 256,
  VECTOR_ALIGN = 16 // of a bias, which the library reads in vectors, and of the input of gelu
};

// Expresses a matrix in column-major layout: rows have unit stride and columns are ld separate;
// is_transposed: this holds for the transpose. Strides along an axis of size 1 are arbitrary.
static bool form_find(int64_t rows, int64_t cols, int64_t row, int64_t col, int32_t *out_transposed,
                      int64_t *out_ld) {
  if (rows == 1 && cols == 1)
    row = col = 1;
  else if (rows == 1)
    row = 1;
  else if (cols == 1)
    col = row == 1 ? rows : 1;
  *out_transposed = !(row == 1 && col >= rows);
  *out_ld = *out_transposed ? row : col;
  return !*out_transposed || (col == 1 && row >= cols);
}

lm_cuda_call lm_cuda_call_transposed(const lm_cuda_call *x) {
  const lm_cuda_small_gemm *p = &x->p;
  return (lm_cuda_call){.p = {.m = p->n,
                              .n = p->m,
                              .k = p->k,
                              .a_m = p->b_n,
                              .a_k = p->b_k,
                              .b_k = p->a_k,
                              .b_n = p->a_m,
                              .c_m = p->c_n,
                              .c_n = p->c_m,
                              .add = p->add},
                        .batch = {x->batch.size, x->batch.b, x->batch.a, x->batch.c},
                        .aa = x->bb,
                        .bb = x->aa,
                        .cc = x->cc,
                        .a = x->b,
                        .b = x->a,
                        .c = x->c,
                        .scale_a = x->scale_b,
                        .scale_b = x->scale_a,
                        .scales = {x->scales[1], x->scales[0]},
                        .fast = x->fast,
                        .epi = x->epi};
}

int32_t lm_cuda_epilogue_number(const lm_cuda_epilogue *e) {
  int32_t gelu = e->gelu ? LM_LT_EPILOGUE_GELU | (e->gelu_input ? LM_LT_EPILOGUE_AUX : 0) : 0;
  int32_t bias = e->bias ? LM_LT_EPILOGUE_BIAS : 0;
  return gelu | bias ? gelu | bias : LM_LT_EPILOGUE_NONE;
}

static int32_t alignment(lm_cuda_address at, int64_t batch, int dtype) {
  uint64_t all = at | (uint64_t)(batch * lm_dtype_bytes((lm_dtype)dtype)) | ALIGN_MAX;
  return (int32_t)(all & -all);
}

bool lm_cuda_types_known(const lm_cuda_call *x) {
  int ab = x->aa;
  if (x->scale_a)
    return x->cc == LM_BF16 || x->cc == LM_F32;
  return (lm_dtype_is_half((lm_dtype)ab) && (x->cc == ab || x->cc == LM_F32)) ||
         (ab == x->cc && (ab == LM_F32 || ab == LM_F64));
}

bool lm_cuda_key_make(const lm_cuda_call *x, lm_cuda_key *out) {
  const lm_cuda_small_gemm *p = &x->p;
  bool many = x->batch.size > 1;
  int32_t transposed_c;
  *out = (lm_cuda_key){.rows = p->m,
                       .cols = p->n,
                       .k = p->k,
                       .count = x->batch.size,
                       .aa = x->aa,
                       .bb = x->bb,
                       .cc = x->cc,
                       .epilogue = lm_cuda_epilogue_number(&x->epi),
                       .fast = x->fast};
  for (int i = 0; i < 2; i++)
    out->scale_mode[i] = lm_scales_of(x->scales[i]).cublaslt;
  if (!form_find(p->m, p->n, p->c_m, p->c_n, &transposed_c, &out->ld[2]) || transposed_c)
    return false;
  if (out->epilogue != LM_LT_EPILOGUE_NONE && p->m != x->epi.row)
    return false;
  if (!form_find(p->m, p->k, p->a_m, p->a_k, &out->is_transposed[0], &out->ld[0]))
    return false;
  if (!form_find(p->k, p->n, p->b_k, p->b_n, &out->is_transposed[1], &out->ld[1]))
    return false;
  if (many)
    memcpy(out->batch, (int64_t[]){x->batch.a, x->batch.b, x->batch.c}, sizeof out->batch);
  out->align[0] = alignment(x->a, out->batch[0], x->aa);
  out->align[1] = alignment(x->b, out->batch[1], x->bb);
  out->align[2] = alignment(x->epi.residual ? x->epi.residual : x->c, out->batch[2], x->cc);
  out->align[3] = alignment(x->c, out->batch[2], x->cc);
  out->align[4] = alignment(x->epi.bias, 0, x->cc);
  out->align[5] = alignment(x->epi.gelu_input, 0, x->cc);
  return out->align[4] >= VECTOR_ALIGN && out->align[5] >= VECTOR_ALIGN;
}
