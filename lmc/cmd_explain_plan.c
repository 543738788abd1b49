// cmd_explain_plan.c - lmc explain FILE cost and memory: the time and the memory of a training
// step.
#include "driver/outputs.h"
#include "driver/report/report.h"
#include "lmc/cmd_explain.h"

lm_status lm_explain_cost(const lm_cli *cli, lm_session *s) {
  lm_step_cost x;
  lm_buf text = {0};
  LM_TRY(lm_step_cost_find(s, lm_args_given(&cli->args, "measure"), &x));
  (cli->json ? lm_report_cost_json : lm_report_cost)(&s->target, &x, &text);
  lm_cli_put(&text);
  return NULL;
}

lm_status lm_explain_memory(const lm_cli *cli, lm_session *s) {
  const char *svg = lm_args_text(&cli->args, "svg", NULL);
  LM_TRY(lm_output_check_recipe(s->project.recipe, svg));
  if (svg)
    LM_TRY(lm_output_file_check(svg));
  LM_TRY(lm_session_sizes(s));
  LM_TRY(lm_session_compile_run(s, 0));
  lm_memory_breakdown h = lm_memory_breakdown_make(s->project.ctx->arena, s->compiled.plan,
                                                   s->compiled.workspace, s->compiled.saving);
  if (svg)
    LM_TRY(lm_memory_picture_write(s, &h, svg));
  lm_buf text = {0};
  (cli->json ? lm_report_memory_json : lm_report_memory)(s, &h, &text);
  lm_cli_put(&text);
  return NULL;
}
