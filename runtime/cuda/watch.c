// watch.c - see watch.h.
#include "runtime/cuda/watch.h"

void lm_cuda_watch_close(lm_cuda_watch *w) {
  for (int i = 0; i < LM_PLAN_LANES; i++) {
    lm_cuda_exchanges *l = &w->lane[i];
    for (uint32_t k = 0; k < l->made; k++) {
      w->driver->cuEventDestroy_v2(l->v[k].begun);
      w->driver->cuEventDestroy_v2(l->v[k].done);
    }
    lm_free(l->v);
  }
}

static lm_status event_make(const lm_cuda_watch *w, void **out) {
  return lm_cuda_check(w->driver, w->driver->cuEventCreate(out, LM_CU_EVENT_NO_TIMES), "an event");
}

static lm_status event_record(const lm_cuda_watch *w, void *event, void *stream) {
  return lm_cuda_check(w->driver, w->driver->cuEventRecord(event, stream), "an event");
}

static lm_status exchange_make(const lm_cuda_watch *w, lm_cuda_exchanges *l) {
  lm_cuda_exchange x = {0};
  LM_TRY(event_make(w, &x.begun));
  lm_status s = event_make(w, &x.done);
  if (s) {
    w->driver->cuEventDestroy_v2(x.begun);
    return s;
  }
  if (l->made == l->cap) {
    l->cap = l->cap ? 2 * l->cap : 16;
    l->v = lm_realloc(l->v, l->cap * sizeof *l->v);
  }
  l->v[l->made++] = x;
  return NULL;
}

lm_status lm_cuda_watch_begin(lm_cuda_watch *w, int lane, void *stream, const char *label) {
  lm_cuda_exchanges *l = &w->lane[lane];
  if (l->first == l->n)
    l->first = l->n = 0;
  if (l->n == l->made)
    LM_TRY(exchange_make(w, l));
  lm_cuda_exchange *x = &l->v[l->n++];
  x->label = label;
  return event_record(w, x->begun, stream);
}

lm_status lm_cuda_watch_end(lm_cuda_watch *w, int lane, void *stream) {
  lm_cuda_exchanges *l = &w->lane[lane];
  return event_record(w, l->v[l->n - 1].done, stream);
}

// An error of the device counts as an end, since others report it.
static bool has_run(const lm_cuda_watch *w, void *event) {
  return w->driver->cuEventQuery(event) != LM_CU_NOT_READY;
}

const char *lm_cuda_watch_find(lm_cuda_watch *w, bool *moved) {
  const char *label = NULL;
  *moved = false;
  for (int i = 0; i < LM_PLAN_LANES; i++) {
    lm_cuda_exchanges *l = &w->lane[i];
    while (l->first < l->n && has_run(w, l->v[l->first].done)) {
      l->first++;
      *moved = true;
    }
    if (l->first < l->n && !label && has_run(w, l->v[l->first].begun))
      label = l->v[l->first].label;
  }
  return label;
}
