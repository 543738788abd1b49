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
#endif
