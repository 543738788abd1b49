// exec_run.c - the CUDA executor runs functions, and reports failures of the device, which become
// known at a synchronization.
#include "runtime/cuda/exec_state.h"

#include <string.h>

#include "runtime/cuda/nvtx.h"

// ---- failures

lm_status cuda_exec_failure_copy(const cuda_exec *e) {
  return e->failed ? lm_fail(e->failed->kind, "%s", e->failed->text) : NULL;
}

// Records the first failure and returns a copy of it; takes s.
lm_status cuda_exec_fail(cuda_exec *e, lm_status s) {
  if (!s)
    return NULL;
  if (e->failed)
    lm_status_free(s);
  else
    e->failed = s;
  return cuda_exec_failure_copy(e);
}

static lm_status fault_status(const cuda_exec *e) {
  const lm_plan_step *s = &e->may_fault->steps[e->fault[0] - 1];
  return lm_fail(LM_USER, "%s: position %d is outside of a cache of %lld", s->label, e->fault[1],
                 (long long)s->move->at_limit);
}

// Kernels run asynchronously, so it is not known which one failed. The message names the functions
// since the last synchronization: "micro … update".
static lm_status sync_failed(cuda_exec *e, int result) {
  const char *first = e->first_pending ? e->first_pending->name : "copying";
  const char *last = e->first_pending ? e->func->name : first;
  bool one = !strcmp(first, last);
  return cuda_exec_fail(e, lm_cuda_check(&e->d, result,
                                         "%s%s%s failed on %s; LMC_CUDA_SYNC=1 names the kernel",
                                         first, one ? "" : " … ", one ? "" : last, e->device.name));
}

// Synchronizes with the stream.
lm_status cuda_exec_synchronize(cuda_exec *e) {
  int result = 0;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  e->deferring = false;
  LM_TRY(cuda_exec_fail(e, cuda_exec_flush(e)));
  LM_TRY(cuda_exec_fail(e, cuda_exec_wait(e, NULL, &result)));
  if (result)
    return sync_failed(e, result);
  e->first_pending = NULL;
  if (e->fault && e->fault[0])
    return cuda_exec_fail(e, fault_status(e));
  return NULL;
}

// ---- functions

// Extents are counts of elements, so their upper words stay 0.
static lm_status extents_send(cuda_exec *e, const lm_plan_func *f, const int64_t *extents) {
  LM_TRY(lm_plan_walk_extents(&e->walk, f, extents));
  for (int i = 0; i < e->plan->n_extents; i++) {
    int64_t n = e->walk.var[i];
    if (n == e->extents_sent[i])
      continue;
    if (n > INT32_MAX)
      return lm_fail(LM_ENV, "extent %s of %lld exceeds the limit of a GPU",
                     e->plan->extents[i].name, (long long)n);
    LM_TRY(lm_cuda_check(&e->d, e->d.cuMemsetD32Async(e->extent_at[i], (unsigned)n, 1, e->stream),
                         "an extent"));
    e->extents_sent[i] = n;
  }
  return NULL;
}

// Writes the numbers of the rule to the device, if they have changed.
static lm_status rule_take(cuda_exec *e, cuda_work *w) {
  const lm_scale_rule *r = e->rule;
  lm_cuda_rule now = {r->loss_scale, r->clip, r->limit};
  e->rule = NULL;
  w->norm = r->norm;
  w->scale = r->scale;
  w->sum = r->sum;
  w->weight = r->weight;
  if (!memcmp(&now, &e->rule_sent, sizeof now))
    return NULL;
  for (int i = 0; i < e->deferred.n; i++)
    if (e->deferred.work[i].scale)
      LM_TRY(cuda_exec_flush(e)); // which reads the rule before
  e->rule_sent = now;
  return lm_cuda_rule_send(&e->builtins, &now, cuda_exec_rule(e));
}

static lm_status run(cuda_exec *e, const lm_plan_func *f, const int64_t *extents) {
  const func_state *x = &e->funcs[f - e->plan->funcs];
  cuda_work w = {
      .f = f,
      .first = e->hal.first && f->initializes,
  };
  if (!x->fixed || x->extents || cuda_exec_conflicts(e, f))
    LM_TRY(cuda_exec_flush(e));
  e->func = f;
  void *sent = lm_cuda_memory_sent(&e->memory, f);
  int result = 0;
  if (sent)
    LM_TRY(cuda_exec_wait(e, sent, &result));
  if (result)
    return sync_failed(e, result);
  LM_TRY(lm_cuda_memory_begin(&e->memory, f));
  if (e->rule) // after the copy of the arguments, one of which it overwrites
    LM_TRY(rule_take(e, &w));
  if (x->extents)
    LM_TRY(extents_send(e, f, extents));
  if (x->may_fault)
    e->may_fault = f;
  if (x->fixed)
    return cuda_exec_add(e, &w);
  lm_nvtx_push(f->name);
  lm_status s = cuda_exec_work(e, &w, extents);
  lm_nvtx_pop();
  return s;
}

// Converts the device's times between marks to the host's clock, such that the last step ends now.
static lm_status timeline_fill(cuda_exec *e, const lm_plan_func *f) {
  double end = lm_now();
  float all = 0, from = 0, to = 0;
  const lm_cuda_driver *d = &e->d;
  LM_TRY(lm_cuda_check(
      d, d->cuEventElapsedTime(&all, e->marks[0].event, e->marks[e->n_marks - 1].event),
      "times of %s", f->name));
  for (uint32_t i = 1; i < e->n_marks; i++, from = to) {
    const lm_plan_step *s = e->marks[i].step;
    LM_TRY(lm_cuda_check(d, d->cuEventElapsedTime(&to, e->marks[0].event, e->marks[i].event),
                         "times of %s", f->name));
    if (s->kind != LM_STEP_LOOP)
      lm_timeline_span(e->timeline, (lm_span){s->label, s, end - (all - from) * 1e-3,
                                              end - (all - to) * 1e-3, LM_ROW_STEP, -1});
  }
  lm_timeline_span(e->timeline, (lm_span){f->name, NULL, end - all * 1e-3, end, LM_ROW_FUNC, -1});
  return NULL;
}

lm_status cuda_exec_run(lm_exec *hal, const lm_plan_func *f, const int64_t *extents) {
  cuda_exec *e = (cuda_exec *)hal;
  if (e->failed)
    return cuda_exec_failure_copy(e);
  if (!e->first_pending)
    e->first_pending = f;
  e->n_marks = 0;
  LM_TRY(cuda_exec_fail(e, run(e, f, extents)));
  if (!e->timeline)
    return NULL;
  LM_TRY(cuda_exec_synchronize(e));
  return cuda_exec_fail(e, timeline_fill(e, f));
}
