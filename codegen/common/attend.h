// attend.h - what a generator must know of an attend or attend_vjp: its products, what is summed
// over its tiles, its axes.
//
// A tile is a stretch of t by a stretch of s at one place of the other axes of the scores, the
// outer axes.
#ifndef LM_CODEGEN_ATTEND_H
#define LM_CODEGEN_ATTEND_H
#include "compiler/ir/attend.h"

enum {
  LM_ATTEND_PARTS = 16
};

typedef struct lm_attend_axes {
  lm_axis axis[LM_RANK];
  int n;
  int64_t size;
} lm_attend_axes; // size: their product

// dot(row, col) over own axes, that are not the scores'. Operands by number.
typedef struct lm_attend_dot {
  const lm_value *v;
  uint32_t row, col;
  lm_attend_axes over;
} lm_attend_dot;

// A result of attend_vjp: tiles summed over s (rows: a row for each t) or over t, weighted with
// another operand's rows.
typedef struct lm_attend_sum {
  const lm_value *tile; // NULL: of v's cotangent, p * factor
  int other;            // operand that has the axis summed over; -1: a plain sum
  bool rows;
  uint32_t result;
  lm_attend_axes
      own; // of the result: those that the scores have not, in the order of the other's rows
} lm_attend_sum;

typedef struct lm_attend_spec {
  const lm_module *m;
  const lm_op *op;
  bool vjp;
  lm_axis t, s;
  int64_t tile_t, tile_s; // of the map; 0: there is none
  lm_type space;
  lm_attend_axes outer; // of the scores, but t and s
  lm_attend_axes
      shared; // of outer, those that every result has: tiles at different places of them are apart
  lm_attend_axes v_own; // of v
  const lm_value *score, *mask,
      *factor; // mask, factor: NULL where all is let through, where it is 1
  lm_attend_dot products[LM_ATTEND_PARTS];
  int n_products;
  lm_attend_sum sums[LM_ATTEND_PARTS];
  int n_sums;
} lm_attend_spec;

// False with a reason if the region holds what no generator knows.
bool lm_attend_spec_make(const lm_module *m, const lm_op *op, lm_attend_spec *out, lm_buf *why);
bool lm_attend_is_supported(const lm_module *m, const lm_op *op); // whether it does not
const lm_attend_dot *lm_attend_dot_of(const lm_attend_spec *f,
                                      const lm_value *v); // NULL if v is none
int lm_attend_operand(const lm_attend_spec *f,
                      const lm_value *arg); // -1: no argument; the score's cotangent is -2
#endif
