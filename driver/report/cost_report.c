// cost_report.c - what lmc explain FILE cost prints.
#include "driver/report/report.h"

void lm_report_cost(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  double peak = 1e-9 * x->roofline.peak;
  double memory = 1e-9 * x->roofline.bandwidth[LM_ROOFLINE_SIZES - 1];
  if (t->arch)
    lm_buf_printf(out, "%s: %.1f GFLOP/s; %.1f GB/s from memory\n\n", t->arch, peak, memory);
  else
    lm_buf_printf(
        out, "%d thread%s: %.1f GFLOP/s; %.1f GB/s from memory, %.1f from the nearest cache\n\n",
        x->threads, x->threads == 1 ? "" : "s", peak, memory, 1e-9 * x->roofline.bandwidth[0]);
  lm_cost_rows_print(&x->rows, out);
}

void lm_report_cost_json(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  lm_buf_printf(out, "{\"threads\": %d, \"peak_flops\": %.6g, \"bandwidth\": [", x->threads,
                x->roofline.peak);
  for (int i = 0; i < LM_ROOFLINE_SIZES; i++)
    lm_buf_printf(out, "%s%.6g", i ? ", " : "", x->roofline.bandwidth[i]);
  lm_buf_printf(out, "], \"least_s\": %.6g, \"measured_s\": %.6g, \"rows\": ", x->rows.least,
                x->rows.seconds);
  lm_cost_rows_json(&x->rows, out);
  lm_buf_puts(out, "}\n");
}
