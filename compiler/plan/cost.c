// cost.c - see cost.h: sums over the functions of a plan.
#include "compiler/plan/cost.h"

const char *const lm_cost_bound_names[LM_COST_BOUNDS] = {"launch", "memory", "instructions",
                                                         "arithmetic"};

lm_cost_sum lm_cost_of_func(const lm_target *t, const lm_plan *p, const lm_plan_func *f) {
  lm_cost_sum c = {.seconds = t ? t->rates.call : 0};
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    double times = (double)lm_plan_step_times(f, i);
    if (lm_plan_step_copies(s) && s->kind == LM_STEP_START)
      c.copied += times * (double)s->bufs[0].bytes;
    if (!lm_cost_launches(s))
      continue;
    c.flops += times * (double)s->flops;
    c.bytes += times * (double)s->moved;
    c.cold += times * lm_cost_cold(s);
    c.launches += (int64_t)times;
    c.seconds += t ? times * (lm_cost_of_step(t, p, s).seconds + t->rates.gap) : 0;
  }
  if (t && lm_plan_copies(f))
    c.exposed = lm_cost_exposed(t, p, f, NULL);
  c.seconds += c.exposed;
  return c;
}

lm_cost_sum lm_cost_of_call(const lm_target *t, const lm_plan *p, const lm_cost_call *call) {
  lm_cost_sum c = lm_cost_of_func(t, p, call->func);
  c.seconds -= t && call->joins ? t->rates.call : 0;
  return c;
}

// A wait of the host comes between the gradient and the update if ranks add their sums, and before
// the update by an extra gradient.
static bool joins(const lm_plan *p, const lm_plan_func *f) {
  bool update = f->key.id == LM_FUNC_UPDATE && f->key.extra;
  return !p->mesh.n && f->key.id != LM_FUNC_MICRO && !update;
}

// The functions of the micro-batches of a step, of which the last one may be another.
static int micros_add(const lm_plan *p, int64_t n_micro, bool extra, double steps,
                      lm_cost_call *out) {
  lm_func_key key = {LM_FUNC_MICRO, .extra = extra};
  lm_func_key end = {LM_FUNC_MICRO_LAST, .extra = extra};
  const lm_plan_func *f = lm_plan_func_get_key(p, key);
  const lm_plan_func *last = lm_plan_func_get_key(p, end);
  double others = (double)n_micro - (last ? 1 : 0);
  int n = 0;
  if (f && others > 0)
    out[n++] = (lm_cost_call){f, others * steps, false};
  if (last)
    out[n++] = (lm_cost_call){last, steps, false};
  return n;
}

int lm_cost_calls(const lm_plan *p, int64_t n_micro, lm_cost_call out[LM_COST_CALLS]) {
  const lm_plan_func *update = lm_plan_func_get(p, LM_FUNC_UPDATE, 0);
  const lm_func_id ids[] = {LM_FUNC_REDUCE, LM_FUNC_NORM, LM_FUNC_RATES, LM_FUNC_UPDATE,
                            update && update->makes_copies ? LM_FUNC_PACKS : LM_FUNC_COPIES};
  const lm_plan_func *extra = lm_plan_func_extra(p, LM_FUNC_UPDATE);
  const lm_plan_func *own = lm_plan_func_extra(p, LM_FUNC_MICRO);
  double share = extra ? 1.0 / (double)extra->every : 0; // of the steps
  int n = micros_add(p, n_micro, false, own ? 1 : 1 + share, out);
  for (size_t i = 0; i < LM_COUNT(ids); i++) {
    const lm_plan_func *f = lm_plan_func_get(p, ids[i], 0);
    bool again = ids[i] != LM_FUNC_RATES && ids[i] != LM_FUNC_UPDATE;
    if (f)
      out[n++] = (lm_cost_call){f, again ? 1 + share : 1, false};
  }
  if (own)
    n += micros_add(p, n_micro, true, share, out + n);
  if (lm_plan_func_extra(p, LM_FUNC_RATES))
    out[n++] = (lm_cost_call){lm_plan_func_extra(p, LM_FUNC_RATES), share, false};
  if (extra)
    out[n++] = (lm_cost_call){extra, share, false};
  for (int i = 0; i < n; i++)
    out[i].joins = joins(p, out[i].func);
  return n;
}

// Seconds by which an execution of a step is faster if it overwrites `saved` bytes of gradients
// instead of adding to them.
static double first_seconds(const lm_target *t, const lm_plan *p, const lm_plan_step *s,
                            int64_t saved) {
  if (s->kind == LM_STEP_FILL)
    return lm_cost_memory(t, (double)saved);
  lm_plan_gemm gemm[LM_PLAN_MAPS];
  lm_plan_step first = *s;
  int n_gemm = s->joined ? s->joined : s->gemm != NULL;
  for (int k = 0; k < n_gemm; k++) {
    gemm[k] = s->gemm[k];
    gemm[k].accumulate = false;
  }
  first.gemm = n_gemm ? gemm : NULL;
  first.moved -= saved;
  return lm_cost_of_step(t, p, s).seconds - lm_cost_of_step(t, p, &first).seconds;
}

// What the first micro-batch of a training step does not move, and the time of it, as a negative
// sum.
static lm_cost_sum first_of(const lm_target *t, const lm_plan *p, const lm_plan_func *f) {
  lm_cost_sum sum = {0};
  for (int i = 0; f && i < f->n_steps; i++) {
    int64_t times, saved = lm_plan_step_saved(f, i, &times);
    if (!saved)
      continue;
    sum.bytes -= (double)(times * saved);
    sum.seconds -= t ? (double)times * first_seconds(t, p, &f->steps[i], saved) : 0;
  }
  return sum;
}

lm_cost_sum lm_cost_of_training(const lm_target *t, const lm_plan *p, int64_t n_micro) {
  lm_cost_call calls[LM_COST_CALLS];
  lm_cost_sum sum = first_of(t, p, lm_plan_func_get(p, LM_FUNC_MICRO, 0));
  int n = lm_cost_calls(p, n_micro, calls);
  for (int i = 0; i < n; i++) {
    lm_cost_sum c = lm_cost_of_call(t, p, &calls[i]);
    sum.flops += calls[i].calls * c.flops;
    sum.bytes += calls[i].calls * c.bytes;
    sum.cold += calls[i].calls * c.cold;
    sum.seconds += calls[i].calls * c.seconds;
    sum.exposed += calls[i].calls * c.exposed;
    sum.copied += calls[i].calls * c.copied;
    sum.launches += (int64_t)(calls[i].calls * (double)c.launches);
  }
  return sum;
}
