// cmd_compile.c - lmc compile: the plan as a folder to read, and a summary.
#include <string.h>

#include "driver/report/report.h"
#include "lmc/open.h"
#include "runtime/base/terminal.h"

static const lm_opt options[] = {
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the folder to write (none): new, empty or an earlier plan, which is replaced"},
    {.name = "emit",
     .kind = LM_OPT_TEXT,
     .value = "A,B",
     .help = "what to write, of ast,ir,c,dot (ir,c)"},
    {.name = "print-after",
     .kind = LM_OPT_TEXT,
     .value = "PASS",
     .help = "prints the IR after that pass (all: after each)"},
    LM_OPT_TARGET,
    {.name = "mode",
     .kind = LM_OPT_TEXT,
     .value = "MODE",
     .help = "default, or reduce-overhead, which is the same (default)"},
    LM_OPT_PASSES,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status options_read(const lm_cli *cli, lm_session *s, lm_plan_folder *f) {
  const lm_args *a = &cli->args;
  const char *mode = lm_args_text(a, "mode", "default");
  f->dir = lm_args_text(a, "out", NULL);
  LM_TRY(lm_cli_target(cli, &s->target));
  LM_TRY(lm_recipe_mode_check(mode));
  if (!strcmp(mode, "max-autotune"))
    return lm_fail(LM_USER, "--mode max-autotune measures while a run starts: lmc run, lmc bench");
  LM_TRY(lm_emit_parse(lm_args_text(a, "emit", "ir,c"), &f->emit));
  s->variant = lm_cli_variant(cli);
  s->dump.to = stdout;
  return lm_dump_after(&s->dump, lm_args_text(a, "print-after", NULL));
}

static lm_status compile(lm_session *s, lm_cli *cli, lm_cuda_code *code) {
  lm_plan_folder f;
  lm_plan_figures x;
  double began = lm_now();
  LM_TRY(options_read(cli, s, &f));
  LM_TRY(lm_cli_open(cli, s));
  LM_TRY(lm_plan_folder_prepare(s, &f));
  LM_TRY(lm_plan_folder_write(s, &f, began, code, &x));
  lm_buf text = {0};
  (cli->json ? lm_report_compile_json : lm_report_compile)(s, &x, &text);
  lm_print_report(stdout, cli->json, &text);
  return NULL;
}

static lm_status compile_run(lm_cli *cli) {
  lm_session s = {0};
  lm_cuda_code code = {0};
  lm_status status = compile(&s, cli, &code);
  lm_cuda_code_free(&code);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_compile = {
    .name = "compile",
    .usage = "FILE [-o DIR] [options]",
    .summary = "writes the plan of a recipe to read: IR, kernels, memory",
    .options = options,
    .least = 1,
    .most = 1,
    .run = compile_run,
    .help = "The folder holds the IR at the end of each stage (graph.lmir, step.lmir, "
            "kernel.lmir), plan.txt with the memory map and every step in order, and kernels/ with "
            "the generated C. Prints kernels, work and memory of a step. --emit=dot draws each "
            "function for Graphviz: dot -Tsvg plan/micro.dot.\n"
            "For a GPU target, which needs NVRTC but no GPU, kernels/ holds CUDA C and machine "
            "code; kernels.txt, which is printed too, lists the registers, the shared memory and "
            "the spilled bytes of each kernel.\n"
            "\n"
            "  lmc compile examples/quickstart.lm -o plan --print-after=fuse\n"
            "  lmc compile examples/quickstart.lm --target sm_90a\n"};
