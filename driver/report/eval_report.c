// eval_report.c - the output of lmc eval for a part of the data.
#include <math.h>

#include "driver/report/report.h"

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
  lm_buf_printf(out, "  (%.0f tokens)\n", x->weight);
}

void lm_report_eval_json(const char *name, const lm_eval_result *x, bool first, lm_buf *out) {
  lm_buf_puts(out, first ? "{" : ", ");
  lm_buf_json(out, name);
  lm_buf_printf(out, ": {\"tokens\": %.0f", x->weight);
  for (int k = 0; k < LM_EVAL_METRICS; k++)
    if (isfinite(x->value[k]))
      lm_buf_printf(out, ", \"%s\": %.17g", LM_EVAL_NAMES[k], x->value[k]);
    else
      lm_buf_printf(out, ", \"%s\": null", LM_EVAL_NAMES[k]);
  lm_buf_puts(out, "}");
}
