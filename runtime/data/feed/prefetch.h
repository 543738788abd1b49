// prefetch.h - a thread that fills the next batch while the caller uses the current one.
#ifndef LM_DATA_FEED_PREFETCH_H
#define LM_DATA_FEED_PREFETCH_H
#include "runtime/data/feed/data.h"

// Rows first … first + own - 1 of the `rows` rows of a micro-batch, each of `seq` positions.
typedef struct lm_batch_id {
  int64_t step, micro, n_micro, rows, seq, first, own;
} lm_batch_id;
typedef lm_status lm_fill_fn(void *user, const lm_batch_id *id, const lm_batch *b);

typedef struct lm_prefetch lm_prefetch;
// Both this thread and the caller's may call `fill`, never at the same time. NULL if no thread can
// be created.
lm_prefetch *lm_prefetch_create(lm_fill_fn *fill, void *user);
void lm_prefetch_destroy(lm_prefetch *p); // p may be NULL
// Copies batch `id` to b and starts filling `next`, the batch that the caller will probably need
// after it. Returns the status of `fill`.
lm_status lm_prefetch_take(lm_prefetch *p, const lm_batch_id *id, const lm_batch_id *next,
                           const lm_batch *b);
#endif
