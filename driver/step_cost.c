// step_cost.c - the kernels of a training step beside lower bounds of their times on the machine.
#include "driver/step_cost.h"

#include <math.h>

#include "runtime/base/diag_code.h"
#include "runtime/base/processors.h"

enum {
  MEASURED_MIN = 2, // steps, after a first one that does not count
  MEASURED = 8,
  MAX_SPANS = 1 << 22
};
#define MEASURED_SECONDS 10 // after these no further step is begun

// Runs the first step once more, of which the timeline then holds the spans alone.
static lm_status step_run(lm_session *s) {
  lm_step_result r;
  s->timeline->n_spans = 0;
  LM_TRY(lm_trainer_step(s->execution.trainer, 1, 0, INFINITY, &r));
  return lm_step_check(1, &r);
}

static lm_status measure(lm_session *s, lm_cost_rows *rows) {
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_session_train(s));
  LM_TRY(step_run(s));
  double end = lm_now() + MEASURED_SECONDS;
  for (int i = 1; i <= MEASURED && (i <= MEASURED_MIN || lm_now() < end); i++) {
    LM_TRY(step_run(s));
    lm_cost_rows_measure(s->project.ctx->arena, rows, s->timeline);
  }
  return !s->timeline->left_out
             ? NULL
             : lm_fail(LM_USER, "a step has too many launches to measure each; use fewer "
                                "micro-batches");
}

static void draws_find(const lm_plan_func *decode, lm_step_cost *out) {
  const lm_plan_port *logits = lm_plan_port_get(decode, LM_PORT_LOGITS, true);
  for (int i = 0; i < LM_DRAW_KINDS; i++)
    out->decode.draw[i] =
        lm_cost_of_draw(&out->machine, (lm_draw_kind)i, (double)logits->shape[logits->rank - 1])
            .seconds;
}

// Errors of models that cannot decode are not errors of the step.
static void decode_find(lm_session *s, lm_step_cost *out) {
  lm_ctx *ctx = s->project.ctx;
  lm_diag_mark before = lm_diag_mark_of(ctx);
  int64_t positions = lm_cache_capacity(s->run.seq);
  lm_compile_spec spec = lm_session_spec(s, LM_LOWER_DECODE, positions);
  lm_compiled c;
  spec.run.rows = spec.run.seq = 1;
  spec.dump = NULL;
  lm_status status = lm_compile(&s->project, &spec, &c);
  const lm_plan_func *f = status ? NULL : lm_plan_func_get(c.plan, LM_FUNC_DECODE, 0);
  if (f && !ctx->n_errors) {
    out->decode.positions = positions;
    out->decode.token = lm_cost_of_func(&out->machine, c.plan, f);
    out->decode.lower_bound = out->decode.token.cold / lm_target_bandwidth(&out->machine);
    draws_find(f, out);
  }
  lm_status_free(status);
  lm_diag_return(ctx, before);
}

lm_status lm_step_cost_find(lm_session *s, bool measured, const lm_link *link, lm_step_cost *out) {
  *out = (lm_step_cost){.load = lm_load_measure()};
  LM_TRY(measured ? lm_session_data(s) : lm_session_sizes(s));
  LM_TRY(lm_session_compile(s, LM_LOWER_TRAIN, 0));
  if (measured && lm_plan_exchanges(lm_plan_func_get(s->compiled.plan, LM_FUNC_MICRO, 0)))
    LM_REPORT(s->project.ctx, s->project.recipe->parallel.loc, E257, "a measured cost");
  LM_TRY(lm_verdict(s->project.ctx));
  s->timeline = LM_NEW(s->project.ctx->arena, lm_timeline);
  *s->timeline = (lm_timeline){
      .arena = s->project.ctx->arena,
      .max = MAX_SPANS,
  };
  if (measured)
    LM_TRY(lm_session_start(s, &(lm_exec_options){.timeline = s->timeline}));
  out->threads = measured ? lm_exec_threads(s->execution.exec) : lm_threads(s->threads);
  out->dtype = s->compiled.compute;
  out->machine = lm_compiled_machine(&s->compiled, out->threads);
  out->rows = lm_cost_rows_find(s->project.ctx->arena, s->compiled.plan, s->run.n_micro,
                                &out->machine, out->dtype);
  out->ranks = lm_rank_rows_find(s->project.ctx->arena, s->compiled.plan, s->run.n_micro);
  lm_rank_machine ranks = {
      .target = &out->machine,
      .link = link ? link : lm_link_of(&s->target),
  };
  lm_rank_rows_times(&out->ranks, &ranks, s->run.n_micro);
  if (s->target.kind == LM_TARGET_CUDA && !s->compiled.plan->mesh.n && !measured)
    decode_find(s, out);
  out->tokens = (double)(s->run.n_micro * s->run.rows * s->run.seq);
  return measured ? measure(s, &out->rows) : NULL;
}
