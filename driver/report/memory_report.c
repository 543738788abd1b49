// memory_report.c - the output of lmc explain FILE memory: arenas, and the largest values at the
// peak.
#include "compiler/plan/cost.h"
#include "driver/report/report.h"
#include "driver/text.h"

enum {
  LISTED = 16
};

// The time of a step, with what its copies to and from the host's memory add.
static lm_cost_sum step_cost(const lm_session *s) {
  lm_target machine = lm_compiled_machine(&s->compiled, s->threads);
  return lm_cost_of_training(&machine, s->compiled.plan, s->run.n_micro);
}

static void host_print(const lm_session *s, lm_buf *out) {
  const lm_plan *p = s->compiled.plan;
  if (!lm_plan_arenas(p, true))
    return;
  lm_buf_puts(out, "\nin the host's memory:");
  for (int i = 0, n = 0; i < LM_ARENAS; i++) {
    if (!p->on_host[i] || !p->arena_bytes[i])
      continue;
    lm_buf_printf(out, "%s %s ", n++ ? "," : "", lm_arena_titles[i]);
    lm_show_bytes(out, (double)p->arena_bytes[i]);
  }
  lm_cost_sum c = step_cost(s);
  lm_buf_puts(out, "; a step copies ");
  lm_show_bytes(out, c.copied);
  lm_buf_printf(out, " and waits %.3g of %.3g ms for it, as the cost model predicts",
                1e3 * c.exposed, 1e3 * c.seconds);
}

void lm_report_memory(const lm_session *s, const lm_memory_breakdown *h, lm_buf *out) {
  lm_show_bytes(out, (double)lm_session_memory(s));
  lm_buf_printf(out, " with micro = %lld tokens", (long long)lm_run_micro(&s->run));
  const char *fit = lm_fit_text(s->project.ctx->arena, &s->fit);
  if (fit)
    lm_buf_printf(out, "; %s", fit);
  if (h->func) {
    lm_buf_puts(out, "\nactivations: an arena of ");
    lm_show_bytes(out, (double)s->compiled.plan->arena_bytes[LM_ARENA_WORK]);
    lm_buf_puts(out, "; the most live at once is ");
    lm_show_bytes(out, (double)h->peak_bytes);
    const lm_plan_step *x = &h->func->steps[h->peak];
    lm_buf_printf(out, ", in step %d of %d of %s: %s", h->peak, h->func->n_steps, h->func->name,
                  x->label ? x->label : "");
  }
  host_print(s, out);
  lm_buf_puts(out, "\n\n       bytes  who, and when\n");
  for (int i = 0; i < h->n && i < LISTED; i++) {
    lm_buf size = {0};
    lm_show_bytes(&size, (double)h->v[i].bytes);
    lm_buf_printf(out, "%12s  %s%s, %s\n", size.p, h->v[i].label,
                  h->v[i].n > 1 ? lm_arena_printf(s->project.ctx->arena, " (%d)", h->v[i].n) : "",
                  lm_memory_item_when(s->project.ctx->arena, h, &h->v[i]));
    lm_buf_free(&size);
  }
  if (h->n > LISTED)
    lm_buf_printf(out, "              and %d more\n", h->n - LISTED);
}

void lm_report_memory_json(const lm_session *s, const lm_memory_breakdown *h, lm_buf *out) {
  int64_t workspace = s->compiled.workspace, host = lm_plan_arenas(s->compiled.plan, true);
  lm_cost_sum c = host ? step_cost(s) : (lm_cost_sum){0};
  lm_buf_printf(out,
                "{\"bytes\": %lld, \"host_bytes\": %lld, \"micro\": %lld, \"recomputed\": %d, "
                "\"offloaded\": %d, "
                "\"arenas\": {",
                (long long)lm_compiled_memory(&s->compiled), (long long)host,
                (long long)lm_run_micro(&s->run), s->fit.recomputed, s->fit.offloaded);
  for (int i = 0; i < LM_ARENAS; i++)
    lm_buf_printf(out, "%s\"%s\": %lld", i ? ", " : "", lm_arena_names[i],
                  (long long)s->compiled.plan->arena_bytes[i]);
  lm_buf_printf(out,
                "}, \"copied_bytes\": %.0f, \"exposed_s\": %.6g, \"workspace\": %lld, "
                "\"saving\": %lld, \"peak_step\": %d, \"peak_live\": %lld, \"holders\": [",
                c.copied, c.exposed, (long long)workspace, (long long)s->compiled.saving, h->peak,
                (long long)h->peak_bytes);
  for (int i = 0; i < h->n; i++) {
    lm_buf_puts(out, i ? ", {\"label\": " : "{\"label\": ");
    lm_buf_json(out, h->v[i].label);
    lm_buf_printf(out, ", \"bytes\": %lld, \"n\": %d", (long long)h->v[i].bytes, h->v[i].n);
    if (h->v[i].func)
      lm_buf_printf(out, ", \"func\": \"%s\", \"first\": %d, \"last\": %d", h->v[i].func,
                    h->v[i].first, h->v[i].last);
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]}\n");
}
