// cost_rows.c - see cost_rows.h.
#include "driver/inspect/cost_rows.h"

#include <stdlib.h>
#include <string.h>

#include "driver/text.h"

static const lm_func_id FUNCS[LM_STEP_FUNCS] = {LM_FUNC_MICRO, LM_FUNC_NORM, LM_FUNC_UPDATE};

// ---- steps that share a row

// "8192x256x256", further axes in front: "8 of 128x128x32".
static const char *gemm_sizes(lm_arena *a, const lm_plan *plan, const lm_plan_gemm *g) {
  int64_t capacity[LM_COUNT(plan->extents)], batch = 1;
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

static const char *name_of(lm_arena *a, const lm_plan *plan, const lm_plan_step *s) {
  if (s->kind != LM_STEP_GEMM)
    return s->label;
  return lm_arena_printf(a, "%s %s", s->label, gemm_sizes(a, plan, s->gemm));
}

static bool same_kernel(const lm_plan_step *a, const lm_plan_step *b) {
  return a->kind == b->kind && (a->kind != LM_STEP_KERNEL || a->kernel == b->kernel);
}

static uint32_t row_of(lm_arena *a, lm_cost_rows *rows, const lm_plan_step *s) {
  const char *name = name_of(a, rows->plan, s);
  for (uint32_t i = 0; i < rows->n; i++)
    if (same_kernel(rows->v[i].step, s) && !strcmp(rows->v[i].name, name))
      return i;
  LM_PUSH(a, rows->v, rows->n, rows->cap) = (lm_cost_row){.step = s, .name = name};
  return rows->n - 1;
}

static void func_add(lm_arena *a, lm_cost_rows *rows, int func, int64_t times, const lm_target *t,
                     lm_dtype dtype) {
  const lm_plan_func *f = lm_plan_func_get(rows->plan, FUNCS[func], 0);
  if (!f)
    return;
  rows->row[func] = LM_NEW_N(a, uint32_t, f->n_steps + 1);
  for (int i = 0; i < f->n_steps; i++) {
    const lm_plan_step *s = &f->steps[i];
    if (s->kind == LM_STEP_LOOP)
      times *= s->count;
    if (s->kind == LM_STEP_END)
      times /= f->steps[s->match].count;
    if (s->kind == LM_STEP_LOOP || s->kind == LM_STEP_END)
      continue;
    rows->row[func][i] = row_of(a, rows, s);
    lm_cost_row *x = &rows->v[rows->row[func][i]];
    double least =
        (double)times * lm_target_seconds(t, dtype, (double)s->flops, (double)s->moved, &x->memory);
    x->times += times;
    x->flops += (double)times * (double)s->flops;
    x->bytes += (double)times * (double)s->moved;
    x->least += least;
    rows->least += least;
  }
}

lm_cost_rows lm_cost_rows_find(lm_arena *a, const lm_plan *plan, int64_t n_micro,
                               const lm_target *t, lm_dtype dtype) {
  lm_cost_rows rows = {.plan = plan};
  for (int i = 0; i < LM_STEP_FUNCS; i++)
    func_add(a, &rows, i, i ? 1 : n_micro, t, dtype);
  return rows;
}

static lm_cost_row *row_of_span(const lm_cost_rows *rows, const lm_span *span) {
  const lm_plan_step *s = span->what;
  for (int i = 0; s && i < LM_STEP_FUNCS; i++) {
    const lm_plan_func *f = lm_plan_func_get(rows->plan, FUNCS[i], 0);
    if (f && s >= f->steps && s < f->steps + f->n_steps)
      return &rows->v[rows->row[i][s - f->steps]];
  }
  return NULL;
}

void lm_cost_rows_measure(lm_cost_rows *rows, const lm_timeline *t, int64_t steps) {
  for (uint32_t i = 0; i < t->n_spans; i++) {
    lm_cost_row *x = row_of_span(rows, &t->spans[i]);
    if (!x)
      continue;
    double seconds = (t->spans[i].end - t->spans[i].start) / (double)steps;
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
    p = (*x)->least;
    q = (*y)->least;
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

static void cell(lm_buf *out, void (*show)(lm_buf *, double), double x) {
  lm_buf text = {0};
  show(&text, x);
  lm_buf_printf(out, "  %8s", text.p);
  lm_buf_free(&text);
}

static void row_print(const lm_cost_row *x, const lm_cost_rows *rows, lm_buf *out) {
  bool measured = rows->seconds > 0;
  double share = measured ? x->seconds / rows->seconds : x->least / rows->least;
  lm_buf_printf(out, "%5.1f%%", 100 * share);
  if (measured)
    lm_buf_printf(out, "  %9.3f", 1e3 * x->seconds);
  lm_buf_printf(out, "  %9.3f", 1e3 * x->least);
  if (measured)
    lm_buf_printf(out, "  %5.1f", x->seconds / x->least);
  lm_buf_printf(out, "  %-10s", x->memory ? "memory" : "arithmetic");
  cell(out, lm_show_bytes, x->bytes);
  cell(out, lm_show_count, x->flops);
  lm_buf_printf(out, "  %5lld  %s\n", (long long)x->times, x->name);
}

void lm_cost_rows_print(const lm_cost_rows *rows, lm_buf *out) {
  const lm_cost_row **list = sorted(rows);
  bool measured = rows->seconds > 0;
  lm_buf_printf(out, " share%s   least ms%s  bound by       moves     FLOPs  times  what\n",
                measured ? "         ms" : "", measured ? "  ratio" : "");
  for (uint32_t i = 0; i < rows->n; i++)
    row_print(list[i], rows, out);
  lm_buf_puts(out, "100.0%");
  if (measured)
    lm_buf_printf(out, "  %9.3f", 1e3 * rows->seconds);
  lm_buf_printf(out, "  %9.3f", 1e3 * rows->least);
  if (measured)
    lm_buf_printf(out, "  %5.1f", rows->seconds / rows->least);
  lm_buf_puts(out, "  a training step\n");
  lm_free(list);
}

void lm_cost_rows_json(const lm_cost_rows *rows, lm_buf *out) {
  const lm_cost_row **list = sorted(rows);
  lm_buf_puts(out, "[");
  for (uint32_t i = 0; i < rows->n; i++) {
    const lm_cost_row *x = list[i];
    lm_buf_puts(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
    lm_buf_json(out, x->name);
    if (x->step->kind == LM_STEP_KERNEL)
      lm_buf_printf(out, ", \"kernel\": \"%s\"", rows->plan->kernels[x->step->kernel].name);
    lm_buf_printf(
        out,
        ", \"times\": %lld, \"bytes\": %.0f, \"flops\": %.0f, \"least_s\": %.6g, \"bound\": \"%s\"",
        (long long)x->times, x->bytes, x->flops, x->least, x->memory ? "memory" : "arithmetic");
    if (rows->seconds > 0)
      lm_buf_printf(out, ", \"measured_s\": %.6g", x->seconds);
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]");
  lm_free(list);
}
