// cmd_explain_plan.c - lmc explain FILE cost and memory: the time and the memory of a training
// step; changes in the middle of a run.
#include "driver/bundle.h"
#include "driver/outputs.h"
#include "driver/report/report.h"
#include "lmc/cmd_explain.h"
#include "runtime/base/terminal.h"

// NULL: none was given.
static lm_status link_find(const char *name, const lm_link **out) {
  enum {
    MOST = 32
  };
  const char *names[MOST];
  int n = 0;
  while (n < MOST && lm_link_name(n)) {
    names[n] = lm_link_name(n);
    n++;
  }
  *out = name ? lm_link_find(name) : NULL;
  if (!name || *out)
    return NULL;
  const char *near = lm_nearest(name, names, n);
  return lm_fail(LM_USER, "there is no link '%s'%s%s%s", name, near ? "; did you mean " : "",
                 near ? near : "", near ? "?" : "; `lmc explain --help` lists them");
}

lm_status lm_explain_cost(const lm_cli *cli, lm_session *s) {
  lm_step_cost x;
  lm_buf text = {0};
  const lm_link *link;
  bool measured = lm_args_given(&cli->args, "measure");
  LM_TRY(link_find(lm_args_text(&cli->args, "link", NULL), &link));
  LM_TRY(lm_step_cost_find(s, measured, link, &x));
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
  lm_print_report(stdout, cli->json, &text);
  return NULL;
}

lm_status lm_explain_changes(const lm_cli *cli, const char *dir) {
  lm_history h;
  lm_buf b = {0};
  LM_TRY(lm_bundle_check(cli->ctx->arena, dir));
  LM_TRY(lm_history_read(cli->ctx->arena, dir, &h));
  (cli->json ? lm_history_json : lm_report_changes)(&h, &b);
  lm_cli_put(&b);
  return NULL;
}
