// scan.h - scan: a loop over the positions of an axis t, one after the other.
//
//   %h, %y = scan over(t) [1, 2, 0] (%h.1 = %h0, %a.2 = %a, %b.3 = %b, %w.4 = %w) {
//     %m = mul %a.2, %h.1   %n = add %m, %b.3   %o = mul %n, %w.4
//     yield %n, %o
//   } : f32[b, d], f32[t, b, d]
//
// imm: the number of carries, the number of slices, and 1 if the positions run from the last to the
// first. Operands: the initial carries, the slices, and the values that are the same at each
// position. A slice has t in front, and its argument of the region is the element at the position.
// The region yields the next carries, then values to stack; results: the carries after all
// positions, then the stacked values with t in front, each at its own position. The extent of t may
// be known at run time only.
#ifndef LM_IR_SCAN_H
#define LM_IR_SCAN_H
#include "compiler/ir/ir.h"

static inline lm_axis lm_scan_axis(const lm_op *op) {
  return op->attr.axes[0];
}
static inline uint32_t lm_scan_carries(const lm_op *op) {
  return (uint32_t)op->attr.imm[0];
}
static inline uint32_t lm_scan_slices(const lm_op *op) {
  return (uint32_t)op->attr.imm[1];
}
static inline bool lm_scan_is_backward(const lm_op *op) {
  return op->attr.imm[2];
}
static inline bool lm_scan_operand_is_slice(const lm_op *op, uint32_t i) {
  return i >= lm_scan_carries(op) && i - lm_scan_carries(op) < lm_scan_slices(op);
}

// Creates the operation with its carries and moves the builder inside.
lm_op *lm_scan_begin(lm_builder *b, lm_axis t, bool backward, lm_value *const *carry,
                     uint32_t n_carry);
// Adds an operand: a slice, which has t in front, or a value that is the same at each position.
// Slices come before the others. Returns the argument of the region.
lm_value *lm_scan_slice(lm_module *m, lm_op *scan, lm_value *v);
lm_value *lm_scan_whole(lm_module *m, lm_op *scan, lm_value *v);
// Ends the region, which may use values of outer regions: operations on these only move before the
// scan, and what the region still uses becomes operands. Dead operations and unused operands are
// removed. Moves the builder after the scan.
void lm_scan_end(lm_builder *b, lm_op *scan, lm_value *const *next, lm_value *const *stacked,
                 uint32_t n_stacked);
// The values before each position: x, which has t in front, moved by one position behind `first`.
lm_value *lm_scan_before(lm_builder *b, lm_value *x, lm_axis t, lm_value *first);
// True if result *out stacks the values of a carry: before each position, or after it.
bool lm_scan_stacks_carry(const lm_op *scan, uint32_t carry, uint32_t *out, bool *out_before);
// The axes along which positions of the scan's values are independent of each other, in the order
// of the first carry: every yielded value and every reduction in the region has them, and no
// operation of the region mixes them.
lm_type lm_scan_parallel(const lm_op *scan);
#endif
