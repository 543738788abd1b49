// scan.h - a scan as the kernel of one position inside of a loop over the positions.
//
//   for (int64_t step = 0; step < 64; step++) {
//     const int64_t t = step;
//     const float *a0 = step ? (64 - step) % 2 ? kept0 : out0 : in0;    a carry
//     const float *a1 = in1 + t * 512;                                  a slice
//     float *r0 = (64 - 1 - step) % 2 ? kept0 : out0;
//     float *r1 = out1 + t * 512;                                       a stacked result
//     … the passes of a kernel with the region of the scan …
//   }
//
// The carries alternate between the result and a workspace, so that the last position writes the
// result. A point reads only elements of carries that it has written, so the loop can be inside of
// the loop over points.
//
// If a point has one element of each carry and result, and reduces nothing, its carries can be in
// registers: variables carry0, …, which a position reads, and next0, …, which it writes.
#ifndef LM_CODEGEN_SCAN_H
#define LM_CODEGEN_SCAN_H
#include "codegen/common/gen.h"

// A kernel whose region is the scan's: one position, parallel over axes along which the scan's
// positions are independent. Its operands and results have the types of the region.
lm_op *lm_gen_scan_position(lm_arena *arena, const lm_op *scan);
// Bytes of the workspace of the carries.
int64_t lm_gen_scan_workspace(const lm_module *m, const lm_op *scan);
// The name of operand i: that of the position's kernel if it is the same at each position.
const char *lm_gen_scan_operand(lm_arena *arena, const lm_op *scan, uint32_t i);
// Declares the carries in the workspace, at the address `workspace`.
void lm_gen_scan_put_carries(lm_gen *e, const lm_op *scan, const char *workspace, lm_buf *b);
// True if a point of the position has one element of each value.
bool lm_gen_scan_is_pointwise(const lm_op *scan);
// Writes the loop around the text of one position. registers: the carries are variables.
void lm_gen_scan_put_loop(lm_gen *e, const lm_op *scan, bool registers, const lm_buf *body,
                          lm_buf *b);
#endif
