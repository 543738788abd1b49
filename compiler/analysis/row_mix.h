// row_mix.h - whether a loss depends on the assignment of rows to micro-batches.
//
// A step adds the losses (sum, weight) of its micro-batches. The result is independent of the
// micro-batch size if both are sums over rows of a function of each row. A statistic of all rows of
// a micro-batch, a product of two such sums, or a term that is added to the sum once makes the
// result depend on the micro-batch size.
#ifndef LM_ANALYSIS_ROW_MIX_H
#define LM_ANALYSIS_ROW_MIX_H
#include "compiler/ir/ir.h"

typedef enum {
  LM_ROW_MIX_INDEPENDENT,     // of the assignment
  LM_ROW_MIX_MIXED,           // rows are combined other than by a sum
  LM_ROW_MIX_PER_MICRO_BATCH, // a term of the sum is added once per micro-batch
} lm_row_mix_kind;
typedef struct lm_row_mix {
  lm_row_mix_kind kind;
  lm_loc loc; // the first operation with this effect
} lm_row_mix;

// Classifies @loss, in a module without calls.
lm_row_mix lm_row_mix_find(lm_module *m);

// How the result of a micro-batch follows from results of parts of its rows.
typedef enum {
  LM_ROW_RESULT_SUM,   // it is their sum
  LM_ROW_RESULT_EQUAL, // it depends on no row, so all parts have it
  LM_ROW_RESULT_OTHER
} lm_row_result_kind;
typedef struct lm_row_result {
  lm_sym name; // "sum", "weight", or of a metric
  lm_row_result_kind kind;
  lm_loc loc; // of OTHER, the first operation with this effect
} lm_row_result;
typedef struct lm_row_results {
  lm_row_result *v;
  uint32_t n;
} lm_row_results;

// The results of @loss, allocated in the module's arena; the module must have no calls.
lm_row_results lm_row_results_find(lm_module *m);
#endif
