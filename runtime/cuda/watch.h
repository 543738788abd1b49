// watch.h - in which collective the GPU is.
//
// The host enqueues collectives long before the GPU begins them, in graphs many times, and a GPU
// that waits for other ranks does not report it. So each lane has a number in the memory of the
// host that the GPU writes: before a collective, behind each of its exchanges of messages, and at
// its end. While the host waits for the GPU it reads them. An event for each exchange would not do,
// since a graph that has been launched again holds the events of its last launch alone.
#ifndef LM_CUDA_WATCH_H
#define LM_CUDA_WATCH_H
#include "runtime/cuda/builtin.h"

typedef struct lm_cuda_watch {
  const lm_plan *plan;
  const lm_cuda_builtins *builtins;
  volatile uint64_t *marks;     // pinned, by lane
  uint64_t seen[LM_PLAN_LANES]; // at the last call of lm_cuda_watch_find
  uint32_t number;              // of the next mark
} lm_cuda_watch;

// A collective that the GPU has begun and not completed.
typedef struct lm_cuda_watched {
  const lm_plan_step *step; // NULL: none
  bool moved;               // a lane has other marks than at the last call
} lm_cuda_watched;

lm_status lm_cuda_watch_open(lm_cuda_watch *w, const lm_plan *plan, const lm_cuda_builtins *b);
void lm_cuda_watch_close(lm_cuda_watch *w);
// Behind the work of the stream, the GPU is in the START `s` of the lane, or behind it.
lm_status lm_cuda_watch_mark(lm_cuda_watch *w, const lm_plan_step *s, void *stream, bool within);
lm_cuda_watched lm_cuda_watch_find(lm_cuda_watch *w);
#endif
