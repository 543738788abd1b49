// cost_rows.c - see cost_rows.h.
#include "driver/inspect/cost_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver/text.h"

// ---- steps that share a row

// "8192x256x256", further axes in front: "8 of 128x128x32".
static const char *gemm_sizes(lm_arena *a, const lm_plan *plan, const lm_plan_gemm *g) {
  int64_t capacity[LM_COUNT(plan->extents)];
  int64_t batch = 1;
  for (int i = 0; i < plan->n_extents; i++)
    capacity[i] = plan->extents[i].capacity;
  for (int i = 0; i < g->n_batch; i++)
    batch *= lm_plan_extent_value(&g->batch[i].size, capacity);
  const char *sizes =
      lm_arena_printf(a, "%lldx%lldx%lld", (long long)lm_plan_extent_value(&g->m, capacity),
                      (long long)lm_plan_extent_value(&g->n, capacity),
                      (long long)lm_plan_extent_value(&g->k, capacity));
  return batch > 1 ? lm_arena_printf(a, "%lld of %s", (long long)batch, sizes) : sizes;
}

// Of several GEMMs in one launch: those of the first one and how many there are.
static const char *sizes_of(lm_arena *a, const lm_plan *plan, const lm_plan_step *s) {
  const char *first = gemm_sizes(a, plan, s->gemm);
  return s->joined > 1 ? lm_arena_printf(a, "%s…", first) : first;
}

static const char *name_of(lm_arena *a, const lm_plan *plan, const lm_plan_step *s) {
  if (!s->gemm)
    return s->label;
  return lm_arena_printf(a, "%s %s", s->label, sizes_of(a, plan, s));
}

// The library's GEMMs, of which the step computes several, with the gaps between them.
static double joined_apart(const lm_target *t, const lm_plan *plan, const lm_plan_step *s) {
  double seconds = -t->rates.gap;
  for (int i = 0; i < s->joined; i++) {
    lm_cost_gemm g = lm_cost_gemm_at(plan, s, i);
    seconds += lm_cost_of_gemm(t, &g).seconds + t->rates.gap;
  }
  return seconds;
}

// The seconds of the library's GEMMs instead, and of a kernel behind them; 0: the step is one of
// these.
static double seconds_apart(const lm_target *t, const lm_plan *plan, const lm_plan_step *s) {
  if (s->kind != LM_STEP_KERNEL || !s->gemm)
    return 0;
  if (s->joined)
    return joined_apart(t, plan, s);
  lm_cost_gemm_kernel k = lm_cost_gemm_kernel_of(plan, s);
  return lm_cost_of_gemm_apart(t, &k);
}

// A START and a WAIT are one copy.
static bool same_kernel(const lm_plan_step *a, const lm_plan_step *b) {
  if (lm_plan_step_copies(a) && lm_plan_step_copies(b))
    return true;
  return a->kind == b->kind && (a->kind != LM_STEP_KERNEL || a->kernel == b->kernel);
}

static uint32_t row_of(lm_arena *a, lm_cost_rows *rows, const lm_plan_step *s) {
  const char *name = name_of(a, rows->plan, s);
  for (uint32_t i = 0; i < rows->n; i++)
    if (same_kernel(rows->v[i].step, s) && !strcmp(rows->v[i].name, name))
      return i;
  LM_PUSH(a, rows->v, rows->n, rows->cap) = (lm_cost_row){
      .step = s,
      .name = name,
  };
  return rows->n - 1;
}

static void step_add(lm_cost_row *x, lm_cost_rows *rows, const lm_plan_step *s, double times,
                     const lm_target *t, lm_dtype dtype) {
  lm_dtype math = s->kind == LM_STEP_GEMM ? (lm_dtype)s->gemm->dtype_ab : dtype;
  if (!(t->math[math].peak > 0))
    math = dtype;
  lm_cost c = lm_cost_of_step(t, rows->plan, s);
  double lower_bound = times * lm_target_seconds(t, math, (double)s->flops, (double)s->moved, NULL);
  x->times += (int64_t)times;
  x->flops += times * (double)s->flops;
  x->bytes += times * (double)s->moved;
  x->instructions += times * s->instructions;
  x->lower_bound += lower_bound;
  x->predicted += times * c.seconds;
  x->apart += times * seconds_apart(t, rows->plan, s);
  x->bound = c.bound;
  rows->lower_bound += lower_bound;
  rows->predicted += times * c.seconds;
}

// What a step waits for.
static void copy_add(lm_cost_row *x, lm_cost_rows *rows, const lm_plan_step *s, double times,
                     double exposed) {
  x->times += s->kind == LM_STEP_START ? (int64_t)times : 0;
  x->predicted += exposed;
  x->bound = LM_COST_MEMORY;
  rows->predicted += exposed;
}

static void func_add(lm_arena *a, lm_cost_rows *rows, int func, const lm_target *t,
                     lm_dtype dtype) {
  const lm_plan_func *f = rows->calls[func].func;
  double calls = rows->calls[func].calls;
  rows->func[func] = lm_cost_of_call(t, rows->plan, &rows->calls[func]);
  rows->row[func] = LM_NEW_N(a, uint32_t, f->n_steps + 1);
  double *exposed = LM_NEW_N(a, double, f->n_steps + 1);
  if (lm_plan_copies(f))
    lm_cost_exposed(t, rows->plan, f, exposed);
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (s->kind == LM_STEP_LOOP || s->kind == LM_STEP_END)
      continue;
    rows->row[func][i] = row_of(a, rows, s);
    double times = calls * (double)lm_plan_step_times(f, i);
    lm_cost_row *x = &rows->v[rows->row[func][i]];
    if (lm_plan_step_copies(s))
      copy_add(x, rows, s, times, calls * exposed[i]);
    else
      step_add(x, rows, s, times, t, dtype);
  }
}

lm_cost_rows lm_cost_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro,
                               const lm_target *t, lm_dtype dtype) {
  lm_cost_rows rows = {.plan = plan, .unit = t->kind == LM_TARGET_CUDA ? 1e12 : 1e9};
  rows.n_calls = lm_cost_calls(plan, n_micro, rows.calls);
  for (int i = 0; i < rows.n_calls; i++)
    func_add(a, &rows, i, t, dtype);
  rows.step = lm_cost_of_training(t, plan, n_micro);
  return rows;
}

static lm_cost_row *row_of_span(const lm_cost_rows *rows, const lm_span *span) {
  const lm_plan_step *s = span->what;
  for (int i = 0; s && i < rows->n_calls; i++) {
    const lm_plan_func *f = rows->calls[i].func;
    if (s >= f->steps && s < f->steps + f->n_steps)
      return &rows->v[rows->row[i][s - f->steps]];
  }
  return NULL;
}

// The least time of call i of a step, which takes `seconds` in this one.
static double call_least(lm_arena *a, lm_cost_rows *rows, uint32_t i, double seconds) {
  if (i == rows->n_call)
    LM_PUSH(a, rows->call, rows->n_call, rows->cap_call) = seconds;
  if (seconds < rows->call[i])
    rows->call[i] = seconds;
  return rows->call[i];
}

// Every step makes the same calls in the same order.
void lm_cost_rows_measure(lm_arena *a, lm_cost_rows *rows, const lm_timeline *t) {
  uint32_t n = 0;
  rows->seconds = 0;
  for (uint32_t i = 0; i < rows->n; i++)
    rows->v[i].seconds = 0;
  for (uint32_t i = 0; i < t->n_spans; i++) {
    lm_cost_row *x = row_of_span(rows, &t->spans[i]);
    if (!x)
      continue;
    double seconds = call_least(a, rows, n++, t->spans[i].end - t->spans[i].start);
    x->seconds += seconds;
    rows->seconds += seconds;
  }
}

// ---- printing

static int by_seconds(const void *a, const void *b) {
  const lm_cost_row *const *x = a, *const *y = b;
  double p = (*x)->seconds;
  double q = (*y)->seconds;
  if (p == q) {
    p = (*x)->predicted;
    q = (*y)->predicted;
  }
  return p != q ? (p < q) - (p > q) : strcmp((*x)->name, (*y)->name);
}

// Sorted separately, because steps refer to rows by index.
static const lm_cost_row **sorted(const lm_cost_rows *rows) {
  const lm_cost_row **list = lm_calloc(rows->n + 1, sizeof *list);
  for (uint32_t i = 0; i < rows->n; i++)
    list[i] = &rows->v[i];
  qsort(list, rows->n, sizeof *list, by_seconds);
  return list;
}

// `text` in at most `columns` columns, its middle left out: the front names the
// operations, the end the source lines or the sizes.
static void clipped_print(const char *text, int columns, lm_buf *out) {
  int n = (int)strlen(text);
  int head = (columns - 1) / 2;
  if (n <= columns)
    lm_buf_puts(out, text);
  else
    lm_buf_printf(out, "%.*s…%s", head, text, text + n - (columns - 1 - head));
}

static const char *const bound_words[LM_COST_BOUNDS] = {"launch", "memory", "instr", "math"};

enum {
  WHAT = 31,         // columns for what a row computes
  WHAT_MEASURED = 24 // beside the measured time, instead of the predicted FLOP/s
};

static void row_print(const lm_cost_row *x, const lm_cost_rows *rows, lm_buf *out) {
  bool measured = rows->seconds > 0;
  double share = measured ? x->seconds / rows->seconds : x->predicted / rows->predicted;
  lm_buf_printf(out, "%5.1f%%", 100 * share);
  if (measured)
    lm_buf_printf(out, " %8.3f %5.2f", 1e3 * x->seconds, x->predicted / x->seconds);
  lm_buf_printf(out, " %8.3f %8.3f", 1e3 * x->predicted, 1e3 * x->lower_bound);
  if (!measured)
    lm_buf_printf(out, " %7.1f", x->predicted > 0 ? x->flops / x->predicted / rows->unit : 0);
  lm_buf_printf(out, "  %-6s %6lld  ", bound_words[x->bound], (long long)x->times);
  clipped_print(x->name, measured ? WHAT_MEASURED : WHAT, out);
  lm_buf_puts(out, "\n");
}

// Why a kernel computes a GEMM.
static void apart_print(const lm_cost_row *const *list, uint32_t n, lm_buf *out) {
  enum {
    REST = 48 // columns of 80
  };
  bool any = false;
  for (uint32_t i = 0; i < n; i++) {
    const lm_cost_row *x = list[i];
    if (!x->apart)
      continue;
    if (!any)
      lm_buf_puts(out, "\nGEMMs in generated kernels\none kernel  library and kernel  what\n");
    any = true;
    lm_buf_printf(out, "%10.3f %19.3f  ", 1e3 * x->predicted, 1e3 * x->apart);
    clipped_print(x->name, REST, out);
    lm_buf_puts(out, "\n");
  }
}

static void functions_print(const lm_cost_rows *rows, lm_buf *out) {
  lm_buf_puts(out, "\nfunction      calls  launches  model ms\n");
  for (int i = 0; i < rows->n_calls; i++) {
    const lm_cost_call *c = &rows->calls[i];
    lm_buf_printf(out, "%-12s %6.4g %9lld %9.3f\n", c->func->name, c->calls,
                  llround(c->calls * (double)rows->func[i].launches),
                  1e3 * c->calls * rows->func[i].seconds);
  }
}

void lm_cost_rows_print(const lm_cost_rows *rows, lm_buf *out) {
  const lm_cost_row **list = sorted(rows);
  bool measured = rows->seconds > 0;
  const char *rate = rows->unit < 1e12 ? " GFLOP/s" : " TFLOP/s";
  lm_buf_printf(out, " share%s  model ms lower ms%s  bound   times  what\n",
                measured ? "       ms model" : "", measured ? "" : rate);
  for (uint32_t i = 0; i < rows->n; i++)
    row_print(list[i], rows, out);
  lm_buf_puts(out, "100.0%");
  if (measured)
    lm_buf_printf(out, " %8.3f %5.2f", 1e3 * rows->seconds, rows->predicted / rows->seconds);
  lm_buf_printf(out, " %8.3f %8.3f%s          %6lld  a training step\n", 1e3 * rows->predicted,
                1e3 * rows->lower_bound, measured ? "" : "        ",
                (long long)rows->step.launches);
  apart_print(list, rows->n, out);
  functions_print(rows, out);
  lm_free(list);
}

void lm_cost_rows_json(const lm_cost_rows *rows, lm_buf *out) {
  const lm_cost_row **list = sorted(rows);
  lm_buf_puts(out, "[");
  for (uint32_t i = 0; i < rows->n; i++) {
    const lm_cost_row *x = list[i];
    lm_buf_puts(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
    lm_buf_json(out, x->name);
    int kernel = lm_plan_step_kernel(x->step);
    if (kernel >= 0)
      lm_buf_printf(out, ", \"kernel\": \"%s\"", rows->plan->kernels[kernel].name);
    lm_buf_printf(out,
                  ", \"times\": %lld, \"bytes\": %.0f, \"flops\": %.0f, "
                  "\"instructions\": %.6g, \"lower_bound_s\": %.6g, \"least_s\": %.6g, "
                  "\"predicted_s\": %.6g, \"bound\": \"%s\"",
                  (long long)x->times, x->bytes, x->flops, x->instructions, x->lower_bound,
                  x->lower_bound, x->predicted, lm_cost_bound_names[x->bound]);
    if (x->apart > 0)
      lm_buf_printf(out, ", \"apart_s\": %.6g", x->apart);
    if (rows->seconds > 0)
      lm_buf_printf(out, ", \"measured_s\": %.6g", x->seconds);
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]");
  lm_free(list);
}
