// eval_report.c - the output of lmc eval for a part of the data.
#include <math.h>

#include "driver/report/report.h"

// The loss is a mean over tokens if its weight is theirs; else the weight is reported too, such as
// the number of pairs.
static void denominators_print(const lm_eval_result *x, lm_buf *out) {
  bool tokens = !isnan(x->tokens);
  bool weight = !tokens || fabs(x->weight - x->tokens) > 1e-6 * fabs(x->tokens);
  lm_buf_puts(out, "  (");
  if (weight)
    lm_buf_printf(out, "loss over weight %.10g%s", x->weight, tokens ? ", " : "");
  if (tokens)
    lm_buf_printf(out, "%.0f tokens", x->tokens);
  lm_buf_puts(out, ")\n");
}

static void number_json(const char *name, double x, lm_buf *out) {
  lm_buf_printf(out, "\"%s\": ", name);
  if (isfinite(x))
    lm_buf_printf(out, "%.17g", x);
  else
    lm_buf_puts(out, "null");
}

void lm_report_eval(const char *name, const lm_eval_result *x, bool first, lm_buf *out) {
  if (!(x->weight > 0)) {
    lm_buf_printf(out, "%-12s nothing to predict\n", name);
    return;
  }
  lm_buf_printf(out, "%-12s loss %.4f", name, x->value[LM_EVAL_LOSS]);
  if (!isnan(x->value[LM_EVAL_PERPLEXITY]))
    lm_buf_printf(out, "  perplexity %.3f", x->value[LM_EVAL_PERPLEXITY]);
  if (!isnan(x->value[LM_EVAL_BITS_PER_BYTE]))
    lm_buf_printf(out, "  bits/byte %.4f", x->value[LM_EVAL_BITS_PER_BYTE]);
  denominators_print(x, out);
}

void lm_report_eval_json(const char *name, const lm_eval_result *x, bool first, lm_buf *out) {
  lm_buf_puts(out, first ? "{" : ", ");
  lm_buf_json(out, name);
  lm_buf_puts(out, ": {");
  number_json("tokens", x->tokens, out);
  lm_buf_puts(out, ", ");
  number_json("weight", x->weight, out);
  for (int k = 0; k < LM_EVAL_METRICS; k++) {
    lm_buf_puts(out, ", ");
    number_json(LM_EVAL_NAMES[k], x->value[k], out);
  }
  lm_buf_puts(out, "}");
}
