// unusable.h - documents that cannot be used: the error if there are too many of them.
#ifndef LM_DATA_ROWS_UNUSABLE_H
#define LM_DATA_ROWS_UNUSABLE_H
#include <stdint.h>

#include "runtime/base/base.h"

enum {
  LM_UNUSABLE_LISTED = 20 // of a list, at most
};

typedef struct lm_unusable {
  uint64_t documents, unusable; // those that were read, and those of them that cannot be used
  const char *list;             // a line for each of the first LM_UNUSABLE_LISTED; not NULL
} lm_unusable;

// LM_USER, with the list, if more than `percent` of the documents cannot be used, as `option`, the
// text of a key or an option, allows. scope: "" or " so far".
lm_status lm_unusable_check(const lm_unusable *u, double percent, const char *option,
                            const char *scope);
#endif
