// size.h - sizes of axes: polynomials over named dims with rational coefficients and whole (also
// negative) powers, so that `heads / kv * kv == heads` is decided by normal form. A size without
// dims is a number.
#ifndef LM_SIZE_H
#define LM_SIZE_H
#include "runtime/base/base.h"

typedef struct lm_size_term {
  int64_t num, den;
  int n;
  struct {
    lm_sym dim;
    int power;
  } f[8];
} lm_size_term;
typedef struct lm_size {
  int n;
  const lm_size_term *t;
} lm_size; // terms in canonical order; n = 0 is zero

lm_size lm_size_number(lm_arena *a, int64_t v);
lm_size lm_size_dim(lm_arena *a, lm_sym dim);
bool lm_size_add(lm_arena *a, lm_size x, lm_size y, int sign,
                 lm_size *out); // false: does not fit the form
bool lm_size_mul(lm_arena *a, lm_size x, lm_size y, lm_size *out);
bool lm_size_div(lm_arena *a, lm_size x, lm_size y,
                 lm_size *out); // exact; false for a sum below, or 0
bool lm_size_equal(lm_size x, lm_size y);
bool lm_size_is_const(lm_size x);            // a ratio of numbers
bool lm_size_whole(lm_size x, int64_t *out); // a whole number
void lm_size_print(lm_size x, lm_buf *out);
#endif
