// chain.h - scans whose region reads and updates the carry by GEMMs (pass chain_kernels): the form
// of the kernel, which chain.c writes.
//
//   s' = f(s, dot(q, r, j), …)    r = g(dot(p, s, k), …)
//   s: [points, k, v], r: [points, j, v], p and q: [points, j, k]
//
// s and r are rounded to bf16 where they are multiplied. f and g are elementwise; their operands
// are values of the points, with v and one of j and k or without them.
//
// A block has a point and `slice` columns of v. A warp has 16 rows k of s in registers, in the
// layout of tile.cuh, and 16 rows j of r, or a part of their columns.
#ifndef LM_CODEGEN_CUDA_CHAIN_H
#define LM_CODEGEN_CUDA_CHAIN_H
#include "codegen/cuda/emit.h"
#include "compiler/ir/scan.h"

typedef struct cuda_chain {
  const lm_module *m;
  const lm_op *scan, *read, *update; // the dots, of p and of q
  const lm_value *row;               // r, rounded
  lm_axis j, k, v;
  int64_t rows, depth, cols; // their sizes
  int64_t points, steps;
  uint32_t p, q; // operands
} cuda_chain;

// ---- chain_form.c
bool cuda_chain_make(const lm_module *m, const lm_op *scan, cuda_chain *out);
// True if v is s, rounded once.
bool cuda_chain_is_state(const cuda_chain *x, const lm_value *v);
// True if operand i is copied to shared memory: p, q, and tiles of v.
bool cuda_chain_copies(const cuda_chain *x, uint32_t i);
// The strides of operand i, in elements: of its views, if the kernel reads it through them, else of
// a dense tensor.
void cuda_chain_strides(const cuda_chain *x, uint32_t i, int64_t *out);
// True if a block may have so many columns.
bool cuda_chain_may_slice(const cuda_chain *x, int64_t columns);
// The columns of a block, if shared memory has room for them; 0: unsupported.
int64_t cuda_chain_slice(const cuda_chain *x, const lm_target *t);
#endif
