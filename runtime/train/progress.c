// progress.c - the status line of a run.
#include "runtime/train/progress.h"

#include <math.h>

void lm_progress_start(lm_progress *p, int64_t first) {
  p->first = first;
  p->started = p->last = lm_now();
}

// Exponential mean over about ten steps; the first value stands for itself.
static double smoothed(double old, double now) { return old > 0 ? 0.9 * old + 0.1 * now : now; }

static const lm_progress_stage *stage_at(const lm_progress *p, int64_t step) {
  const lm_progress_stage *at = NULL;
  for (int i = 0; i < p->n_stages && p->stages[i].first <= step; i++) at = &p->stages[i];
  return at;
}

static double flops_at(const lm_progress *p, int64_t step) { return stage_at(p, step) ? stage_at(p, step)->flops_per_token : 0; }

// Of the steps behind this one: as long as the last ones, but for stages that take more or less operations.
static double seconds_left(const lm_progress *p, int64_t step) {
  double now = flops_at(p, step), steps = (double)(p->steps - step);
  for (int i = 0; i < p->n_stages && now > 0; i++) {
    int64_t first = p->stages[i].first > step ? p->stages[i].first : step + 1;
    int64_t end = i + 1 < p->n_stages ? p->stages[i + 1].first : p->steps + 1;
    if (end > first) steps += (double)(end - first) * (p->stages[i].flops_per_token / now - 1);
  }
  return p->step_seconds * steps;
}

static void rates_update(lm_progress *p, int64_t step, const lm_step_result *r) {
  if (stage_at(p, step) != stage_at(p, step - 1)) p->rate = p->step_seconds = 0;
  double now = lm_now(), seconds = now - p->last;
  p->last = now;
  if (seconds <= 0) return;
  p->step_seconds = smoothed(p->step_seconds, seconds);
  p->rate = smoothed(p->rate, (double)r->tokens / seconds);
}

static void count_print(lm_buf *b, double x, const char *unit) {
  static const char *const prefix[] = {"", "k", "M", "G", "T"};
  int k = 0;
  for (; x >= 1000 && k < 4; k++) x /= 1000;
  lm_buf_printf(b, "%.3g%s%s", x, prefix[k], unit);
}

static void duration_print(lm_buf *b, double seconds) {
  long long s = llround(seconds);
  if (s < 60) lm_buf_printf(b, "%llds", s);
  else if (s < 3600) lm_buf_printf(b, "%lldm%02llds", s / 60, s % 60);
  else lm_buf_printf(b, "%lldh%02lldm", s / 3600, s / 60 % 60);
}

static void line_print(const lm_progress *p, int64_t step, const lm_step_result *r, lm_buf *b) {
  lm_buf_printf(b, "step %lld/%lld  loss %.4f  lr %.3g  norm %.3g  ", (long long)step, (long long)p->steps, r->loss, r->lr, r->grad_norm);
  count_print(b, p->rate, " tok/s");
  double flops = flops_at(p, step);
  if (flops > 0 && p->peak_flops > 0) lm_buf_printf(b, "  MFU %.1f%%", 100 * p->rate * flops / p->peak_flops);
  lm_buf_puts(b, "  ETA ");
  duration_print(b, seconds_left(p, step));
  if (!p->memory) return;
  lm_buf_puts(b, "  ");
  count_print(b, (double)p->memory, "B");
}

// Without a terminal: about fifty lines a run, and the first and the last step.
static bool is_shown(const lm_progress *p, int64_t step) {
  int64_t every = p->steps / 50 > 1 ? p->steps / 50 : 1;
  return p->terminal || step == p->first + 1 || step == p->steps || step % every == 0;
}

void lm_progress_step(lm_progress *p, int64_t step, const lm_step_result *r) {
  rates_update(p, step, r);
  if (!p->to || !is_shown(p, step)) return;
  lm_buf b = {0};
  line_print(p, step, r, &b);
  fprintf(p->to, p->terminal ? "\r\x1b[K%s" : "%s\n", b.p);
  fflush(p->to);
  p->open = p->terminal;
  lm_buf_free(&b);
}

void lm_progress_end(lm_progress *p) {
  if (p->open) fputc('\n', p->to);
  p->open = false;
}

void lm_progress_say(lm_progress *p, const char *fmt, ...) {
  if (!p->to) return;
  lm_progress_end(p);
  va_list ap;
  va_start(ap, fmt);
  vfprintf(p->to, fmt, ap);
  va_end(ap);
  fputc('\n', p->to);
  fflush(p->to);
}

void lm_progress_pause(lm_progress *p) { p->last = lm_now(); }
