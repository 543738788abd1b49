// causal_reach.h - sets of positions that the elements of a value depend on.
#ifndef LM_CAUSAL_REACH_H
#define LM_CAUSAL_REACH_H
#include "compiler/passes/causal/causal.h"

// For each index along some axes, an interval of positions of the row. It is stored as two numbers
// whose larger value is the larger interval, and that are 0 if it is empty: before = n + 1 - first,
// after = last + 1.
typedef struct term {
  lm_type type; // the axes; the dtype has no meaning
  int32_t *before, *after;
} term;

// An operation that moves data along the positions or reduces over them, and the ones before it on
// the path from the tokens.
typedef struct cause {
  const lm_op *op;
  const struct cause *before;
} cause;

enum {
  MAX_TERMS = 6
};
// The union of the terms: a score q[t] * k[s] has one term along t and one along s.
typedef struct reach {
  term v[MAX_TERMS];
  int n;
  bool tokens, targets; // depends on `tok`; on `next`
  // Of rows that are sorted by group: their order. The terms are those of each row before sorting.
  const lm_value *order;
  const cause *cause;
} reach;

typedef struct reacher {
  probe *p;
  lm_arena *a;
  reach *of;      // by value id
  int64_t *start; // by t: the first position of its document
  // the first gather that reads logits at the token that they were computed from
  const lm_op *paired;
  const cause *pair_cause;
  int64_t pair_t;
} reacher;

// ---- causal_scan.c
// Sets r->of of the results of a scan, without causes.
void lm_reach_scan(const reacher *r, const lm_op *scan);

// ---- causal_term.c
void lm_reach_add(const reacher *r, reach *x, term t);
void lm_reach_join(const reacher *r, reach *x, const reach *y);             // the causes: the first
bool lm_reach_grow(const reacher *r, reach *x, const reach *y, bool widen); // false: no change
// One interval along axis t, of all terms that have no axes but t; false if there is another term.
term lm_reach_along(const reacher *r, const reach *x, lm_axis t);
// Removes the positions that the elements t with !keep[t] depend on.
void lm_reach_keep(const reacher *r, reach *x, lm_axis t, const bool *keep);
// Removes what the elements depend on whose value in the grid of a known value is 0 (nonzero), or
// is not; only terms with t and another axis of the grid.
void lm_reach_mask(const reacher *r, reach *x, const proof *known, lm_axis t, bool nonzero);
// The same if v is the index of another axis, such as that of taps, or equality with a constant.
void lm_reach_index(const reacher *r, reach *x, const lm_value *v, bool nonzero);
bool lm_term_has(const term *x, const lm_axis *axes, int n);
term lm_term_identity(const reacher *r, lm_axis t, int64_t offset);
term lm_term_spread(const reacher *r, const term *x, lm_type to);
term lm_term_reduced(const reacher *r, const term *x, const lm_axis *over, int n);
// slice: element j of `to` (0: dropped) is element first + step * j of `from`; pad: the reverse.
term lm_term_slice(const reacher *r, const term *x, const lm_attr *a);
term lm_term_pad(const reacher *r, const term *x, lm_axis from, lm_axis to, int64_t first,
                 int64_t step);
// window: element (u, k) is element u * stride + k * dilate - before of the axis.
term lm_term_taps(const reacher *r, const term *x, const lm_attr *a);
term lm_term_view(const reacher *r, const term *x, const lm_attr *a);
// Axis s becomes t: element t is the union of the elements first[t] … last[t].
term lm_term_window(const reacher *r, const term *x, lm_axis s, lm_axis t, const int64_t *first,
                    const int64_t *last);
#endif
