// cost_lanes.c - the time that copies between host and device add to a function: a simulation of
// its steps, in which a copy occupies its lane and a wait takes the rest of the copy.
#include "compiler/plan/cost.h"
#include "runtime/plan/walk.h"

enum {
  LANES = 2
};

typedef struct simulation {
  const lm_target *t;
  const lm_plan_func *f;
  const lm_plan_walk *walk;
  const double *seconds;          // of each step
  double *exposed;                // the same
  double now, lane[LANES], *done; // done: when the copy of each handle ends
} simulation;

static lm_status step_run(void *user, const lm_plan_step *s) {
  simulation *x = user;
  int i = (int)(s - x->f->steps);
  if (!lm_plan_step_copies(s)) {
    x->now += x->seconds[i];
    return NULL;
  }
  double *done = &x->done[lm_plan_comm_handle(s->comm, x->walk->iteration)];
  double *lane = &x->lane[s->comm->lane];
  if (s->kind == LM_STEP_START) {
    *lane = (*lane > x->now ? *lane : x->now) + lm_cost_copy(x->t, (double)s->bufs[0].bytes);
    *done = *lane;
    return NULL;
  }
  double rest = *done > x->now ? *done - x->now : 0;
  x->exposed[i] += rest;
  x->now += rest;
  return NULL;
}

static int handles_of(const lm_plan_func *f) {
  int n = 0;
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_comm *c = lm_plan_step_copies(&f->steps[i]) ? f->steps[i].comm : NULL;
    int end = c ? c->handle + c->slots + 1 : 0;
    n = end > n ? end : n;
  }
  return n;
}

double lm_cost_copy(const lm_target *t, double bytes) {
  return t->host > 0 ? bytes / (t->rates.host * t->host) : 0;
}

double lm_cost_exposed(const lm_target *t, const lm_plan *p, const lm_plan_func *f,
                       double *out_steps) {
  lm_plan_walk walk;
  double *seconds = lm_calloc((size_t)f->n_steps + 1, sizeof *seconds);
  double *exposed = lm_calloc((size_t)f->n_steps + 1, sizeof *exposed);
  double sum = 0;
  simulation x = {
      .t = t,
      .f = f,
      .walk = &walk,
      .seconds = seconds,
      .exposed = exposed,
  };
  x.done = lm_calloc((size_t)handles_of(f) + 1, sizeof *x.done);
  for (int i = 0; i < f->n_steps; i++)
    if (lm_cost_launches(&f->steps[i]))
      seconds[i] = lm_cost_of_step(t, p, &f->steps[i]).seconds + t->rates.gap;
  lm_plan_walk_open(p, &walk);
  lm_status_free(lm_plan_walk_run(&walk, f, NULL, step_run, &x));
  lm_plan_walk_close(&walk);
  for (int i = 0; i < f->n_steps; i++) {
    sum += exposed[i];
    if (out_steps)
      out_steps[i] = exposed[i];
  }
  lm_free(seconds);
  lm_free(exposed);
  lm_free(x.done);
  return sum;
}
