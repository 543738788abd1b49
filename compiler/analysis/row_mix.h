// row_mix.h - whether a loss depends on which rows stand together in a micro-batch.
//
// A step is taken in micro-batches, whose losses (sum, weight) are added. That is the same for
// every `micro` if both are sums over rows of what each row gives by itself. A statistic of all
// rows of a micro-batch, a product of two such sums, a term that is added to the sum once: each
// makes `micro` part of what is computed.
#ifndef LM_ANALYSIS_ROW_MIX_H
#define LM_ANALYSIS_ROW_MIX_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_ROWS_APART,
  LM_ROWS_MEET /* rows meet otherwise than in a sum */,
  LM_ROWS_ONCE /* a term for each micro-batch */
} lm_rows_kind;
typedef struct lm_rows {
  lm_rows_kind kind;
  lm_loc loc;
} lm_rows; // loc: the first operation that makes it so

// Of @loss, in a module without calls.
lm_rows lm_rows_find(lm_module *m);
#endif
