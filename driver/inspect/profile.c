// profile.c - see profile.h. Times in the file are microseconds from the first span.
#include "driver/inspect/profile.h"

#include <stdio.h>

static const char *const ROWS[LM_ROWS] = {
    [LM_ROW_RUN] = "training", [LM_ROW_FUNC] = "functions",   [LM_ROW_STEP] = "kernels",
    [LM_ROW_DATA] = "data",    [LM_ROW_SAVE] = "checkpoints", [LM_ROW_THREAD] = "thread"};

// {"kernel": "k…", "bytes": …, "flops": …, "bound_us": …, "bound": "memory"}
static void step_print(const lm_plan *plan, const lm_plan_step *s, const lm_target *machine,
                       lm_dtype dtype, lm_buf *b) {
  bool memory;
  double bound = lm_target_seconds(machine, dtype, (double)s->flops, (double)s->moved, &memory);
  lm_buf_puts(b, ", \"args\": {");
  if (s->kind == LM_STEP_KERNEL)
    lm_buf_printf(b, "\"kernel\": \"%s\", ", plan->kernels[s->kernel].name);
  lm_buf_printf(b, "\"bytes\": %lld, \"flops\": %lld, \"bound_us\": %.6g, \"bound\": \"%s\"}",
                (long long)s->moved, (long long)s->flops, 1e6 * bound,
                memory ? "memory" : "arithmetic");
}

static void span_print(const lm_plan *plan, const lm_span *x, double zero, const lm_target *machine,
                       lm_dtype dtype, lm_buf *b) {
  lm_buf name = {0};
  lm_buf_puts(&name, x->name);
  if (x->number >= 0)
    lm_buf_printf(&name, " %lld", (long long)x->number);
  lm_buf_puts(b, ",\n{\"ph\": \"X\", \"pid\": 1, \"name\": ");
  lm_buf_json(b, name.p);
  lm_buf_printf(b, ", \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f", x->row + 1 + x->thread,
                1e6 * (x->start - zero), 1e6 * (x->end - x->start));
  if (x->what)
    step_print(plan, x->what, machine, dtype, b);
  lm_buf_puts(b, "}");
  lm_buf_free(&name);
}

static int threads_of(const lm_timeline *t) {
  int n = 0;
  for (uint32_t i = 0; i < t->n_spans; i++)
    if (t->spans[i].row == LM_ROW_THREAD && t->spans[i].thread >= n)
      n = t->spans[i].thread + 1;
  return n;
}

static void row_print(lm_buf *b, int row, const char *name) {
  lm_buf_printf(b,
                ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_name\", \"args\": "
                "{\"name\": \"%s\"}}",
                row + 1, name);
  lm_buf_printf(b,
                ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"name\": \"thread_sort_index\", "
                "\"args\": {\"sort_index\": %d}}",
                row + 1, row);
}

static void rows_print(lm_buf *b, int threads) {
  lm_buf_puts(b, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{\"ph\": \"M\", \"pid\": 1, "
                 "\"name\": \"process_name\", \"args\": {\"name\": \"lmc run\"}}");
  for (int i = 0; i < LM_ROW_THREAD; i++)
    row_print(b, i, ROWS[i]);
  for (int i = 0; i < threads; i++) {
    char name[32];
    snprintf(name, sizeof name, "%s %d", ROWS[LM_ROW_THREAD], i);
    row_print(b, LM_ROW_THREAD + i, name);
  }
}

// Writes one span at a time, because there may be many.
lm_status lm_profile_write(const lm_plan *plan, const lm_timeline *t, const lm_target *machine,
                           lm_dtype dtype, const char *path) {
  FILE *f = fopen(path, "w");
  if (!f)
    return lm_fail_errno("cannot write %s", path);
  double zero = t->n_spans ? t->spans[0].start : 0;
  for (uint32_t i = 0; i < t->n_spans; i++)
    if (t->spans[i].start < zero)
      zero = t->spans[i].start; // a span is added after the spans that it encloses
  lm_buf b = {0};
  rows_print(&b, threads_of(t));
  for (uint32_t i = 0; i < t->n_spans; i++) {
    span_print(plan, &t->spans[i], zero, machine, dtype, &b);
    fwrite(b.p, 1, b.n, f);
    b.n = 0;
  }
  lm_buf_puts(&b, "\n]}\n");
  fwrite(b.p, 1, b.n, f);
  lm_buf_free(&b);
  bool bad = ferror(f);
  return fclose(f) || bad ? lm_fail_errno("cannot write %s", path) : NULL;
}
