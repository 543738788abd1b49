// index.h - affine expressions over loop variables: where an element lies along an axis or in
// memory.
//
// A variable is a loop's counter or a number computed before (a gathered index, a quotient). Its
// present range is known, so comparisons and divisions are mostly decided while code is generated:
// a loop that runs over [16, 32) of an axis knows which part of a concatenation it reads.
#ifndef LM_CODEGEN_INDEX_H
#define LM_CODEGEN_INDEX_H
#include "runtime/base/base.h"

typedef enum {
  LM_VAR_OUTER /* a coordinate of the place */,
  LM_VAR_LOOP,
  LM_VAR_TEMP
} lm_var_kind;
typedef struct lm_var {
  lm_var_kind kind;
  const char *name;
  int64_t size;   // capacity: values lie in [0, size)
  int dyn;        // k > 0: the extent is run-time extent k - 1, at most size
  int64_t lo, hi; // present range [lo, hi)
  int level;      // number of the loop that sets it, from 1; 0: set once a place
  uint16_t into;  // not 0: one loop with variable `into` runs over both
} lm_var;

typedef struct lm_vars {
  lm_arena *arena;
  lm_var *v;
  uint32_t n, cap;
} lm_vars; // v[0] is unused
uint16_t lm_var_add(lm_vars *s, lm_var v);

enum {
  LM_IX_TERMS = 40
};
typedef struct lm_ix { // c + sum of coef * var; terms in order of var, coefficients not 0
  int64_t c;
  int n;
  struct {
    uint16_t var;
    int64_t coef;
  } t[LM_IX_TERMS];
} lm_ix;

lm_ix lm_ix_const(int64_t c);
lm_ix lm_ix_var(const lm_vars *s, uint16_t var); // its value, when only one is left in its range
lm_ix lm_ix_add(lm_ix a, lm_ix b);
lm_ix lm_ix_scale(lm_ix a, int64_t k);
bool lm_ix_equal(const lm_ix *a, const lm_ix *b);
int64_t lm_ix_coef(const lm_ix *a, uint16_t var);
void lm_ix_range(const lm_vars *s, const lm_ix *a, int64_t *out_min, int64_t *out_max);
int lm_ix_level(const lm_vars *s, const lm_ix *a); // of the innermost variable
// a = n * quotient + rest with 0 <= rest < n, term by term. False if that needs a division at run
// time.
bool lm_ix_divide(const lm_vars *s, const lm_ix *a, int64_t n, lm_ix *out_quotient,
                  lm_ix *out_rest);
// A variable whose split into (high, low) by *out_by would let a be divided by n; 0 if there is
// none.
uint16_t lm_ix_split_find(const lm_vars *s, const lm_ix *a, int64_t n, int64_t *out_by);
// A variable, and a value of it, such that a < bound exactly for smaller values; 0 if there is
// none.
uint16_t lm_ix_cut_find(const lm_vars *s, const lm_ix *a, int64_t bound, int64_t *out_at);
void lm_ix_print(const lm_vars *s, const lm_ix *a, lm_buf *out); // as C
#endif
