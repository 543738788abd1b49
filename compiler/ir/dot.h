// dot.h - the operands of dot, dot_add, dot_gelu and dot_scaled by role.
//
//   dot %x, %w      dot_add %x, %w, [%residual,] [%bias]      dot_gelu %x, %w, [%residual,] [%bias]
//   dot_scaled %x, %w, %scale_x, %scale_w
//
// A residual has the type of the result; a bias has the last axes of the result, but not all.
//
// The scales of dot_scaled (contract/scales.def) are in the order of cuBLAS's documentation. Row r
// of an operand is that of index r along its axes that are not summed, in their order, column c
// that of the elements from 32 c or 128 c on along those that are. The scale of row r, column c is
//   vec32: e8m0[row_tile, column_tile, 32, 4, 4], element
//          [r / 128, c / 4, r mod 32, r / 32 mod 4, c mod 4]; others are 0
//   vec128: f32[column, row], element [c, r]
//   blk128: f32[row_tile, column_tile, 4], element [r / 128, c / 4, c mod 4]; others are 0
// Both operands have one of vec32, or none. At most one has blk128, and then the other has vec128.
#ifndef LM_IR_DOT_H
#define LM_IR_DOT_H
#include "compiler/ir/ir.h"
#include "contract/scales.h"

// Operands; the third and fourth are added.
enum {
  LM_DOT_X,
  LM_DOT_W,
  LM_DOT_ADDENDS
};
// Of dot_scaled: what the elements of x, and those of w, are multiplied by.
enum {
  LM_DOT_SCALE_X = 2,
  LM_DOT_SCALE_W = 3
};
// Of tiles of scales.
enum {
  LM_SCALES_ROWS = 128,
  LM_SCALES_COLUMNS = 4,
  LM_SCALES_GROUP = 32 // rows that are 16 elements apart
};
// The second result of dot_gelu: the argument of gelu.
enum {
  LM_GELU_OF = 1
};

// Whether sums may be in the narrower accumulators of tensor cores (FAST_ACCUM of cuBLASLt).
static inline bool lm_dot_is_fast(const lm_op *op) {
  return op->attr.n_imm > 0;
}
// The kind of scales of a type. Each has another number of axes.
static inline lm_scales lm_scales_of_type(lm_type t) {
  static const lm_scales by_rank[] = {
      LM_SCALES_NUMBER, LM_SCALES_NUMBER, LM_SCALES_VEC128, LM_SCALES_BLK128, LM_SCALES_VEC32,
  };
  return by_rank[t.rank < 4 ? t.rank : 4];
}
static inline lm_scales lm_dot_scales(const lm_op *op, int operand) {
  return lm_scales_of_type(op->in[LM_DOT_SCALE_X + operand]->type);
}

// Whether the library multiplies operands with scales of these kinds.
static inline bool lm_scales_fit(lm_scales x, lm_scales w) {
  bool of_rows = lm_scales_of(x).elements == 128 && lm_scales_of(w).elements == 128;
  return x == w ? x != LM_SCALES_BLK128 : of_rows;
}

static inline bool lm_op_multiplies(const lm_op *op) {
  return lm_op_info_of(op)->traits & LM_T_DOT;
}
static inline bool lm_dot_has_addends(const lm_op *op) {
  return op->n_in > LM_DOT_ADDENDS && op->code != LM_OP_DOT_SCALED;
}
// NULL if there is none.
static inline lm_value *lm_dot_residual(const lm_op *op) {
  return lm_dot_has_addends(op) && op->in[LM_DOT_ADDENDS]->type.rank == op->out[0]->type.rank
             ? op->in[LM_DOT_ADDENDS]
             : NULL;
}
static inline lm_value *lm_dot_bias(const lm_op *op) {
  return lm_dot_has_addends(op) && op->in[op->n_in - 1]->type.rank < op->out[0]->type.rank
             ? op->in[op->n_in - 1]
             : NULL;
}
// True if b has the last axes of t, at least one and not all.
static inline bool lm_type_is_bias(lm_type b, lm_type t) {
  bool ends = b.dtype == t.dtype && b.rank > 0 && b.rank < t.rank;
  for (int i = 0; ends && i < b.rank; i++)
    ends = b.axis[i] == t.axis[t.rank - b.rank + i];
  return ends;
}

// The axes of a dot's result that its first operand has, if they are in front: those of the rows.
static inline int lm_dot_rows(const lm_op *dot) {
  lm_type t = dot->out[0]->type;
  int n = 0;
  while (n < t.rank && lm_type_find(dot->in[LM_DOT_X]->type, t.axis[n]) >= 0)
    n++;
  return n;
}

// grouped_dot %x, %w, %counts      grouped_outer %x, %y, %counts
enum {
  LM_GROUPED_COUNTS = 2
};
static inline bool lm_op_is_grouped(const lm_op *op) {
  return op->code == LM_OP_GROUPED_DOT || op->code == LM_OP_GROUPED_OUTER;
}
// True for the operations that sort ids.
static inline bool lm_op_sorts(const lm_op *op) {
  return op->code == LM_OP_GROUP_COUNTS || op->code == LM_OP_GROUP_ORDER ||
         op->code == LM_OP_GROUP_INVERSE;
}
// The axis of the rows that the groups share.
static inline lm_axis lm_grouped_rows(const lm_op *op) {
  return op->code == LM_OP_GROUPED_OUTER ? op->attr.axes[0] : op->out[0]->type.axis[0];
}

// True for the operations that multiply rows by weights: by one matrix, or by that of their group.
// A kernel's body may begin with one, whose operands are operands of the kernel.
static inline bool lm_op_multiplies_rows(const lm_op *op) {
  return op->code == LM_OP_DOT || op->code == LM_OP_GROUPED_DOT;
}
// The dot of a kernel, one of whose factors the kernel computes, beside permutations
// (pass mix_kernels); NULL if there is none.
static inline lm_op *lm_kernel_mix(const lm_op *op) {
  lm_op *o = op->code == LM_OP_KERNEL ? op->body->last : NULL;
  for (; o; o = o->prev)
    for (uint32_t i = 0; o->code == LM_OP_DOT && i < 2; i++)
      if (o->in[i]->def && o->in[i]->def->code != LM_OP_PERMUTE)
        return o;
  return NULL;
}
// True for a scan whose region has a GEMM (passes chain_kernels and scan_gemms).
static inline bool lm_op_chains(const lm_op *op) {
  const lm_op *o = op->code == LM_OP_SCAN ? op->body->first : NULL;
  while (o && o->code != LM_OP_DOT)
    o = o->next;
  return o;
}
// The dot that a kernel's body begins with (pass gemm_kernels); NULL if there is none.
static inline lm_op *lm_kernel_dot(const lm_op *op) {
  lm_op *first = op->code == LM_OP_KERNEL ? op->body->first : NULL;
  return first && lm_op_multiplies_rows(first) && !lm_kernel_mix(op) ? first : NULL;
}
#endif
