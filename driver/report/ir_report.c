// ir_report.c - the output of lmc opt about the compiler: its passes and operations.
#include "compiler/ops/interface.h"
#include "compiler/passes/pass.h"
#include "driver/report/report.h"

void lm_report_passes(lm_buf *out) {
  for (int i = 0; i < lm_n_passes; i++)
    lm_buf_printf(out, "  %-16s %s%s\n", lm_passes[i].name, lm_passes[i].summary,
                  lm_passes[i].off < 0 ? " (needed)" : "");
  lm_buf_printf(out, "\npipeline:");
  for (int i = 0; lm_pipeline[i]; i++)
    lm_buf_printf(out, " %s", lm_pipeline[i]);
  lm_buf_printf(out, "\n");
}

void lm_report_passes_json(lm_buf *out) {
  for (int i = 0; i < lm_n_passes; i++) {
    lm_buf_printf(
        out, "%s{\"name\": \"%s\", \"needed\": %s, \"summary\": ", i ? ",\n " : "{\"passes\": [",
        lm_passes[i].name, lm_passes[i].off < 0 ? "true" : "false");
    lm_buf_json(out, lm_passes[i].summary);
    lm_buf_puts(out, "}");
  }
  for (int i = 0; lm_pipeline[i]; i++)
    lm_buf_printf(out, "%s\"%s\"", i ? ", " : "],\n\"pipeline\": [", lm_pipeline[i]);
  lm_buf_puts(out, "]}\n");
}

// ---- operations

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
void lm_report_ops_json(lm_buf *out) {
  for (int i = 0; i < LM_OPS; i++) {
    const lm_op_info *op = &lm_op_table[i];
    int n = 0;
    bool derives = lm_op_derivative((lm_opcode)i) == LM_DERIVATIVE_RULE;
    lm_buf_printf(
        out,
        "%s{\"name\": \"%s\", \"operands\": %d, \"results\": %d, \"derivative\": %s, \"stages\": [",
        i ? ",\n " : "[", op->name, op->n_in < 0 ? -1 : op->n_in, op->n_out < 0 ? -1 : op->n_out,
        derives ? "true" : "false");
    for (size_t k = 0; k < LM_COUNT(stages); k++)
      if (op->stages & stages[k].bit)
        lm_buf_printf(out, "%s\"%s\"", n++ ? ", " : "", stages[k].name);
    lm_buf_puts(out, "], \"doc\": ");
    lm_buf_json(out, op->doc);
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]\n");
}

void lm_report_ops(lm_buf *out) {
  static const char *const derivatives[] = {
      [LM_DERIVATIVE_NONE] = "none", [LM_DERIVATIVE_ZERO] = "zero", [LM_DERIVATIVE_RULE] = "yes"};
  lm_buf_printf(
      out,
      "# Operations\n\nWritten by `lmc opt --ops` from `compiler/ir/ops.def`.\n\n"
      "| operation | operands | results | stages | derivative | |\n|---|---|---|---|---|---|\n");
  for (int i = 0; i < LM_OPS; i++) {
    const lm_op_info *op = &lm_op_table[i];
    lm_buf where = {0};
    for (size_t k = 0; k < LM_COUNT(stages); k++)
      if (op->stages & stages[k].bit)
        lm_buf_printf(&where, "%s%s", where.n ? ", " : "", stages[k].name);
    lm_buf_printf(out, "| `%s` | %s | %s | %s | %s | %s |\n", op->name, count_text(op->n_in),
                  count_text(op->n_out), where.p, derivatives[lm_op_derivative((lm_opcode)i)],
                  op->doc);
    lm_buf_free(&where);
  }
}
