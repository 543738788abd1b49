// watch.c - see watch.h.
#include "runtime/cuda/watch.h"

#include <string.h>

// A mark: its number, which differs from that before, the step, and whether the GPU is within it.
enum {
  NUMBER_BIT = 32,
  STEP_BIT = 1
};

lm_status lm_cuda_watch_open(lm_cuda_watch *w, const lm_plan *plan, const lm_cuda_builtins *b) {
  size_t bytes = LM_PLAN_LANES * sizeof *w->marks;
  void *p;
  *w = (lm_cuda_watch){
      .plan = plan,
      .builtins = b,
  };
  LM_TRY(lm_cuda_check(b->driver, b->driver->cuMemHostAlloc(&p, bytes, 0), "pinned host memory"));
  w->marks = memset(p, 0, bytes);
  return NULL;
}

void lm_cuda_watch_close(lm_cuda_watch *w) {
  if (w->marks)
    w->builtins->driver->cuMemFreeHost((void *)(uintptr_t)w->marks);
}

// Steps of all functions are numbered in order.
static uint64_t number_of(const lm_plan *p, const lm_plan_step *s) {
  uint64_t n = 0;
  int i = 0;
  for (; s < p->funcs[i].steps || s >= p->funcs[i].steps + p->funcs[i].n_steps; i++)
    n += (uint64_t)p->funcs[i].n_steps;
  return n + (uint64_t)(s - p->funcs[i].steps);
}

static const lm_plan_step *step_of(const lm_plan *p, uint64_t n) {
  int i = 0;
  for (; n >= (uint64_t)p->funcs[i].n_steps; i++)
    n -= (uint64_t)p->funcs[i].n_steps;
  return &p->funcs[i].steps[n];
}

lm_status lm_cuda_watch_mark(lm_cuda_watch *w, const lm_plan_step *s, void *stream, bool within) {
  uint64_t mark = (uint64_t)++w->number << NUMBER_BIT;
  mark |= number_of(w->plan, s) << STEP_BIT | within;
  lm_cuda_builtins b = *w->builtins;
  b.stream = stream;
  return lm_cuda_mark(&b, (void *)(uintptr_t)&w->marks[s->comm->lane], mark);
}

lm_cuda_watched lm_cuda_watch_find(lm_cuda_watch *w) {
  lm_cuda_watched found = {0};
  for (int i = 0; i < LM_PLAN_LANES; i++) {
    uint64_t mark = w->marks[i];
    found.moved |= mark != w->seen[i];
    w->seen[i] = mark;
    if ((mark & 1) && !found.step)
      found.step = step_of(w->plan, (uint32_t)mark >> STEP_BIT);
  }
  return found;
}
