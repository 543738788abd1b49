// cmd_data.c - lmc data: documents, tokens and rows of the recipe's data.
#include "driver/report/report.h"
#include "lmc/open.h"

static const lm_opt options[] = {{.name = "show",
                                  .kind = LM_OPT_WHOLE,
                                  .value = "N",
                                  .help = "prints the first N packed rows, decoded",
                                  .least = 0,
                                  .most = 1e6},
                                 LM_OPT_RECIPE,
                                 LM_OPT_JSON,
                                 {0}};

static lm_status show(lm_session *s, lm_cli *cli) {
  LM_TRY(lm_cli_open(cli, s));
  LM_TRY(lm_session_data(s));
  int64_t rows = lm_args_whole(&cli->args, "show", 0);
  if (rows && s->project.recipe->data.replays)
    return lm_fail(LM_USER, "finished batches have no text to show");
  if (!cli->json)
    return lm_report_data(s, rows, stdout);
  lm_buf text = {0};
  lm_status status = lm_report_data_json(s, rows, &text);
  if (status)
    lm_buf_free(&text);
  else
    lm_cli_put(&text);
  return status;
}

static lm_status data_run(lm_cli *cli) {
  lm_session s = {0};
  lm_status status = show(&s, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_data = {
    .name = "data",
    .usage = "FILE [--show N]",
    .summary = "documents, tokens and rows of the recipe's data",
    .options = options,
    .least = 1,
    .most = 1,
    .run = data_run,
    .help = "Reads, tokenises and packs the data of the recipe as a run would, and counts it. A "
            "terminal gets the text of documents wrapped; with --json it is exact.\n"
            "\n"
            "  lmc data examples/quickstart.lm --show 3\n"};
