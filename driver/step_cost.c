// step_cost.c - the kernels of a training step beside lower bounds of their times on the machine.
#include "driver/step_cost.h"

#include <math.h>

#include "runtime/base/processors.h"

enum {
  WARM = 1,
  MEASURED = 2,
  MAX_SPANS = 1 << 22
};

static lm_status steps_run(lm_session *s, int64_t first, int64_t n) {
  for (int64_t step = first; step < first + n; step++) {
    lm_step_result r;
    LM_TRY(lm_trainer_step(s->execution.trainer, step, 0, INFINITY, &r));
    LM_TRY(lm_step_check(step, &r));
  }
  return NULL;
}

static lm_status measure(lm_session *s, lm_cost_rows *rows) {
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_session_train(s));
  LM_TRY(steps_run(s, 1, WARM));
  s->timeline->n_spans = 0;
  LM_TRY(steps_run(s, 1 + WARM, MEASURED));
  if (s->timeline->left_out)
    return lm_fail(LM_USER,
                   "a step has too many launches to measure each; use fewer micro-batches");
  lm_cost_rows_measure(rows, s->timeline, MEASURED);
  return NULL;
}

lm_status lm_step_cost_find(lm_session *s, bool measured, lm_step_cost *out) {
  LM_TRY(measured ? lm_session_data(s) : lm_session_sizes(s));
  LM_TRY(lm_session_compile(s, LM_LOWER_TRAIN, 0));
  s->timeline = LM_NEW(s->project.ctx->arena, lm_timeline);
  *s->timeline = (lm_timeline){.arena = s->project.ctx->arena, .max = MAX_SPANS};
  if (measured)
    LM_TRY(lm_session_start(s, &(lm_exec_options){.timeline = s->timeline}));
  out->threads = measured ? lm_exec_threads(s->execution.exec) : lm_threads(s->threads);
  out->dtype = s->compiled.compute;
  out->machine = lm_compiled_machine(&s->compiled, out->threads);
  out->rows = lm_cost_rows_find(s->project.ctx->arena, s->compiled.plan, s->run.n_micro,
                                &out->machine, out->dtype);
  out->tokens = (double)(s->run.n_micro * lm_run_micro(&s->run));
  return measured ? measure(s, &out->rows) : NULL;
}
