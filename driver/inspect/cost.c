// cost.c - see cost.h.
#include "driver/inspect/cost.h"

lm_cost lm_cost_of(const lm_plan_func *f) {
  lm_cost c = {0};
  double times = 1;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (s->kind == LM_STEP_LOOP)
      times *= (double)s->count;
    else if (s->kind == LM_STEP_END)
      times /= (double)f->steps[s->match].count;
    else {
      c.flops += times * (double)s->flops;
      c.bytes += times * (double)s->moved;
      c.launches += (int64_t)times;
    }
  }
  return c;
}

static void cost_add(const lm_plan *p, lm_func_id id, double times, lm_cost *sum) {
  const lm_plan_func *f = lm_plan_func_get(p, id, 0);
  if (!f)
    return;
  lm_cost c = lm_cost_of(f);
  sum->flops += times * c.flops;
  sum->bytes += times * c.bytes;
  sum->launches += (int64_t)times * c.launches;
}

// Bytes that the first micro-batch of a step does not move.
static double saved_of(const lm_plan_func *f) {
  double sum = 0;
  for (int i = 0; f && i < f->n_steps; i++)
    sum += (double)lm_plan_step_saved(f, i);
  return sum;
}

lm_cost lm_cost_of_step(const lm_plan *p, int64_t n_micro) {
  lm_cost sum = {0};
  cost_add(p, LM_FUNC_MICRO, (double)n_micro, &sum);
  sum.bytes -= saved_of(lm_plan_func_get(p, LM_FUNC_MICRO, 0));
  cost_add(p, LM_FUNC_NORM, 1, &sum);
  cost_add(p, LM_FUNC_UPDATE, 1, &sum);
  cost_add(p, LM_FUNC_COPIES, 1, &sum);
  return sum;
}
