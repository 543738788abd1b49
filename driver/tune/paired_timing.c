// paired_timing.c - compares two plans of one recipe.
#include "driver/tune/paired_timing.h"

#include "runtime/train/ports.h"

static const double MARGIN = 1.03;

lm_status lm_pair_compare(lm_status (*step)(void *plan, double *out_ms), void *first, void *second,
                          double *out) {
  double sum_a = 0;
  double sum_b = 0;
  *out = 0;
  for (int i = 0; i < LM_PAIR_COMPARISONS; i++) {
    double a;
    double b;
    if (i % 2)
      LM_TRY(step(second, &b));
    LM_TRY(step(first, &a));
    if (i % 2 == 0)
      LM_TRY(step(second, &b));
    if (a < MARGIN * b)
      return NULL;
    sum_a += a;
    sum_b += b;
  }
  *out = sum_a / sum_b;
  return NULL;
}

lm_status lm_step_batch(const lm_execution *x, lm_data *data) {
  const lm_plan_func *f = lm_plan_func_get(x->compiled->plan, LM_FUNC_MICRO, 0);
  lm_batch_ports in;
  LM_TRY(lm_batch_ports_open(x->exec, x->compiled->plan, f, &in));
  lm_status status = lm_data_fill(data, 0, 0, x->compiled->run.n_micro, in.rows, &in.batch);
  lm_batch_ports_close(&in);
  return status;
}

static lm_status func_time(const lm_execution *x, lm_func_id id, bool counts, lm_shortest *best) {
  const lm_plan_func *f = lm_plan_func_get(x->compiled->plan, id, 0);
  double start = lm_now();
  if (!f)
    return NULL;
  LM_TRY(lm_exec_call(x->exec, f, NULL));
  if (counts)
    lm_shortest_add(best, lm_now() - start);
  return NULL;
}

lm_status lm_step_measure(const lm_execution *x, bool counts, lm_step_times *t) {
  LM_TRY(func_time(x, LM_FUNC_MICRO, counts, &t->micro));
  LM_TRY(func_time(x, LM_FUNC_NORM, counts, &t->norm));
  return func_time(x, LM_FUNC_UPDATE, counts, &t->update);
}

static bool is_confirmed(const lm_shortest *s) {
  return !s->seconds || lm_shortest_is_confirmed(s);
}

bool lm_step_is_confirmed(const lm_step_times *t) {
  return is_confirmed(&t->micro) && is_confirmed(&t->norm) && is_confirmed(&t->update);
}

double lm_step_ms(const lm_execution *x, const lm_step_times *t) {
  return 1e3 * ((double)x->compiled->run.n_micro * t->micro.seconds + t->norm.seconds +
                t->update.seconds);
}
