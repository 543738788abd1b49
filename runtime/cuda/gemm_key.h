// gemm_key.h - a GEMM in the terms of cuBLASLt. Private to gemm_call.c and gemm_key.c.
#ifndef LM_RUNTIME_CUDA_GEMM_KEY_H
#define LM_RUNTIME_CUDA_GEMM_KEY_H
#include "runtime/cuda/gemm_call.h"

// Everything that a call of the library depends on, except for the addresses and whether it adds.
// Has no padding, since it is hashed.
typedef struct lm_cuda_key {
  int64_t rows, cols, k;          // of the library's C = op(A) op(B)
  int64_t ld[3], batch[3], count; // of A, B, C; batch: stride in elements between `count` matrices
  int32_t is_transposed[2];       // whether A and B are transposed
  int32_t align[6];               // alignment in bytes of A, B, C, D, bias and the input of gelu
  int32_t aa, bb, cc, epilogue;   // dtypes of A, B and C
  int32_t scale_mode[2];          // of A and B
  int32_t fast, spare;
} lm_cuda_key;

// False if the library has no such call: C has no unit stride along its rows, an operand has none
// at all, or an epilogue is not aligned.
bool lm_cuda_key_make(const lm_cuda_call *x, lm_cuda_key *out);
// The same GEMM, of the transposed matrices.
lm_cuda_call lm_cuda_call_transposed(const lm_cuda_call *x);
// The library's number of an epilogue.
int32_t lm_cuda_epilogue_number(const lm_cuda_epilogue *e);
// True if the library multiplies matrices of these types.
bool lm_cuda_types_known(const lm_cuda_call *x);
#endif
