// states.h - scans that pass states on and multiply at each position (pass scan_gemms): the form of
// the kernel, which states.c writes.
//
//   scan over(c):  h = f h + dot(x, key) over k     s = h, rounded     y = dot(query, s) over n
//   or             g = h + dot(x, key) over k       s = g, rounded     y …     h = f g
//
//   h: f32[point, p, n]   x: bf16[point, k, p]   key: bf16[point, k, n]   query: bf16[point, i, n]
//   f: f32[point]         s: bf16[point, p, n]   y: bf16[point, i, p]
//
// A block has a point and `width` of the rows p of its state, in registers, and walks along the
// positions. p and n are the last axes of the state; operands may lack axes of the points.
#ifndef LM_CODEGEN_CUDA_STATES_H
#define LM_CODEGEN_CUDA_STATES_H
#include "codegen/cuda/emit.h"

enum {
  CUDA_STATES_MOST = 128, // terms, rows of queries, columns of states
  CUDA_STATES_WIDTH = 64  // rows of a state in a block
};

// An operand of a dot, of which a block copies a tile: rows along an axis, columns along the last.
typedef struct cuda_states_tile {
  uint32_t operand; // of the scan
  lm_axis row;
  int64_t rows, columns;
} cuda_states_tile;

typedef struct cuda_states {
  const lm_module *m;
  const lm_op *scan;
  lm_axis p, n;
  cuda_states_tile x, key, query; // query.operand 0: no read
  uint32_t factor;
  bool first;           // h is multiplied before the dot is added
  uint32_t stack, read; // results
  int64_t rows, columns, points;
} cuda_states;

bool cuda_states_make(const lm_module *m, const lm_op *scan, cuda_states *out);
// The strides of operand k, in elements: of its views, if the kernel reads it through them, else of
// a dense tensor.
void cuda_states_strides(const cuda_states *x, uint32_t k, int64_t *out);
#endif
