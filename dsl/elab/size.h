// size.h - sizes of axes: polynomials over named dims with rational coefficients and integer
// powers, which may be negative. They have a normal form, so `heads / kv * kv == heads` holds. A
// size without dims is a number.
#ifndef LM_SIZE_H
#define LM_SIZE_H
#include "runtime/base/base.h"

// (num / den) * dim[0] ^ power[0] * dim[1] ^ power[1] …
typedef struct lm_size_term {
  int64_t num, den;
  int n;
  struct {
    lm_sym dim;
    int power;
  } f[8];
} lm_size_term;

// The sum of n terms in canonical order; n = 0 is zero.
typedef struct lm_size {
  int n;
  const lm_size_term *t;
} lm_size;

lm_size lm_size_number(lm_arena *a, int64_t v);
lm_size lm_size_dim(lm_arena *a, lm_sym dim);
// *out = x + sign * y. This and the following return false if the result has too many terms or
// exceeds 64 bits.
bool lm_size_add(lm_arena *a, lm_size x, lm_size y, int sign, lm_size *out);
bool lm_size_mul(lm_arena *a, lm_size x, lm_size y, lm_size *out);
// Exact division; also false if y is zero, or a sum other than x.
bool lm_size_div(lm_arena *a, lm_size x, lm_size y, lm_size *out);
bool lm_size_equal(lm_size x, lm_size y);
bool lm_size_is_const(lm_size x);            // whether x has no dims
bool lm_size_whole(lm_size x, int64_t *out); // whether x is a whole number
void lm_size_print(lm_size x, lm_buf *out);
#endif
