// prefetch.h - a thread that fills the batch after the one that was asked for, while that one is
// used.
#ifndef LM_DATA_PREFETCH_H
#define LM_DATA_PREFETCH_H
#include "runtime/data/feed/data.h"

typedef struct lm_batch_id {
  int64_t step, micro, n_micro, rows, seq;
} lm_batch_id;
typedef lm_status lm_fill_fn(void *user, const lm_batch_id *id, const lm_batch *b);

typedef struct lm_prefetch lm_prefetch;
// `fill` is called by this thread and the other one, never by both at once. NULL if no thread can
// be had.
lm_prefetch *lm_prefetch_create(lm_fill_fn *fill, void *user);
void lm_prefetch_destroy(lm_prefetch *p); // NULL is fine
// next: the batch that will most likely be asked for after it.
lm_status lm_prefetch_take(lm_prefetch *p, const lm_batch_id *id, const lm_batch_id *next,
                           const lm_batch *b);
#endif
