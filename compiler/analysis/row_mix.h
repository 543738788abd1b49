// row_mix.h - whether a loss depends on the assignment of rows to micro-batches.
//
// A step adds the losses (sum, weight) of its micro-batches. The result is independent of the
// micro-batch size if both are sums over rows of a function of each row. A statistic of all rows of
// a micro-batch, a product of two such sums, a term that is added to the sum once, or a sum whose
// weight is a constant makes the result depend on the micro-batch size.
#ifndef LM_ANALYSIS_ROW_MIX_H
#define LM_ANALYSIS_ROW_MIX_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_ROW_MIX_INDEPENDENT,     // of the assignment
  LM_ROW_MIX_MIXED,           // rows are combined other than by a sum
  LM_ROW_MIX_PER_MICRO_BATCH, // a term of the sum is added once per micro-batch
  LM_ROW_MIX_UNWEIGHTED,      // the sum grows with the rows, the weight does not
} lm_row_mix_kind;
typedef struct lm_row_mix {
  lm_row_mix_kind kind;
  lm_loc loc; // the first operation with this effect
  // The loss is a sum over rows, and terms that are added once per micro-batch, if the values
  // without rows that loops over the instances of a block carry, as a balance loss, are constants.
  bool by_blocks;
} lm_row_mix;

// Classifies @loss, in a module without calls.
lm_row_mix lm_row_mix_find(lm_module *m);

// How a result of @loss depends on the rows.
typedef enum {
  LM_ROWS_NONE,  // not at all
  LM_ROWS_SUM,   // a sum over rows of a function of each row
  LM_ROWS_BOTH,  // the two added
  LM_ROWS_MIXED, // in another way
} lm_rows_kind;
lm_rows_kind lm_row_mix_result(const lm_func *loss, uint32_t i);
#endif
