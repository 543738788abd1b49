// cost_report.c - the output of lmc explain FILE cost.
#include "driver/report/report.h"

void lm_report_cost(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  double peak = 1e-9 * x->machine.math[x->dtype].peak;
  double memory = 1e-9 * lm_target_bandwidth(&x->machine);
  if (t->kind == LM_TARGET_CUDA)
    lm_buf_printf(out, "%s, %s: %.1f GFLOP/s; %.1f GB/s from memory\n\n", t->title, t->arch, peak,
                  memory);
  else
    lm_buf_printf(
        out, "%d thread%s: %.1f GFLOP/s; %.1f GB/s from memory, %.1f from the nearest cache\n\n",
        x->threads, x->threads == 1 ? "" : "s", peak, memory, 1e-9 * x->machine.bandwidth[0]);
  lm_cost_rows_print(&x->rows, out);
}

void lm_report_cost_json(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  lm_buf_printf(out, "{\"threads\": %d, \"peak_flops\": %.6g, \"bandwidth\": [", x->threads,
                x->machine.math[x->dtype].peak);
  for (int i = 0; i < LM_TARGET_SIZES; i++)
    lm_buf_printf(out, "%s%.6g", i ? ", " : "", x->machine.bandwidth[i]);
  lm_buf_printf(out, "], \"least_s\": %.6g, \"measured_s\": %.6g, \"rows\": ", x->rows.least,
                x->rows.seconds);
  lm_cost_rows_json(&x->rows, out);
  lm_buf_puts(out, "}\n");
}
