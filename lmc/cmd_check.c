// cmd_check.c - lmc check: checks that need no weights, data or device.
#include "driver/check.h"
#include "driver/report/report.h"
#include "lmc/open.h"
#include "runtime/base/terminal.h"

static const lm_opt options[] = {LM_OPT_TARGET, LM_OPT_RECIPE, LM_OPT_JSON, {0}};

typedef struct report {
  bool json;
  lm_buf text;
} report;

static void recipe_add(void *user, const lm_session *s) {
  report *r = user;
  if (r->text.n)
    lm_buf_puts(&r->text, r->json ? ",\n" : "\n");
  (r->json ? lm_report_check_json : lm_report_check)(s, &r->text);
}

static void report_print(report *r, int n) {
  enum {
    INDENT = 6 // of the rest of a long line
  };
  if (r->json)
    lm_cli_print("[%s]\n", r->text.p ? r->text.p : "");
  else
    lm_print_wrapped(stdout, INDENT, "%s", n ? r->text.p : "no errors; no recipe\n");
}

static lm_status check_run(lm_cli *cli) {
  lm_check_options o = {.from = lm_cli_recipe(cli)};
  report r = {.json = cli->json};
  int n;
  LM_TRY(lm_cli_target(cli, &o.target));
  lm_status status = lm_check_run(cli->ctx, &cli->events, &o, recipe_add, &r, &n);
  if (!status)
    report_print(&r, n);
  lm_buf_free(&r.text);
  return status;
}

const lm_command lm_cmd_check = {
    .name = "check",
    .usage = "FILE [options]",
    .summary = "finds every error that needs no data; shows recipe and parameters",
    .options = options,
    .least = 1,
    .most = 1,
    .run = check_run,
    .help = "Reports all errors of the file and of its imports at once. Without errors it prints "
            "the resolved recipe with where each value came from, the parameters, and what each "
            "pattern matched, as they are for the target.\n"
            "\n"
            "  lmc check examples/quickstart.lm --set optimizer.lr=1e-3\n"};
