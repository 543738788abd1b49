// bench_report.c - the output of lmc bench: the figures of a step, and the rows of an ablation.
#include "driver/report/report.h"
#include "driver/text.h"

void lm_report_bench(const lm_bench_figures *x, lm_buf *out) {
  lm_buf memory = {0};
  lm_show_bytes(&memory, (double)x->peak_bytes);
  lm_buf_printf(out, "step          %10.1f ms   (first %.1f ms)\n", x->ms_per_step, x->ms_first);
  lm_buf_printf(out, "tokens        %10.0f a second\n", x->tokens_per_s);
  if (x->gemm_ms)
    lm_buf_printf(out, "GEMMs alone   %10.1f ms   step / GEMMs %.2f\n", x->gemm_ms,
                  x->ms_per_step / x->gemm_ms);
  lm_buf_printf(out, "utilisation   %10.1f %%    of %.0f GFLOP/s\n",
                100 * x->model_flops / (x->ms_per_step * 1e-3) / x->peak_flops,
                x->peak_flops * 1e-9);
  lm_buf_printf(out, "memory        %13s\n", memory.p);
  lm_buf_printf(out, "first step    %10.2f s    after the start\n", x->first_s);
  lm_buf_printf(out, "compilation   %10.2f s    %d kernels, %d newly compiled\n", x->compile_s,
                x->kernels, x->compiled);
  if (x->tuned_text)
    lm_buf_printf(out, "tuned         the step is %s\n", x->tuned_text);
  if (x->tuned || x->measured)
    lm_buf_printf(out, "tuned         %10d       GEMMs, %d measured now\n", x->tuned, x->measured);
  lm_load_line(&x->load, out);
  lm_buf_free(&memory);
}

void lm_report_bench_json(const lm_bench_figures *x, lm_buf *out) {
  lm_buf_printf(out,
                "{\"compute\": \"%s\", \"tokens_per_s\": %.1f, \"ms_per_step\": %.3f, "
                "\"ms_per_step_mean\": %.3f, \"processor_ms\": %.3f, \"ms_first_step\": %.3f, "
                "\"first_step_s\": %.4f, "
                "\"gemm_ms\": %.3f, \"step_over_gemms\": %.4f, "
                "\"mfu\": %.5f, \"model_flops\": %.0f, \"peak_flops\": %.0f, \"peak_bytes\": %lld, "
                "\"resident_bytes\": %lld, \"params\": %lld, \"kernels\": %d, "
                "\"kernels_compiled\": %d, \"compile_s\": %.3f, \"tuned\": %d, \"measured\": %d, "
                "\"tuned_step\": %s, ",
                x->compute, x->tokens_per_s, x->ms_per_step, x->ms_mean, x->ms_processor,
                x->ms_first, x->first_s, x->gemm_ms, x->gemm_ms ? x->ms_per_step / x->gemm_ms : 0,
                x->model_flops / (x->ms_per_step * 1e-3) / x->peak_flops, x->model_flops,
                x->peak_flops, (long long)x->peak_bytes, (long long)x->resident_bytes,
                (long long)x->params, x->kernels, x->compiled, x->compile_s, x->tuned, x->measured,
                x->tuned_step);
  lm_load_json(&x->load, out);
  lm_buf_puts(out, "}\n");
}

// ---- the ablation

void lm_report_ablation(const lm_ablation_row *x, int64_t micro, bool first, lm_buf *out) {
  lm_buf with = {0}, without = {0};
  lm_show_bytes(&with, (double)x->with_bytes);
  lm_show_bytes(&without, (double)x->without_bytes);
  if (first)
    lm_buf_printf(out,
                  "pass          with ms  without ms  ratio       with  without (memory)   step by "
                  "micro-batches of %lld\n",
                  (long long)micro);
  lm_buf_printf(out, "%-10s  %9.2f   %9.2f  %5.2f   %8s  %8s%s\n", x->pass, x->with_ms,
                x->without_ms, lm_ablation_ratio(x), with.p, without.p,
                x->same         ? "            the same plan"
                : x->unmeasured ? "            no time was left"
                : x->off        ? "            off by default"
                                : "");
  lm_buf_free(&with);
  lm_buf_free(&without);
}

void lm_report_ablation_json(const lm_ablation_row *x, int64_t micro, bool first, lm_buf *out) {
  lm_buf_printf(
      out,
      "%s  {\"pass\": \"%s\", \"measured\": %s, \"same\": %s, \"default\": %s, \"micro\": "
      "%lld, \"with_ms\": %.6g, \"without_ms\": %.6g, \"ratio\": %.6g, \"with_bytes\": "
      "%lld, \"without_bytes\": %lld, ",
      first ? "[\n" : ",\n", x->pass, x->unmeasured ? "false" : "true", x->same ? "true" : "false",
      x->off && !x->same ? "false" : "true", (long long)micro, x->with_ms, x->without_ms,
      lm_ablation_ratio(x), (long long)x->with_bytes, (long long)x->without_bytes);
  lm_load_json(&x->load, out);
  lm_buf_puts(out, "}");
}
