// attend.h - the parts of an attend or attend_vjp operation that a code generator needs: its dots,
// the sums over its tiles, its axes.
//
// A tile is a range of t by a range of s at one point of the parallel axes, which are the other
// axes of the scores. The channel axes of an operand are its axes that the scores do not have (the
// head dimension).
#ifndef LM_CODEGEN_ATTEND_H
#define LM_CODEGEN_ATTEND_H
#include "compiler/ir/attend.h"

enum {
  LM_ATTEND_PARTS = 16
};

// `size` is the product of the extents.
typedef struct lm_attend_axes {
  lm_axis axis[LM_RANK];
  int n;
  int64_t size;
} lm_attend_axes;

// dot(row, col) over channel axes, which the scores do not have. Operands are given by number.
typedef struct lm_attend_dot {
  const lm_value *v;
  uint32_t row, col;
  lm_attend_axes over;
} lm_attend_dot;

// A result of attend_vjp: tiles summed over s (`rows`: one row for each t) or over t, weighted by
// the rows of another operand.
typedef struct lm_attend_sum {
  // NULL for the cotangent of v, whose tile is p * factor.
  const lm_value *tile;
  // The operand that has the axis of the sum; -1 for a plain sum.
  int other;
  bool rows;
  uint32_t result;
  // The kernel of the region that reads the sum, whose first result is `result`; NULL: none.
  const lm_op *epilogue;
  // Channel axes of the result, in the order of the other operand's rows.
  lm_attend_axes channels;
} lm_attend_sum;

typedef struct lm_attend_spec {
  const lm_module *m;
  const lm_op *op;
  bool vjp;
  lm_axis t, s;
  int64_t tile_t, tile_s; // sizes of the block map's tiles; 0 without a map
  lm_type space;
  lm_attend_axes parallel; // axes of the scores except t and s
  // The parallel axes that every result has: tiles at different points of them are independent.
  lm_attend_axes shared;
  lm_attend_axes v_channels; // channel axes of v
  // `mask` is NULL if nothing is masked, `factor` is NULL if it is 1.
  const lm_value *score, *mask, *factor;
  lm_attend_dot dots[LM_ATTEND_PARTS];
  int n_dots;
  lm_attend_sum sums[LM_ATTEND_PARTS];
  int n_sums;
} lm_attend_spec;

// Returns false and appends the reason to `why` if the region holds something that no generator
// supports.
bool lm_attend_spec_make(const lm_module *m, const lm_op *op, lm_attend_spec *out, lm_buf *why);
// True if lm_attend_spec_make succeeds.
bool lm_attend_is_supported(const lm_module *m, const lm_op *op);
// NULL if v is not a dot of operands.
const lm_attend_dot *lm_attend_dot_of(const lm_attend_spec *f, const lm_value *v);
// The layout of the block map, in elements. The outer axes are those before the tiles of t and s.
typedef struct lm_attend_map_layout {
  uint32_t operand;
  lm_axis axis[LM_RANK];
  int64_t stride[LM_RANK]; // of the outer axes
  int n;
  int64_t row; // stride between tiles along t; the stride along s is 1
} lm_attend_map_layout;
// Requires a map: tile_t is not 0.
lm_attend_map_layout lm_attend_map_layout_of(const lm_attend_spec *f);
// The number of the operand that `arg` stands for; -1 if it is not an argument, -2 for the
// cotangent of the score.
int lm_attend_operand(const lm_attend_spec *f, const lm_value *arg);
#endif
