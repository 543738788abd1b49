// row_tiling.h - runs rowwise operations of a region on tiles of rows; shared by passes tile_vocab
// and tile_rows.
//
// before: %y = f(%x) : f32[b, t, d]
// after:  %xs = view %x (b, t) -> (part, row) : f32[part, row, d]
//         %ys = loop 8 over(part) %i {
//           %x1 = at %xs, %i   %y1 = f(%x1) : f32[row, d]   yield %y1 } : f32[part, row, d]
//         %y = view %ys (part, row) -> (b, t) : f32[b, t, d]
//
// The pass marks the operations that move inside, and those that depend on them. Operands from
// outside are split into tiles; results that are used outside are stacked. The loop has no carries,
// so its derivative runs in the same order (pass grad).
#ifndef LM_ROW_TILING_H
#define LM_ROW_TILING_H
#include "compiler/passes/rewrite.h"

enum {
  LM_ROWS = 512, // rows per tile; default of the target's, for rows that are not narrow
  LM_TILE_ROWS_MIN = 32,
};
// op->mark
enum {
  LM_ROW_TILE_FOLLOWS = 1, // depends on an operation that is inside
  LM_ROW_TILE_INSIDE = 2,
  LM_ROW_TILE_REDUCED = 4, // is inside, and reduces the rows outside
};

typedef struct lm_row_tiling {
  lm_module *m;
  // Sets of axes. rows is in order; values outside with a wide axis are recomputed inside.
  lm_type rows, wide;
  int64_t n_tiles, row_count; // row_count: rows per tile
  lm_axis tile, row;          // 0: created on demand
  lm_op *first, *last;        // operations inside, in order; the loop replaces the last
  lm_builder b;               // in the loop
  lm_op *loop;
  lm_idmap map; // value outside -> value inside
} lm_row_tiling;

bool lm_type_intersects(lm_type t, lm_type axes); // the types share an axis
// The axes of the dot's result that the operand other than `side` lacks.
lm_type lm_dot_free_axes(const lm_op *dot, int side);
// Sets row_count, the largest divisor of the number of rows up to `max` that is a multiple of
// `multiple`, and n_tiles. False if there is none or one tile, or fewer rows per tile than
// LM_TILE_ROWS_MIN.
bool lm_row_tiling_divide(lm_row_tiling *r, int64_t max, int64_t multiple);
// True if t has all rows, adjacent and in order.
bool lm_row_tiling_is_contiguous(const lm_row_tiling *r, lm_type t);
bool lm_row_tiling_has_only_rows(const lm_row_tiling *r, lm_type t);
// True if the operation computes each row from the same row of its operands.
bool lm_row_tiling_is_rowwise(const lm_row_tiling *r, const lm_op *op);
// True if op is a sum or maximum over rows and other axes: the other axes are reduced inside the
// loop, the rows outside.
bool lm_row_tiling_is_row_sum(const lm_row_tiling *r, const lm_op *op);
// Moves the marked operations from first to last into a loop. Operations that are marked FOLLOWS
// and not INSIDE must have no effects.
void lm_row_tiling_apply(lm_row_tiling *r);
#endif
