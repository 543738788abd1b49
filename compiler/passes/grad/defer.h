// defer.h - accums of a loop over layers that become one accum behind the loop (passes defer_sums
// and defer_gemms): the loop stacks what each iteration computes, in the order of the stacked axis.
#ifndef LM_PASSES_DEFER_H
#define LM_PASSES_DEFER_H
#include "compiler/ir/ir.h"

// True if the innermost index of the accum takes every value of its stacked axis once, in either
// order, and the others do not depend on the loop.
bool lm_defer_visits_all(lm_module *m, const lm_op *loop, const lm_op *accum);
// That axis.
lm_axis lm_defer_axis(lm_module *m, const lm_op *accum);
// Lets the loop stack its results in the order of the axis, if it has no stacked results yet.
void lm_defer_order(lm_op *loop, const lm_op *accum);
// True if it does.
bool lm_defer_in_order(const lm_op *loop, const lm_op *accum);
// The accum of a value that has the axis.
void lm_defer_accum(lm_builder *b, const lm_op *accum, lm_value *all);
#endif
