// lanes.c - see lanes.h.
#include "runtime/cuda/lanes.h"

static int handles_of(const lm_plan *p) {
  int n = 0;
  for (int i = 0; i < p->n_funcs; i++)
    for (int k = 0; k < p->funcs[i].n_steps; k++) {
      const lm_plan_step *s = &p->funcs[i].steps[k];
      int end =
          lm_plan_step_copies(s) ? s->comm->handle + (s->comm->slots ? s->comm->slots : 1) : 0;
      n = end > n ? end : n;
    }
  return n;
}

static lm_status event_make(const lm_cuda_driver *d, void **out) {
  return lm_cuda_check(d, d->cuEventCreate(out, LM_CU_EVENT_NO_TIMES), "an event");
}

lm_status lm_cuda_lanes_open(lm_cuda_lanes *l, const lm_plan *plan, const lm_cuda_driver *d,
                             void *main) {
  int n = handles_of(plan);
  *l = (lm_cuda_lanes){
      .driver = d,
      .main = main,
  };
  if (!n)
    return NULL;
  for (int i = 0; i < LM_CUDA_LANES; i++)
    LM_TRY(lm_cuda_check(d, d->cuStreamCreate(&l->lane[i], LM_CU_STREAM_NON_BLOCKING), "a stream"));
  LM_TRY(event_make(d, &l->ready));
  for (l->done = lm_calloc((size_t)n, sizeof *l->done); l->n < n; l->n++)
    LM_TRY(event_make(d, &l->done[l->n]));
  return NULL;
}

void lm_cuda_lanes_close(lm_cuda_lanes *l) {
  const lm_cuda_driver *d = l->driver;
  for (int i = 0; i < LM_CUDA_LANES; i++)
    if (l->lane[i]) {
      d->cuStreamSynchronize(l->lane[i]);
      d->cuStreamDestroy_v2(l->lane[i]);
    }
  for (int i = 0; i < l->n; i++)
    d->cuEventDestroy_v2(l->done[i]);
  if (l->ready)
    d->cuEventDestroy_v2(l->ready);
  lm_free(l->done);
}

static lm_status copy_enqueue(const lm_cuda_lanes *l, const lm_plan_step *s, lm_cuda_address from,
                              lm_cuda_address to) {
  const lm_cuda_driver *d = l->driver;
  void *lane = l->lane[s->comm->lane];
  size_t bytes = (size_t)s->bufs[0].bytes;
  int result = s->comm->lane
                   ? d->cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, lane)
                   : d->cuMemcpyHtoDAsync_v2(to, (const void *)(uintptr_t)from, bytes, lane);
  return lm_cuda_check(d, result, "%zu bytes", bytes);
}

lm_status lm_cuda_lanes_start(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration,
                              lm_cuda_address from, lm_cuda_address to) {
  const lm_cuda_driver *d = l->driver;
  void *lane = l->lane[s->comm->lane], *done = l->done[lm_plan_comm_handle(s->comm, iteration)];
  LM_TRY(lm_cuda_check(d, d->cuEventRecord(l->ready, l->main), "an event"));
  LM_TRY(lm_cuda_check(d, d->cuStreamWaitEvent(lane, l->ready, 0), "an event"));
  LM_TRY(copy_enqueue(l, s, from, to));
  return lm_cuda_check(d, d->cuEventRecord(done, lane), "an event");
}

lm_status lm_cuda_lanes_wait(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration) {
  void *done = l->done[lm_plan_comm_handle(s->comm, iteration)];
  return lm_cuda_check(l->driver, l->driver->cuStreamWaitEvent(l->main, done, 0), "an event");
}
