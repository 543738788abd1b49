// causal_formula.h - formulas over linear inequalities of positions and documents.
//
//   !(pos_t >= pos_s) | seg_t != seg_s     or(pos_s - pos_t - 1 >= 0, or(…))
//
// Negations are moved to the inequalities, which are over integers.
#ifndef LM_CAUSAL_FORMULA_H
#define LM_CAUSAL_FORMULA_H
#include <stdbool.h>
#include <stdint.h>

#include "runtime/base/base.h"

enum {
  LM_POS_T,
  LM_POS_S,
  LM_SEG_T,
  LM_SEG_S,
  LM_PROMPT_T,
  LM_PROMPT_S,
  LM_TERMS_BASE,     // behind them: other terms, of which nothing is known
  LM_TERMS_MAX = 14, // with them
};

// The sum of at[i] * term i, plus c.
typedef struct lm_linear {
  int64_t at[LM_TERMS_MAX], c;
} lm_linear;

typedef enum {
  LM_FORMULA_FALSE,
  LM_FORMULA_TRUE,
  LM_FORMULA_ATOM, // x >= 0
  LM_FORMULA_AND,
  LM_FORMULA_OR,
} lm_formula_kind;

typedef struct lm_formula {
  lm_formula_kind kind;
  lm_linear x;
  const struct lm_formula *a, *b;
} lm_formula;

lm_linear lm_linear_term(int i);
// x + factor * y
lm_linear lm_linear_add(const lm_linear *x, const lm_linear *y, int64_t factor);
bool lm_linear_equal(const lm_linear *x, const lm_linear *y);

const lm_formula *lm_formula_constant(bool value);
const lm_formula *lm_formula_atom(lm_arena *a, const lm_linear *x); // x >= 0
const lm_formula *lm_formula_zero(lm_arena *a, const lm_linear *x); // x == 0
const lm_formula *lm_formula_and(lm_arena *a, const lm_formula *x, const lm_formula *y);
const lm_formula *lm_formula_or(lm_arena *a, const lm_formula *x, const lm_formula *y);
const lm_formula *lm_formula_not(lm_arena *a, const lm_formula *x);

// True if no integers satisfy it. False: some do, or it is not known: inequalities other than
// x - y + c >= 0 of two terms are left out, and the number of cases is limited.
bool lm_formula_refuted(const lm_formula *x);
// term `more` >= term `less` + c
const lm_formula *lm_formula_at_least(lm_arena *a, int more, int less, int64_t c);
// Positions are at least 0, and documents at t also; those at s may be padding, -1. `prompt` is 0
// or 1.
const lm_formula *lm_formula_domain(lm_arena *a);
#endif
