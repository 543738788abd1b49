// watch.h - in which collective the GPU is.
//
// The host enqueues collectives long before the GPU begins them, and a GPU that waits for other
// ranks does not report it. So each exchange of messages is between two events. While the host
// waits for the GPU it asks for those of the first exchange of each lane that is not complete: if
// the GPU has begun it, this rank is in it, else it computes.
#ifndef LM_CUDA_WATCH_H
#define LM_CUDA_WATCH_H
#include "runtime/cuda/driver.h"
#include "runtime/plan/plan.h"

typedef struct lm_cuda_exchange {
  const char *label;
  void *begun, *done; // events
} lm_cuda_exchange;

// Of a lane, in order: those before `first` are complete, those from n on have events alone.
typedef struct lm_cuda_exchanges {
  lm_cuda_exchange *v;
  uint32_t first, n, made, cap;
} lm_cuda_exchanges;

typedef struct lm_cuda_watch {
  const lm_cuda_driver *driver;
  lm_cuda_exchanges lane[LM_PLAN_LANES];
} lm_cuda_watch;

void lm_cuda_watch_close(lm_cuda_watch *w);
// Before and after the messages are enqueued on the stream of the lane. The label must outlive w.
lm_status lm_cuda_watch_begin(lm_cuda_watch *w, int lane, void *stream, const char *label);
lm_status lm_cuda_watch_end(lm_cuda_watch *w, int lane, void *stream);
// The label of an exchange that the GPU has begun and not completed; NULL: none. *moved: some are
// complete that were not at the last call.
const char *lm_cuda_watch_find(lm_cuda_watch *w, bool *moved);
#endif
