// simplify.h - the rules of simplify.c by kind. Each returns the replacement of the operation's
// result, or NULL.
#ifndef LM_SIMPLIFY_H
#define LM_SIMPLIFY_H
#include "compiler/passes/rewrite.h"

// op->mark of a concatenation: a dot reads it.
enum {
  LM_MULTIPLIED = 1
};

lm_value *lm_simplify_move(lm_rewrite *r, lm_op *op);   // simplify_move.c
lm_value *lm_simplify_reduce(lm_rewrite *r, lm_op *op); // simplify_reduce.c
// v is a constant; sets *out to its number.
bool lm_const_of(const lm_value *v, double *out);
// x, whose axes are a subset of t's, permuted to t's order and broadcast along t's other axes.
lm_value *lm_cast_to(lm_rewrite *r, lm_value *x, lm_type t);
#endif
