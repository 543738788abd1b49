// attend.h - state of the attention generator for one function.
//
// A tile has `cols` positions of s by `rows` positions of t, t innermost: T[n * rows + m]. A value
// that depends on t alone is a row of vectors, one that depends on s alone is a scalar, and a sum
// over s is an addition of vectors.
#ifndef LM_CODEGEN_CPU_ATTEND_H
#define LM_CODEGEN_CPU_ATTEND_H
#include "codegen/common/attend_value.h"
#include "codegen/common/gen.h"
#include "codegen/cpu/cpu.h"

enum {
  // Tiles of s whose weights are computed at once, LM_TILES_MAX of tile_attend.h: their scores are
  // half of the first-level cache.
  CPU_ATTEND_TILES = 4
};

// Forms in which the GEMMs read an operand (tile_attend.h of the prelude).
typedef enum cpu_attend_form {
  CPU_ROWS = 1,
  CPU_TRANSPOSED = 2,
  CPU_INTERLEAVED = 4,
  CPU_LHS_TRANSPOSED = 8
} cpu_attend_form;

typedef struct cpu_attend_operand {
  unsigned forms;          // the forms that are read; 0: no GEMM reads the operand
  bool bf16;               // bf16 that is multiplied as bf16
  bool row;                // has axis t
  lm_attend_axes channels; // axes that the scores do not have
  int64_t row_stride;      // elements from one row to the next
  int64_t slots;           // tiles of s that are kept for further tiles of t
} cpu_attend_operand;

typedef struct cpu_attend {
  lm_gen g; // for its arena, names and extents
  lm_attend_spec f;
  int64_t rows, cols;          // of a full tile
  int64_t tiles;               // forward: of s, whose weights are computed at once
  cpu_attend_operand *operand; // by number
  bool any_bf16;               // some operand is
  lm_buf buffers;              // declarations at the start of the function
  lm_buf point;                // statements of a point of the parallel axes
  lm_buf row;                  // of a position of t, in a loop over m
  lm_buf col;                  // of a position of s, in a loop over n
  lm_buf tile;                 // of an element, in a loop over m inside that loop
  lm_attend_values values;     // their statements go to the buffers above
} cpu_attend;

void cpu_attend_values(cpu_attend *e); // sets e->values
// Forgets values that are local to the loops over n and m; empties col and tile.
void cpu_attend_loops_end(cpu_attend *e);
// "0 + i_b * 64 + ...": the offset of an element of type t in memory, without channel axes. at_t,
// at_s: the text of the indices along t and s.
void cpu_attend_offset(cpu_attend *e, lm_buf *b, lm_type t, const char *at_t, const char *at_s);

// ---- attend_operand.c: buffers, tiles of operands
// Declares a buffer and returns its name.
const char *cpu_attend_buffer(cpu_attend *e, const char *prefix, int number, int64_t elements);
// Opens loops over channel axes; returns the text of the number of an element among them. The
// caller closes channels->n braces.
const char *cpu_attend_channel_loops(cpu_attend *e, lm_buf *b, const lm_attend_axes *channels);
// Loops over channel axes, in which `body` accumulates in partial results.
void cpu_attend_channel_sum(cpu_attend *e, lm_buf *b, const lm_attend_axes *channels,
                            const char *body);
// The offset along channel axes, to be appended to cpu_attend_offset.
void cpu_attend_channel_offset(cpu_attend *e, lm_buf *b, lm_type t, const lm_attend_axes *channels);
// Elements from one position of axis a to the next in a tensor with exactly one channel axis, the
// last axis; 0 for other tensors.
int64_t cpu_attend_row_stride(const cpu_attend *e, lm_type t, const lm_attend_axes *channels,
                              lm_axis a);
void cpu_attend_close(lm_buf *b, int braces);
void cpu_attend_operands(cpu_attend *e); // finds the operands and the forms that are read
// Fills the tiles of all operands that have axis t, or of all others.
void cpu_attend_fills(cpu_attend *e, lm_buf *b, bool rows);
// cpu_attend_call begins the call of a GEMM over channel axes: "name_f32(" or "name_bf16(&unit, ".
// cpu_attend_form_name returns the buffer of a form of an operand.
void cpu_attend_call(cpu_attend *e, lm_buf *b, const char *name, int operand);
const char *cpu_attend_form_name(cpu_attend *e, int operand, cpu_attend_form form);
int64_t cpu_attend_sums_elements(const cpu_attend *e, int operand); // of sums [channels][t]
// Stores such sums of a tile of t to `result`, whose rows are those of the operand.
void cpu_attend_sums_store(cpu_attend *e, lm_buf *b, const char *sums, int operand,
                           uint32_t result);
// Transposes such sums into rows of t with the operand's row stride; returns the name of the
// buffer.
const char *cpu_attend_untranspose(cpu_attend *e, lm_buf *b, const char *sums, int operand);

// ---- attend_loops.c: the work on one tile
// The extent of a tile along t (`row`) or s, as text.
const char *cpu_attend_tile_extent(cpu_attend *e, bool row);
void cpu_attend_dots(cpu_attend *e, lm_buf *b); // p<i> = dot i of this tile
// to[s][t] = dot of the operands `col` and `row`
void cpu_attend_dot(cpu_attend *e, lm_buf *b, int col, int row, const char *to);
// to[channels][t] += operand z, for `cols` positions of the tiles of a list.
void cpu_attend_sum_s(cpu_attend *e, lm_buf *b, int operand, const char *list, const char *cols,
                      const char *z, const char *to);
// Skips the tile if the map says that it is masked. `full`: the tile needs no mask.
void cpu_attend_map_check(cpu_attend *e, lm_buf *b);
// Writes for (n) for (m) with the statements in col and tile, then `body`; empties both.
void cpu_attend_loops(cpu_attend *e, lm_buf *b, const char *body);
void cpu_attend_rows(cpu_attend *e, lm_buf *b); // the loop over m that fills the rows

// ---- attend_vjp.c
void cpu_attend_backward(cpu_attend *e, lm_buf *b); // text of one point
// True if a result of attend_vjp is summed in f32 in the workspace, and then rounded.
bool cpu_attend_sums_apart(const cpu_attend *e, uint32_t result);
#endif
