// cost_report.c - the output of lmc explain FILE cost.
#include "driver/report/report.h"

void lm_report_cost(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  double peak = 1e-9 * x->machine.math[x->dtype].peak;
  double memory = 1e-9 * lm_target_bandwidth(&x->machine);
  if (t->kind == LM_TARGET_CUDA)
    lm_buf_printf(out, "%s, %s: %.1f TFLOP/s; %.0f GB/s from memory\n\n", t->title, t->arch,
                  1e-3 * peak, memory);
  else
    lm_buf_printf(
        out, "%d thread%s: %.1f GFLOP/s; %.1f GB/s from memory, %.1f from the nearest cache\n\n",
        x->threads, x->threads == 1 ? "" : "s", peak, memory, 1e-9 * x->machine.bandwidth[0]);
  lm_cost_rows_print(&x->rows, out);
  if (x->rows.plan->mesh.n) {
    lm_buf_puts(out, "\n");
    lm_rank_rows_print(&x->ranks, out);
  }
  double seconds = x->rows.step.seconds;
  lm_buf_printf(out, "a step of %.0f tokens: %.3f ms, %.0f tokens/s, as the cost model predicts\n",
                x->tokens, 1e3 * seconds, x->tokens / seconds);
  const lm_decode_cost *d = &x->decode;
  if (d->positions)
    lm_buf_printf(out,
                  "decoding behind %lld positions: %.0f tokens/s, %.3f ms in %lld launches\n"
                  "at least %.3f ms, for %.1f MB of weights and KV cache\n"
                  "drawing it: greedy %.3f, temperature %.3f, top-p %.3f, top-k %.3f ms\n",
                  (long long)d->positions, 1 / d->token.seconds, 1e3 * d->token.seconds,
                  (long long)d->token.launches, 1e3 * d->lower_bound, 1e-6 * d->token.cold,
                  1e3 * d->draw[LM_DRAW_GREEDY], 1e3 * d->draw[LM_DRAW_TEMPERATURE],
                  1e3 * d->draw[LM_DRAW_TOP_P], 1e3 * d->draw[LM_DRAW_TOP_K]);
  if (x->rows.seconds > 0)
    lm_load_line(&x->load, out);
}

static void functions_json(const lm_cost_rows *rows, lm_buf *out) {
  for (int i = 0; i < rows->n_calls; i++)
    lm_buf_printf(
        out, "%s{\"name\": \"%s\", \"calls\": %.6g, \"predicted_s\": %.6g, \"launches\": %lld}",
        i ? ", " : "", rows->calls[i].func->name, rows->calls[i].calls, rows->func[i].seconds,
        (long long)rows->func[i].launches);
}

static void decode_json(const lm_decode_cost *d, lm_buf *out) {
  if (d->positions)
    lm_buf_printf(out,
                  "\"decoding\": {\"positions\": %lld, \"predicted_s\": %.6g, \"tokens_per_s\": "
                  "%.6g, \"launches\": %lld, \"bytes\": %.0f, \"lower_bound_s\": %.6g, "
                  "\"draw_s\": {\"greedy\": %.6g, \"temperature\": %.6g, \"top_p\": %.6g, "
                  "\"top_k\": %.6g, \"both\": %.6g}}, ",
                  (long long)d->positions, d->token.seconds, 1 / d->token.seconds,
                  (long long)d->token.launches, d->token.cold, d->lower_bound,
                  d->draw[LM_DRAW_GREEDY], d->draw[LM_DRAW_TEMPERATURE], d->draw[LM_DRAW_TOP_P],
                  d->draw[LM_DRAW_TOP_K], d->draw[LM_DRAW_TOP_K_AND_P]);
}

void lm_report_cost_json(const lm_target *t, const lm_step_cost *x, lm_buf *out) {
  lm_buf_puts(out, "{");
  lm_load_json(&x->load, out);
  lm_buf_printf(out, ", \"threads\": %d, \"peak_flops\": %.6g, \"bandwidth\": [", x->threads,
                x->machine.math[x->dtype].peak);
  for (int i = 0; i < LM_TARGET_SIZES; i++)
    lm_buf_printf(out, "%s%.6g", i ? ", " : "", x->machine.bandwidth[i]);
  double seconds = x->rows.step.seconds;
  lm_buf_printf(out,
                "], \"lower_bound_s\": %.6g, \"least_s\": %.6g, \"measured_s\": %.6g, "
                "\"predicted_s\": %.6g, ",
                x->rows.lower_bound, x->rows.lower_bound, x->rows.seconds, seconds);
  lm_buf_printf(out, "\"tokens\": %.0f, \"tokens_per_s\": %.6g, \"functions\": [", x->tokens,
                x->tokens / seconds);
  functions_json(&x->rows, out);
  lm_buf_puts(out, "], ");
  decode_json(&x->decode, out);
  lm_buf_puts(out, "\"rows\": ");
  lm_cost_rows_json(&x->rows, out);
  if (x->rows.plan->mesh.n) {
    lm_buf_puts(out, ", \"collectives\": ");
    lm_rank_rows_json(&x->ranks, out);
    lm_buf_printf(out, ", \"link\": \"%s\", \"transfer_ms\": %.6f, \"exposed_ms\": %.6f",
                  x->ranks.link ? x->ranks.link->name : "", x->ranks.transfer * 1e3,
                  x->ranks.exposed * 1e3);
  }
  lm_buf_puts(out, "}\n");
}
