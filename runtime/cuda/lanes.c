// lanes.c - see lanes.h.
#include "runtime/cuda/lanes.h"

static void *stream_of(const lm_cuda_lanes *l, const lm_plan_step *s) {
  return lm_plan_step_copies(s) ? l->copy[s->comm->lane] : l->lane[s->comm->lane];
}

static lm_status stream_make(const lm_cuda_lanes *l, const lm_plan_step *s, void **out) {
  const lm_cuda_driver *d = l->driver;
  int least = 0, greatest = 0; // numbers of priorities: a lower one is a higher priority
  if (lm_plan_step_copies(s))
    return lm_cuda_check(d, d->cuStreamCreate(out, LM_CU_STREAM_NON_BLOCKING), "a stream");
  LM_TRY(lm_cuda_check(d, d->cuCtxGetStreamPriorityRange(&least, &greatest), "a stream"));
  return lm_cuda_check(d, d->cuStreamCreateWithPriority(out, LM_CU_STREAM_NON_BLOCKING, greatest),
                       "a stream");
}

static lm_status event_make(const lm_cuda_driver *d, void **out) {
  return lm_cuda_check(d, d->cuEventCreate(out, LM_CU_EVENT_NO_TIMES), "an event");
}

// Makes the stream of the step. *handles: the number of handles in use.
static lm_status step_open(lm_cuda_lanes *l, const lm_plan_step *s, int *handles) {
  if (s->kind != LM_STEP_START)
    return NULL;
  void **lanes = lm_plan_step_copies(s) ? l->copy : l->lane;
  int end = s->comm->handle + (s->comm->slots ? s->comm->slots : 1);
  *handles = end > *handles ? end : *handles;
  return lanes[s->comm->lane] ? NULL : stream_make(l, s, &lanes[s->comm->lane]);
}

lm_status lm_cuda_lanes_open(lm_cuda_lanes *l, const lm_plan *plan, const lm_cuda_driver *d,
                             void *main) {
  int n = 0;
  *l = (lm_cuda_lanes){
      .driver = d,
      .main = main,
      .lane = {main},
  };
  for (int i = 0; i < plan->n_funcs; i++)
    for (int k = 0; k < plan->funcs[i].n_steps; k++)
      LM_TRY(step_open(l, &plan->funcs[i].steps[k], &n));
  if (!n)
    return NULL;
  LM_TRY(event_make(d, &l->ready));
  l->of = lm_calloc((size_t)n, sizeof *l->of);
  for (l->done = lm_calloc((size_t)n, sizeof *l->done); l->n < n; l->n++)
    LM_TRY(event_make(d, &l->done[l->n]));
  return NULL;
}

void lm_cuda_lanes_synchronize(const lm_cuda_lanes *l) {
  for (int i = 0; i < LM_CUDA_COPY_LANES; i++)
    if (l->copy[i])
      l->driver->cuStreamSynchronize(l->copy[i]);
  for (int i = 1; i < LM_PLAN_LANES; i++)
    if (l->lane[i])
      l->driver->cuStreamSynchronize(l->lane[i]);
}

void lm_cuda_lanes_close(lm_cuda_lanes *l) {
  const lm_cuda_driver *d = l->driver;
  lm_cuda_lanes_synchronize(l);
  for (int i = 0; i < LM_CUDA_COPY_LANES; i++)
    if (l->copy[i])
      d->cuStreamDestroy_v2(l->copy[i]);
  for (int i = 1; i < LM_PLAN_LANES; i++)
    if (l->lane[i])
      d->cuStreamDestroy_v2(l->lane[i]);
  for (int i = 0; i < l->n; i++)
    d->cuEventDestroy_v2(l->done[i]);
  if (l->ready)
    d->cuEventDestroy_v2(l->ready);
  lm_free(l->done);
  lm_free(l->of);
}

lm_status lm_cuda_lanes_begin(const lm_cuda_lanes *l, const lm_plan_step *s, void **stream) {
  const lm_cuda_driver *d = l->driver;
  *stream = stream_of(l, s);
  if (*stream == l->main)
    return NULL;
  LM_TRY(lm_cuda_check(d, d->cuEventRecord(l->ready, l->main), "an event"));
  return lm_cuda_check(d, d->cuStreamWaitEvent(*stream, l->ready, 0), "an event");
}

lm_status lm_cuda_lanes_end(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration) {
  int handle = lm_plan_comm_handle(s->comm, iteration);
  void *lane = l->of[handle] = stream_of(l, s);
  if (lane == l->main)
    return NULL;
  return lm_cuda_check(l->driver, l->driver->cuEventRecord(l->done[handle], lane), "an event");
}

lm_status lm_cuda_lanes_copy(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration,
                             lm_cuda_address from, lm_cuda_address to) {
  const lm_cuda_driver *d = l->driver;
  void *lane, *host = (void *)(uintptr_t)(s->comm->lane ? to : from);
  size_t bytes = (size_t)s->bufs[0].bytes;
  LM_TRY(lm_cuda_lanes_begin(l, s, &lane));
  int result = s->comm->lane ? d->cuMemcpyDtoHAsync_v2(host, from, bytes, lane)
                             : d->cuMemcpyHtoDAsync_v2(to, host, bytes, lane);
  LM_TRY(lm_cuda_check(d, result, "%zu bytes", bytes));
  return lm_cuda_lanes_end(l, s, iteration);
}

lm_status lm_cuda_lanes_wait(const lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration) {
  int handle = lm_plan_comm_handle(s->comm, iteration);
  if (l->of[handle] == l->main)
    return NULL;
  return lm_cuda_check(l->driver, l->driver->cuStreamWaitEvent(l->main, l->done[handle], 0),
                       "an event");
}
