// ordered.h - sums and maxima over ranks in a fixed order.
#ifndef LM_COMM_ORDERED_H
#define LM_COMM_ORDERED_H
#include "runtime/comm/comm.h"

// to[i] = from[0][i] op from[1][i] op … over `ranks` arrays of n elements: the arrays are combined
// in blocks of eight in order, then the results of the blocks in order. `to` may be one of them.
// bf16 is computed in f32 and rounded once; int wraps around.
void lm_ordered_reduce(lm_dtype t, lm_coll_op op, const void *const *from, int ranks, int64_t n,
                       void *to);
// True if lm_ordered_reduce computes with the type.
bool lm_ordered_knows(lm_dtype t);
#endif
