// chain.h - scans whose region reads and updates the carry by GEMMs (pass chain_kernels): the form
// of the kernel, which chain.c writes.
//
//   s' = f(s, dot(q, r, j), …)    r = g(dot(m, e, i), …)    e = h(dot(p, s, k), …)
//   s: [points, k, v], r: [points, j, v], e: [points, i, v]
//   q: [points, j, k], m: [points, j, i], p: [points, i, k]
//
// g has dots of one or two m, or r is e. s, r and e are rounded to bf16 where they are multiplied.
// f, g and h are elementwise; their operands are values of the points, with v and one of i, j and k
// or without them.
//
// A block has a point and `slice` columns of v. A warp has 16 rows k of s in registers, in the
// layout of tile.cuh, and 16 rows j of r and i of e, or a part of their columns.
#ifndef LM_CODEGEN_CUDA_CHAIN_H
#define LM_CODEGEN_CUDA_CHAIN_H
#include "codegen/cuda/emit.h"
#include "compiler/ir/scan.h"

enum {
  CUDA_CHAIN_MIXES = 2
};
typedef struct cuda_chain {
  const lm_module *m;
  const lm_op *scan, *read, *update;  // the dots, of p and of q
  const lm_op *mix[CUDA_CHAIN_MIXES]; // those of m
  int mixes;
  const lm_value *row, *entry; // r and e, rounded; the same if there is no m
  lm_axis i, j, k, v;
  int64_t rows, depth, cols; // the sizes of i and j, k, v
  int64_t points, steps;
  uint32_t p, q, m_of[CUDA_CHAIN_MIXES]; // operands
} cuda_chain;

// ---- chain_form.c
bool cuda_chain_make(const lm_module *m, const lm_op *scan, cuda_chain *out);
// True if v is s, rounded once.
bool cuda_chain_is_state(const cuda_chain *x, const lm_value *v);
// True if the operand is p, q or an m.
bool cuda_chain_is_factor(const cuda_chain *x, uint32_t i);
// True if operand i is copied to shared memory: factors, and tiles of v.
bool cuda_chain_copies(const cuda_chain *x, uint32_t i);
// The axis of the rows of a value with two of i, j, k and v, or with one of i, j and k.
lm_axis cuda_chain_row_axis(const cuda_chain *x, lm_type t);
// The strides of operand i, in elements: of its views, if the kernel reads it through them, else of
// a dense tensor.
void cuda_chain_strides(const cuda_chain *x, uint32_t i, int64_t *out);
// True if a block may have so many columns.
bool cuda_chain_may_slice(const cuda_chain *x, int64_t columns);
// The columns of a block, if shared memory has room for them; 0: unsupported.
int64_t cuda_chain_slice(const cuda_chain *x, const lm_target *t);
#endif
