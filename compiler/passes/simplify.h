// simplify.h - the rules of simplify.c by kind. Each returns what stands for the operation's
// result, or NULL.
#ifndef LM_SIMPLIFY_H
#define LM_SIMPLIFY_H
#include "compiler/passes/rewrite.h"

enum {
  LM_MULTIPLIED = 1
}; // op->mark of a concatenation: an operand of a product

lm_value *lm_simplify_move(lm_rewrite *r, lm_op *op);   // simplify_move.c
lm_value *lm_simplify_reduce(lm_rewrite *r, lm_op *op); // simplify_reduce.c
// v as one number in any shape
bool lm_const_of(const lm_value *v, double *out);
// x, whose axes are a subset of t's, in t's order and repeated along t's others
lm_value *lm_cast_to(lm_rewrite *r, lm_value *x, lm_type t);
#endif
