// opt.c - lmc opt: passes over IR text.
#include <string.h>

#include "codegen/cpu/cpu.h"
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "lmc/command.h"
#include "driver/inspect/ir_dump.h"
#include "driver/outputs.h"

static const lm_opt options[] = {
    {.name = "pass", .kind = LM_OPT_TEXT, .value = "A,B", .help = "passes to run, in this order"},
    {.name = "ops", .kind = LM_OPT_FLAG, .help = "every operation of the IR, as Markdown"},
    {.name = "list", .kind = LM_OPT_FLAG, .help = "the passes there are, and the pipeline"},
    {.name = "print-after",
     .kind = LM_OPT_TEXT,
     .value = "PASS",
     .help = "prints the IR after that pass (all: after each)"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help = "where the result goes (standard output)"},
    LM_OPT_JSON,
    {0}};

static void list_print(void) {
  for (int i = 0; i < lm_n_passes; i++)
    lm_cli_print("  %-16s %s%s\n", lm_passes[i].name, lm_passes[i].summary,
                 lm_passes[i].off < 0 ? " (needed)" : "");
  lm_cli_print("\npipeline:");
  for (int i = 0; lm_pipeline[i]; i++)
    lm_cli_print(" %s", lm_pipeline[i]);
  lm_cli_print("\n");
}

static void list_json(void) {
  lm_buf b = {0};
  for (int i = 0; i < lm_n_passes; i++) {
    lm_buf_printf(
        &b, "%s{\"name\": \"%s\", \"needed\": %s, \"summary\": ", i ? ",\n " : "{\"passes\": [",
        lm_passes[i].name, lm_passes[i].off < 0 ? "true" : "false");
    lm_buf_json(&b, lm_passes[i].summary);
    lm_buf_puts(&b, "}");
  }
  for (int i = 0; lm_pipeline[i]; i++)
    lm_buf_printf(&b, "%s\"%s\"", i ? ", " : "],\n\"pipeline\": [", lm_pipeline[i]);
  lm_cli_print("%s]}\n", b.p);
  lm_buf_free(&b);
}

static const char *count_text(int n) {
  static const char *const digits[] = {"0", "1", "2", "3", "4"};
  return n < 0 || n >= (int)LM_COUNT(digits) ? "any" : digits[n];
}

static const struct {
  uint32_t bit;
  const char *name;
} stages[] = {
#define STAGE(ID, NAME) {LM_IN_##ID, NAME},
#include "contract/stages.def"
    {LM_IN_BODY, "inside kernels"}};

// operands and results: -1 is any number
static void ops_json(void) {
  lm_buf b = {0};
  for (int i = 0; i < LM_OPS; i++) {
    const lm_op_info *op = &lm_op_table[i];
    int n = 0;
    bool derives = lm_op_derivative((lm_opcode)i) == LM_DERIVATIVE_RULE;
    lm_buf_printf(
        &b,
        "%s{\"name\": \"%s\", \"operands\": %d, \"results\": %d, \"derivative\": %s, \"stages\": [",
        i ? ",\n " : "[", op->name, op->n_in < 0 ? -1 : op->n_in, op->n_out < 0 ? -1 : op->n_out,
        derives ? "true" : "false");
    for (size_t k = 0; k < LM_COUNT(stages); k++)
      if (op->stages & stages[k].bit)
        lm_buf_printf(&b, "%s\"%s\"", n++ ? ", " : "", stages[k].name);
    lm_buf_puts(&b, "], \"doc\": ");
    lm_buf_json(&b, op->doc);
    lm_buf_puts(&b, "}");
  }
  lm_cli_print("%s]\n", b.p);
  lm_buf_free(&b);
}

static void ops_print(void) {
  static const char *const derivatives[] = {
      [LM_DERIVATIVE_NONE] = "none", [LM_DERIVATIVE_ZERO] = "zero", [LM_DERIVATIVE_RULE] = "yes"};
  lm_cli_print(
      "# Operations\n\nWritten by `lmc opt --ops` from `compiler/ir/ops.def`.\n\n"
      "| operation | operands | results | stages | derivative | |\n|---|---|---|---|---|---|\n");
  for (int i = 0; i < LM_OPS; i++) {
    const lm_op_info *op = &lm_op_table[i];
    lm_buf where = {0};
    for (size_t k = 0; k < LM_COUNT(stages); k++)
      if (op->stages & stages[k].bit)
        lm_buf_printf(&where, "%s%s", where.n ? ", " : "", stages[k].name);
    lm_cli_print("| `%s` | %s | %s | %s | %s | %s |\n", op->name, count_text(op->n_in),
                 count_text(op->n_out), where.p, derivatives[lm_op_derivative((lm_opcode)i)],
                 op->doc);
    lm_buf_free(&where);
  }
}

static void watch(void *user, const char *pass, bool after, const lm_module *m) {
  if (after)
    lm_dump_pass(user, pass, m);
}

static lm_status module_read(lm_cli *cli, const char *path, lm_module **out) {
  enum {
    MOST_BYTES = 256 << 20
  };
  lm_buf text = {0}, why = {0};
  lm_status s = lm_file_read(path, MOST_BYTES, &text);
  if (s) {
    lm_buf_free(&text);
    return s;
  }
  *out = lm_module_parse(cli->ctx, lm_source_add(cli->ctx, path, text.p ? text.p : "", text.n));
  lm_buf_free(&text);
  LM_TRY(lm_verdict(cli->ctx));
  if (!lm_module_verify(*out, &why))
    s = lm_fail(LM_USER, "%s: %s", path, why.p);
  lm_buf_free(&why);
  return s;
}

// {"file": PATH}, or {"ir": TEXT} where it goes to standard output
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
    lm_cli_print("%s", text.p);
  lm_buf_free(&text);
  return s;
}

static lm_status run(lm_cli *cli) {
  if (lm_args_given(&cli->args, "list")) {
    cli->json ? list_json() : list_print();
    return NULL;
  }
  if (lm_args_given(&cli->args, "ops")) {
    cli->json ? ops_json() : ops_print();
    return NULL;
  }
  if (!cli->args.n_rest)
    return lm_fail(LM_USER, "a .lmir file is missing");
  LM_TRY(lm_output_check(lm_args_text(&cli->args, "out", NULL), cli->args.rest, 1));
  LM_TRY(module_read(cli, cli->args.rest[0], &cli->module));
  lm_plan_target target = lm_cpu_target(cli->module);
  lm_dump dump = {.to = stderr};
  LM_TRY(lm_dump_after(&dump, lm_args_text(&cli->args, "print-after", NULL)));
  lm_pass_env env = {.target = &target, .watch = watch, .user = &dump};
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
                               .run = run,
                               .help = "Reads a module, runs the passes in the order given, "
                                       "verifies after each, prints the result.\n\n"
                                       "  lmc opt --list\n"
                                       "  lmc opt --pass=inline,simplify,cse,dce graph.lmir\n"};
