// row_tiling.h - operations of a region that compute each row by itself run some rows at a time:
// what passes chunk and slab share.
//
// before: %y = f(%x) : f32[b, t, d]
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %ys = loop 8 over(part) %i { %x1 = at %xs, %i   %y1 = f(%x1) : f32[row, d]   yield %y1 }
//         : f32[part, row, d] %y = view %ys (part, row) -> (b, t) : f32[b, t, d]
//
// The pass marks which operations go inside and which only follow from these; what is read from
// outside becomes the rows of a turn, what is used outside is stacked. The loop carries nothing, so
// its derivative runs in the same order (pass grad).
#ifndef LM_ROW_TILING_H
#define LM_ROW_TILING_H
#include "compiler/passes/rewrite.h"

enum {
  LM_ROWS = 512, // at a time, if the target says no other number and they are not narrow
  LM_TILE_ROWS_MIN = 32,
};
enum {
  LM_ROW_TILE_FOLLOWS = 1,
  LM_ROW_TILE_INSIDE = 2,
  LM_ROW_TILE_REDUCED = 4
}; // op->mark: follows from an operation that is inside; is inside; and sums rows outside

typedef struct lm_row_tiling {
  lm_module *m;
  // as sets of axes; rows in their order; what stands outside and is wide is made inside again
  lm_type rows, wide;
  int64_t turns, row_count;
  lm_axis turn, row;   // 0: made when needed
  lm_op *first, *last; // inside, in order; the loop takes the place of the last
  lm_builder b;        // in the loop
  lm_op *loop;
  lm_idmap map; // value outside -> what stands for it inside
} lm_row_tiling;

bool lm_type_intersects(lm_type t, lm_type axes); // they share an axis
lm_type lm_dot_free_axes(const lm_op *dot,
                         int side); // axes of the product that its other operand has not
// Sets row_count and turns: the most rows at a time, at most `most`, that divide all; false if that
// is less than two turns or few rows.
bool lm_row_tiling_divide(lm_row_tiling *r, int64_t most);
bool lm_row_tiling_is_contiguous(const lm_row_tiling *r,
                                 lm_type t); // has all rows, next to each other and in order
bool lm_row_tiling_has_only_rows(const lm_row_tiling *r, lm_type t);
bool lm_row_tiling_is_rowwise(
    const lm_row_tiling *r,
    const lm_op *op); // computes each row by itself, from the same row of its operands
// A sum or maximum over rows and others: those over the others are inside, those over the rows
// outside.
bool lm_row_tiling_is_row_sum(const lm_row_tiling *r, const lm_op *op);
// The marked operations from first to last become a loop. None that follows and is not inside has
// an effect.
void lm_row_tiling_apply(lm_row_tiling *r);
#endif
