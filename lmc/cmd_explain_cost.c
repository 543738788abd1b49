// explain_cost.c - lmc explain FILE cost: each kernel of a training step against what this machine
// can do.
#include <math.h>

#include "driver/inspect/cost_rows.h"
#include "lmc/cmd_explain.h"

enum {
  WARM = 1,
  MEASURED = 2,
  SPANS_MOST = 1 << 22
};

static lm_status steps_run(lm_session *s, int64_t first, int64_t n) {
  for (int64_t step = first; step < first + n; step++) {
    lm_step_result r;
    LM_TRY(lm_trainer_step(s->trainer, step, 0, INFINITY, &r));
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

static void json_print(const lm_cost_rows *rows, const lm_roofline *r, int threads) {
  lm_buf b = {0};
  lm_cost_rows_json(rows, &b);
  lm_cli_print("{\"threads\": %d, \"peak_flops\": %.6g, \"bandwidth\": [", threads, r->peak);
  for (int i = 0; i < LM_ROOFLINE_SIZES; i++)
    lm_cli_print("%s%.6g", i ? ", " : "", r->bandwidth[i]);
  lm_cli_print("], \"least_s\": %.6g, \"measured_s\": %.6g, \"rows\": %s}\n", rows->least,
               rows->seconds, b.p);
  lm_buf_free(&b);
}

static void text_print(const lm_target *t, const lm_cost_rows *rows, const lm_roofline *r,
                       int threads) {
  lm_buf b = {0};
  lm_cost_rows_print(rows, &b);
  double peak = 1e-9 * r->peak;
  double memory = 1e-9 * r->bandwidth[LM_ROOFLINE_SIZES - 1];
  if (t->arch)
    lm_cli_print("%s: %.1f GFLOP/s; %.1f GB/s from memory\n\n%s", t->arch, peak, memory, b.p);
  else
    lm_cli_print(
        "%d thread%s: %.1f GFLOP/s; %.1f GB/s from memory, %.1f from the nearest cache\n\n%s",
        threads, threads == 1 ? "" : "s", peak, memory, 1e-9 * r->bandwidth[0], b.p);
  lm_buf_free(&b);
}

lm_status lm_explain_cost(const lm_cli *cli, lm_session *s) {
  bool measured = lm_args_given(&cli->args, "measure");
  LM_TRY(measured ? lm_session_data(s) : lm_session_sizes(s));
  LM_TRY(lm_session_lower(s, LM_LOWER_TRAIN, 0));
  LM_TRY(lm_session_plan(s));
  s->timeline = LM_NEW(s->ctx->arena, lm_timeline);
  *s->timeline = (lm_timeline){.arena = s->ctx->arena, .max = SPANS_MOST};
  LM_TRY(lm_session_start(s, &(lm_exec_options){.timeline = s->timeline}));
  lm_roofline r;
  int threads = lm_exec_threads(s->exec);
  lm_target_roofline(&s->target, threads, s->lowered->compute, &r);
  lm_cost_rows rows = lm_cost_rows_find(s->ctx->arena, s->plan, s->run.n_micro, &r);
  if (measured)
    LM_TRY(measure(s, &rows));
  if (cli->json)
    json_print(&rows, &r, threads);
  else
    text_print(&s->target, &rows, &r, threads);
  return NULL;
}
