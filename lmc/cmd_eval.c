// cmd_eval.c - lmc eval: the loss of a trained model on held-out data.
#include "driver/evaluate.h"
#include "driver/report/report.h"
#include "lmc/open.h"

static const lm_opt options[] = {
    {.name = "on",
     .kind = LM_OPT_LIST,
     .value = "HOLDOUT",
     .help = "a held-out part of the data, or train; may be repeated (all held-out ones)"},
    LM_OPT_STEP,
#include "lmc/ranks.def"
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

typedef struct results {
  bool json;
  int n;
} results;

static void result_print(void *user, const char *part, const lm_eval_result *x) {
  results *r = user;
  lm_buf b = {0};
  bool first = r->n++ == 0;
  (r->json ? lm_report_eval_json : lm_report_eval)(part, x, first, &b);
  lm_cli_put(&b);
}

static lm_status eval(lm_session *s, lm_cli *cli) {
  results r = {.json = cli->json};
  lm_evaluation_options o = {
      .result = result_print,
      .user = &r,
  };
  o.parts = lm_args_list(&cli->args, "on", &o.n_parts);
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_cli_open_trained(cli, s, &o.weights));
  lm_status status = lm_evaluation_run(s, &o);
  if (cli->json && r.n)
    lm_cli_print("}\n");
  return status;
}

static lm_status eval_run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = eval(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_eval = {
    .name = "eval",
    .usage = "RUN|FILE [options]",
    .summary = "loss, perplexity and bits per byte on held-out data",
    .options = options,
    .least = 1,
    .most = 1,
    .run = eval_run,
    .help =
        "RUN is the folder of a run; its data is read from the paths of the recipe. Given a FILE, "
        "the weights are those that its model is declared `from`. A part whose weights sum to 0 "
        "has no metrics, and the exit status is 1.\n"
        "The program and the tokenizer are the copies in RUN; eval, generate and export refuse a "
        "program that does not compute what the weights were trained with, and another tokenizer.\n"
        "Standard error shows the tokens that are done and the time left: in one line of a "
        "terminal, else in a note every 30 seconds.\n"
        "\n"
        "  lmc eval runs/quickstart --step best --json\n"};
