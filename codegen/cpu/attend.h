// attend.h - what the parts of the generator of attention share while one function is written.
//
// A tile holds `cols` places of s by `rows` places of t, t innermost: T[n * rows + m]. So what
// depends on t alone is a row of vectors, what depends on s alone a scalar, and sums over s need
// nothing but additions of vectors.
#ifndef LM_CODEGEN_CPU_ATTEND_H
#define LM_CODEGEN_CPU_ATTEND_H
#include "codegen/common/attend.h"
#include "codegen/common/gen.h"
#include "codegen/cpu/cpu.h"

// Forms in which products read an operand (tile_attend.h of the prelude).
typedef enum cpu_attend_form {
  CPU_ROWS = 1,
  CPU_TURNED = 2,
  CPU_JOINED = 4,
  CPU_FLIPPED = 8
} cpu_attend_form;

typedef struct cpu_attend_operand {
  unsigned forms;     // those that are read; 0: no product's operand
  bool half;          // bf16 that may be multiplied as such
  bool row;           // of t
  lm_attend_axes own; // those that are not the scores'
  int64_t line;       // from one of its rows to the next
  int64_t slots;      // tiles of s that are kept, for other tiles of t
} cpu_attend_operand;

typedef struct cpu_attend {
  lm_gen g; // for its arena, names and extents
  lm_attend_spec f;
  int64_t rows, cols;          // of a full tile
  cpu_attend_operand *operand; // by number
  bool halves;                 // some are
  lm_buf buffers;              // declarations at the function's start
  lm_buf place;                // statements of a place, of its outer axes
  lm_buf row;                  // of a place of t, in a loop over m
  lm_buf col;                  // of a place of s, inside a loop over n
  lm_buf tile;                 // of an element, inside that in a loop over m
  const char *
      *name; // by value id: text that stands for the value where it is used, NULL if not yet
  const lm_value **local;
  uint32_t n_local, cap_local; // values whose text ends with the loops over n and m
  int n_names;
} cpu_attend;

// Text of an element of v at the place of the loops; what it needs is written to the buffers above.
const char *cpu_attend_value(cpu_attend *e, const lm_value *v);
void cpu_attend_loops_end(
    cpu_attend *e); // forgets what is local to the loops over n and m, empties col and tile
// "0 + i_b * 64 + …": place of an element of type t in memory, but for own axes. at_t, at_s: texts.
void cpu_attend_offset(cpu_attend *e, lm_buf *b, lm_type t, const char *at_t, const char *at_s);
const char *cpu_attend_coordinate(cpu_attend *e, lm_axis a); // of an outer axis

// ---- attend_operand.c: buffers, and operands' tiles
const char *cpu_attend_buffer(cpu_attend *e, const char *prefix, int number,
                              int64_t elements); // declared; its name
// Loops over own axes, and an element's number among them; own->n braces close them.
const char *cpu_attend_own_loops(cpu_attend *e, lm_buf *b, const lm_attend_axes *own);
void cpu_attend_own_offset(cpu_attend *e, lm_buf *b, lm_type t,
                           const lm_attend_axes *own); // behind cpu_attend_offset
// Elements from one place of a to the next in a tensor whose own axis is the last, and the only
// one; 0: it is not so.
int64_t cpu_attend_row_stride(const cpu_attend *e, lm_type t, const lm_attend_axes *own, lm_axis a);
void cpu_attend_close(lm_buf *b, int braces);
void cpu_attend_operands(cpu_attend *e); // which there are, and in which forms
void cpu_attend_fills(cpu_attend *e, lm_buf *b,
                      bool rows); // all that have t, or all that have not, for this tile
// Call of a product over own axes, "name_f32(" or "name_bf16(&unit, "; and the buffer of an
// operand's form.
void cpu_attend_call(cpu_attend *e, lm_buf *b, const char *name, int operand);
const char *cpu_attend_form_name(cpu_attend *e, int operand, cpu_attend_form form);
int64_t cpu_attend_sums_elements(const cpu_attend *e, int operand); // of sums [own][t]
// These as rows of t, in a buffer; its name. Rows are the operand's lines.
const char *cpu_attend_turned_back(cpu_attend *e, lm_buf *b, const char *sums, int operand);

// ---- attend.c: tiles
const char *cpu_attend_places(cpu_attend *e, bool row); // of a tile, as text: of t, or of s
void cpu_attend_products(cpu_attend *e, lm_buf *b);     // p<i> = the products of this tile
void cpu_attend_dot(cpu_attend *e, lm_buf *b, int col, int row,
                    const char *to); // to[s][t] = their product
void cpu_attend_sum_s(cpu_attend *e, lm_buf *b, int operand, const char *z,
                      const char *to);               // to[own][t] += operand z
void cpu_attend_map_check(cpu_attend *e, lm_buf *b); // leaves out what the map says; full: no mask
// for (n) for (m) with what was written to col and tile, then `body`; forgets both
void cpu_attend_loops(cpu_attend *e, lm_buf *b, const char *body);
void cpu_attend_rows(cpu_attend *e, lm_buf *b); // the loop over m that fills rows

// ---- attend_vjp.c
void cpu_attend_backward(cpu_attend *e, lm_buf *b); // of one place
#endif
