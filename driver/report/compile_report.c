// compile_report.c - the output of lmc compile: kernels, work and memory of a step.
#include "driver/inspect/machine_code.h"
#include "driver/report/report.h"
#include "driver/text.h"

void lm_report_compile(const lm_session *s, const lm_plan_figures *x, lm_buf *out) {
  lm_buf flops = {0}, bytes = {0}, peak = {0}, time = {0}, code = {0};
  lm_show_count(&flops, x->step.flops);
  lm_show_bytes(&bytes, x->step.bytes);
  lm_show_bytes(&peak, (double)x->peak);
  lm_show_seconds(&time, x->seconds);
  if (x->code) {
    lm_machine_code_table(s->compiled.plan, x->code, &code);
    lm_buf_puts(out, code.p);
    code.n = 0;
    lm_buf_printf(&code, " for %s in ", s->target.arch);
    lm_show_bytes(&code, (double)lm_machine_code_bytes(x->code));
  }
  lm_buf_printf(out,
                "%s: %d kernels (%d newly compiled)%s, %lld launches, %sFLOP and %s a step, peak "
                "memory %s; compiled in %s\n",
                s->project.recipe->name, x->kernels, x->compiled, code.n ? code.p : "",
                (long long)x->step.launches, flops.p, bytes.p, peak.p, time.p);
  const char *fit = lm_fit_text(s->project.ctx->arena, &s->fit);
  if (fit) {
    bytes.n = 0;
    lm_show_bytes(&bytes, (double)s->fit.natural);
    lm_buf_printf(out,
                  "to fit the budget %s, about %.2f times the time; without that the plan needs "
                  "%s\n",
                  fit, s->fit.slowdown, bytes.p);
  }
  lm_buf_free(&flops);
  lm_buf_free(&bytes);
  lm_buf_free(&peak);
  lm_buf_free(&time);
  lm_buf_free(&code);
}

void lm_report_compile_json(const lm_session *s, const lm_plan_figures *x, lm_buf *out) {
  lm_buf code = {0};
  if (x->code) {
    lm_buf_printf(&code,
                  ", \"target\": \"%s\", \"code_bytes\": %lld, \"machine_code\": ", s->target.arch,
                  (long long)lm_machine_code_bytes(x->code));
    lm_machine_code_json(s->compiled.plan, x->code, &code);
  }
  lm_buf_printf(out,
                "{\"kernels\": %d, \"kernels_compiled\": %d, \"launches\": %lld, \"flops\": %.0f, "
                "\"bytes\": %.0f, \"peak_bytes\": %lld, \"micro\": %lld, \"recomputed\": %d, "
                "\"offloaded\": %d, \"slowdown\": %.4f, \"seconds\": %.3f%s}\n",
                x->kernels, x->compiled, (long long)x->step.launches, x->step.flops, x->step.bytes,
                (long long)x->peak, (long long)lm_run_micro(&s->run), s->fit.recomputed,
                s->fit.offloaded, s->fit.slowdown > 0 ? s->fit.slowdown : 1, x->seconds,
                code.n ? code.p : "");
  lm_buf_free(&code);
}
