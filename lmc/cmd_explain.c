// cmd_explain.c - lmc explain: the meaning of an error code, the origin of a value of the recipe,
// the cost of a step and the tensors in its memory.
#include <string.h>
#include <unistd.h>

#include "driver/report/report.h"
#include "lmc/cmd_explain.h"
#include "runtime/base/diag_code.h"
#include "runtime/base/terminal.h"

static const lm_opt options[] = {
    {.name = "reference",
     .kind = LM_OPT_FLAG,
     .help = "every key of recipes and data, as Markdown (no file is needed)"},
    {.name = "errors",
     .kind = LM_OPT_FLAG,
     .help = "every error and warning that has a code, as Markdown (no file is needed)"},
    {.name = "measure",
     .kind = LM_OPT_FLAG,
     .help = "cost: also runs steps, and prints the time of each kernel next to its minimum"},
    {.name = "link",
     .kind = LM_OPT_TEXT,
     .value = "NAME",
     .help = "cost: the connection between ranks: nvlink5, nvlink4, nvlink3, pcie5, pcie4, "
             "infiniband, ethernet100, ethernet10 or memory (that of the target)"},
    {.name = "svg",
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help =
         "memory: draws the activations over the steps in this file, replacing an existing one"},
    LM_OPT_PASSES,
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status key_explain(const lm_cli *cli, const lm_recipe *r, const char *key) {
  lm_buf text = {0};
  const char *near;
  const lm_recipe_origin *o = lm_recipe_origin_find(r, key, &near);
  if (!o && near)
    return lm_fail(LM_USER, "the recipe has no value '%s'; did you mean '%s'?", key, near);
  if (!o)
    return lm_fail(LM_USER, "the recipe has no value '%s'; `lmc check` lists them", key);
  (cli->json ? lm_report_origins_json : lm_report_origins)(cli->ctx, key, o, &text);
  lm_print_report(stdout, cli->json, &text);
  return NULL;
}

static lm_status code_explain(const lm_cli *cli, const char *code) {
  const lm_diag_info *d = lm_diag_find(code);
  if (!d)
    return lm_fail(LM_USER, "there is no error or warning %s; `lmc explain --errors` lists them",
                   code);
  lm_buf text = {0};
  if (cli->json)
    lm_diag_write_entry_json(&text, d);
  else
    lm_diag_write_entry(&text, d, lm_terminal_width(stdout));
  lm_cli_put(&text);
  return NULL;
}

static lm_status subject_explain(lm_cli *cli, lm_status (*subject)(const lm_cli *, lm_session *)) {
  lm_session s = {.variant = lm_cli_variant(cli)};
  lm_status status = lm_cli_target(cli, &s.target);
  if (!status)
    status = lm_cli_open(cli, &s);
  if (!status)
    status = subject(cli, &s);
  lm_session_close(&s);
  return status;
}

// LM_USER if an option that one subject alone has is given with another.
static lm_status option_of(const lm_cli *cli, const char *option, const char *subject) {
  if (!lm_args_given(&cli->args, option) || !strcmp(cli->args.rest[1], subject))
    return NULL;
  return lm_fail(LM_USER, "--%s goes with `lmc explain FILE %s`, not with %s", option, subject,
                 cli->args.rest[1]);
}

static lm_status explain_run(lm_cli *cli) {
  lm_buf text = {0};
  bool errors = lm_args_given(&cli->args, "errors");
  bool reference = lm_args_given(&cli->args, "reference");
  if ((errors || reference) && cli->json)
    return lm_fail(LM_USER, "--%s is Markdown; there is no --json of it",
                   errors ? "errors" : "reference");
  if (errors || reference) {
    (errors ? lm_diag_write_reference : lm_schema_write_reference)(&text);
    lm_cli_put(&text);
    return NULL;
  }
  if (cli->args.n_rest == 1 && lm_diag_is_code(cli->args.rest[0]))
    return code_explain(cli, cli->args.rest[0]);
  if (cli->args.n_rest == 1 && access(cli->args.rest[0], F_OK))
    return lm_fail(LM_USER, "%s is neither a file nor the code of an error, such as E031",
                   cli->args.rest[0]);
  if (cli->args.n_rest < 2)
    return lm_fail(
        LM_USER,
        "an argument is missing: lmc explain FILE KEY, as in lmc explain %s optimizer.lr; "
        "cost, memory or changes for KEY; or lmc explain E031",
        cli->args.n_rest ? cli->args.rest[0] : "FILE");
  LM_TRY(option_of(cli, "measure", "cost"));
  LM_TRY(option_of(cli, "link", "cost"));
  LM_TRY(option_of(cli, "svg", "memory"));
  if (!strcmp(cli->args.rest[1], "changes"))
    return lm_explain_changes(cli, cli->args.rest[0]);
  if (!strcmp(cli->args.rest[1], "cost"))
    return subject_explain(cli, lm_explain_cost);
  if (!strcmp(cli->args.rest[1], "memory"))
    return subject_explain(cli, lm_explain_memory);
  lm_recipe_choice x = lm_cli_recipe(cli);
  lm_program *program = lm_program_load(cli->ctx, x.path);
  LM_TRY(lm_verdict(cli->ctx));
  const lm_recipe *r = lm_recipe_resolve(cli->ctx, program, x.recipe, &x.overrides);
  LM_TRY(lm_verdict(cli->ctx));
  return key_explain(cli, r, cli->args.rest[1]);
}

const lm_command lm_cmd_explain = {
    .name = "explain",
    .usage = "FILE KEY, FILE|RUN cost|memory, RUN changes, or CODE",
    .summary = "explains a value, the cost or memory of a step, changes, an error",
    .options = options,
    .least = 0,
    .most = 2,
    .run = explain_run,
    .help =
        "KEY: the value, where it was set, and below it the values that it replaced.\n"
        "cost: for each kernel of a training step the time that the cost model predicts, a "
        "lower bound by bandwidth and arithmetic (both measured on a CPU; published figures of "
        "a GPU, which need not be here), and what bounds it; with a mesh, each collective and "
        "what a rank sends, how long that takes, and how long the computation waits for it; then "
        "tokens per second, without these waits.\n"
        "memory: the arenas, and the values that take most of them when most is needed, with "
        "their source lines and the steps during which they are live.\n"
        "changes: what --change and --change-model changed in a run, and from which step on.\n"
        "CODE: what an error or a warning such as E031 means, with an example.\n"
        "\n"
        "  lmc explain examples/quickstart.lm optimizer.lr\n"
        "  lmc explain E031\n"
        "  lmc explain examples/bench-6m.lm cost --measure\n"
        "  lmc explain examples/bench-180m.lm cost --target h100\n"
        "  lmc explain examples/bench-6m.lm memory --svg memory.svg\n"};
