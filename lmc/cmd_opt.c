// cmd_opt.c - lmc opt: passes over IR text.
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "compiler/passes/pass.h"
#include "lmc/command.h"
#include "runtime/base/terminal.h"
#include "driver/inspect/ir_dump.h"
#include "driver/outputs.h"
#include "driver/report/report.h"

static const lm_opt options[] = {
    {.name = "pass", .kind = LM_OPT_TEXT, .value = "A,B", .help = "passes to run, in this order"},
    {.name = "ops", .kind = LM_OPT_FLAG, .help = "every operation of the IR, as Markdown"},
    {.name = "list", .kind = LM_OPT_FLAG, .help = "lists the passes and the pipeline"},
    {.name = "print-after",
     .kind = LM_OPT_TEXT,
     .value = "PASS",
     .help = "prints the IR after that pass (all: after each)"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help = "the file to write (standard output); an existing file is replaced"},
    LM_OPT_JSON,
    {0}};

static void watch(void *user, const char *pass, bool after, const lm_module *m) {
  if (after)
    lm_dump_pass(user, pass, m);
}

// {"file": PATH}, or {"ir": TEXT} if it is printed
static void result_json(const char *path, const lm_buf *text) {
  lm_buf b = {0};
  lm_buf_json(&b, path ? path : text->p);
  lm_cli_print("{\"%s\": %s}\n", path ? "file" : "ir", b.p);
  lm_buf_free(&b);
}

static lm_status result_write(const lm_cli *cli, const lm_module *m) {
  lm_buf text = {0};
  lm_module_print(m, &text);
  const char *path = lm_args_text(&cli->args, "out", NULL);
  lm_status s = path ? lm_file_write_atomic(path, text.p, text.n) : NULL;
  if (!s && cli->json)
    result_json(path, &text);
  else if (!path)
    lm_cli_write(NULL, text.p, text.n); // the IR as it is, to parse it again
  lm_buf_free(&text);
  return s;
}

static lm_status opt_run(lm_cli *cli) {
  lm_buf text = {0};
  if (lm_args_given(&cli->args, "list")) {
    (cli->json ? lm_report_passes_json : lm_report_passes)(&text);
    lm_print_report(stdout, cli->json, &text);
    return NULL;
  }
  if (lm_args_given(&cli->args, "ops"))
    (cli->json ? lm_report_ops_json : lm_report_ops)(&text);
  if (text.n) {
    lm_cli_put(&text);
    return NULL;
  }
  if (!cli->args.n_rest)
    return lm_fail(LM_USER, "a .lmir file is missing");
  LM_TRY(lm_output_check(lm_args_text(&cli->args, "out", NULL), cli->args.rest, 1));
  LM_TRY(lm_module_read(cli->ctx, cli->args.rest[0], &cli->module));
  lm_plan_options plan = lm_cpu_options();
  lm_dump dump = {.to = stderr};
  LM_TRY(lm_dump_after(&dump, lm_args_text(&cli->args, "print-after", NULL)));
  lm_pass_env env = {.target = &plan.target,
                     .codegen = plan.codegen,
                     .compute = LM_REAL,
                     .watch = watch,
                     .user = &dump};
  bool ok;
  LM_TRY(lm_pass_run_list(cli->module, lm_args_text(&cli->args, "pass", ""), &env, &ok));
  LM_TRY(lm_verdict(cli->ctx));
  return result_write(cli, cli->module);
}

const lm_command lm_cmd_opt = {.name = "opt",
                               .usage = "--pass=A,B FILE.lmir",
                               .summary = "runs passes over IR text",
                               .options = options,
                               .least = 0,
                               .most = 1,
                               .run = opt_run,
                               .help = "Reads a module, runs the passes in the order given, "
                                       "verifies after each, prints the result.\n"
                                       "\n"
                                       "  lmc opt --list\n"
                                       "  lmc opt --pass=inline,simplify,cse,dce graph.lmir\n"};
