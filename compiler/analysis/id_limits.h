// id_limits.h - upper bounds of the ids in a batch: the sizes of the tables that they index.
#ifndef LM_ANALYSIS_ID_LIMITS_H
#define LM_ANALYSIS_ID_LIMITS_H
#include "compiler/ir/ir.h"

// A further column of the data (contract/port.h) that indexes a table.
typedef struct lm_column_limit {
  const char *name;
  int64_t limit;
} lm_column_limit;

typedef struct lm_limits {
  int64_t tok, pos, next; // ids must be below it; INT64_MAX: not used as an index
  lm_column_limit *more;  // in the module's arena
  uint32_t n_more, cap_more;
  lm_axis *ids; // the axes that tok or next index: those of the vocabulary
  uint32_t n_ids, cap_ids;
} lm_limits;

// The limits of all functions of a module without calls. A table counts if the argument itself
// indexes it, possibly moved or increased by a number, in loops or not.
lm_limits lm_limits_find(const lm_module *m);
// True if tok or next index the axis, or the one of which it is a part.
bool lm_limits_index(const lm_limits *x, const lm_module *m, lm_axis axis);
#endif
