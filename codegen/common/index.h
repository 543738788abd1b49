// index.h - affine expressions over loop variables: the index of an element along an axis or in
// memory.
//
// A variable is a loop counter or a number computed earlier (a gathered index, a quotient). Its
// current range is known, so most comparisons and divisions are decided while code is generated: a
// loop over [16, 32) of an axis knows which operand of a concatenation it reads.
#ifndef LM_CODEGEN_INDEX_H
#define LM_CODEGEN_INDEX_H
#include "runtime/base/base.h"

typedef enum {
  LM_VAR_PARALLEL /* a coordinate of the point */,
  LM_VAR_LOOP,
  LM_VAR_TEMP
} lm_var_kind;
typedef struct lm_var {
  lm_var_kind kind;
  const char *name;
  int64_t size;   // capacity: values are in [0, size)
  int dyn;        // k > 0: the extent is run-time extent k - 1, at most `size`
  int64_t lo, hi; // current range [lo, hi)
  int level;      // level of the loop that sets it, from 1; 0: set once for each point
  uint16_t into;  // if not 0, one merged loop with variable `into` runs over both
} lm_var;

// v[0] is unused.
typedef struct lm_vars {
  lm_arena *arena;
  lm_var *v;
  uint32_t n, cap;
} lm_vars;
uint16_t lm_var_add(lm_vars *s, lm_var v);

enum {
  LM_IX_TERMS = 40
};
// c + sum of coef * var; terms are in order of var, coefficients are not 0.
typedef struct lm_ix {
  int64_t c;
  int n;
  struct {
    uint16_t var;
    int64_t coef;
  } t[LM_IX_TERMS];
} lm_ix;

lm_ix lm_ix_const(int64_t c);
// The variable, or its value if its range contains only one.
lm_ix lm_ix_var(const lm_vars *s, uint16_t var);
lm_ix lm_ix_add(lm_ix a, lm_ix b);
lm_ix lm_ix_scale(lm_ix a, int64_t k);
bool lm_ix_equal(const lm_ix *a, const lm_ix *b);
int64_t lm_ix_coef(const lm_ix *a, uint16_t var);
void lm_ix_range(const lm_vars *s, const lm_ix *a, int64_t *out_min, int64_t *out_max);
int lm_ix_level(const lm_vars *s, const lm_ix *a); // level of the innermost variable
// Splits a = n * quotient + rest with 0 <= rest < n term by term. Returns false if that needs a
// division at run time.
bool lm_ix_divide(const lm_vars *s, const lm_ix *a, int64_t n, lm_ix *out_quotient,
                  lm_ix *out_rest);
// Finds a variable whose split into (high, low) by *out_by makes a divisible by n; returns 0 if
// there is none.
uint16_t lm_ix_split_find(const lm_vars *s, const lm_ix *a, int64_t n, int64_t *out_by);
// Finds a variable and a value *out_at of it such that a < bound exactly for smaller values;
// returns 0 if there is none.
uint16_t lm_ix_partition_find(const lm_vars *s, const lm_ix *a, int64_t bound, int64_t *out_at);
void lm_ix_print(const lm_vars *s, const lm_ix *a, lm_buf *out); // as a C expression
#endif
