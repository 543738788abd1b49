// progress.c - the status line of a run.
#include "runtime/train/progress.h"

#include <math.h>
#include <string.h>

#include "runtime/base/terminal.h"

enum {
  INDENT = 2 // of the continuation lines of a long line
};

void lm_progress_start(lm_progress *p, int64_t first) {
  p->first = first;
  p->started = p->last = lm_now();
}

// Exponential moving average over about ten steps, initialized with the first value.
static double smoothed(double old, double now) {
  return old > 0 ? 0.9 * old + 0.1 * now : now;
}

static const lm_progress_stage *stage_at(const lm_progress *p, int64_t step) {
  const lm_progress_stage *at = NULL;
  for (int i = 0; i < p->n_stages && p->stages[i].first <= step; i++)
    at = &p->stages[i];
  return at;
}

static double flops_at(const lm_progress *p, int64_t step) {
  return stage_at(p, step) ? stage_at(p, step)->flops_per_token : 0;
}

// Estimates the time of the remaining steps: as long as the last ones, scaled by the number of
// operations of each stage.
static double seconds_left(const lm_progress *p, int64_t step) {
  double now = flops_at(p, step);
  double steps = (double)(p->steps - step);
  for (int i = 0; i < p->n_stages && now > 0; i++) {
    int64_t first = p->stages[i].first > step ? p->stages[i].first : step + 1;
    int64_t end = i + 1 < p->n_stages ? p->stages[i + 1].first : p->steps + 1;
    if (end > first)
      steps += (double)(end - first) * (p->stages[i].flops_per_token / now - 1);
  }
  return p->step_seconds * steps;
}

static void rates_update(lm_progress *p, int64_t step, const lm_step_result *r) {
  if (stage_at(p, step) != stage_at(p, step - 1))
    p->rate = p->step_seconds = 0;
  double now = lm_now();
  double seconds = now - p->last;
  p->last = now;
  if (seconds <= 0)
    return;
  p->step_seconds = smoothed(p->step_seconds, seconds);
  p->rate = smoothed(p->rate, (double)r->tokens / seconds);
}

static void count_print(lm_buf *b, double x, const char *unit) {
  static const char *const prefix[] = {"", "k", "M", "G", "T"};
  int k = 0;
  for (; x >= 1000 && k < 4; k++)
    x /= 1000;
  lm_buf_printf(b, "%.3g%s%s", x, prefix[k], unit);
}

static void duration_print(lm_buf *b, double seconds) {
  long long s = llround(seconds);
  if (s < 60)
    lm_buf_printf(b, "%llds", s);
  else if (s < 3600)
    lm_buf_printf(b, "%lldm%02llds", s / 60, s % 60);
  else
    lm_buf_printf(b, "%lldh%02lldm", s / 3600, s / 60 % 60);
}

// The fields of a line in order. If not all fit, the fields with the lowest weights are omitted.
enum {
  FIELDS_MAX = 8,
  FIELD_BYTES = 64
};
typedef struct field {
  int weight;
  char text[FIELD_BYTES];
} field;
typedef struct fields {
  int n;
  field v[FIELDS_MAX];
} fields;

static void field_add(fields *f, int weight, lm_buf *text) {
  field *x = &f->v[f->n++];
  x->weight = weight;
  snprintf(x->text, sizeof x->text, "%s", text->p);
  text->n = 0;
}

static void number_add(fields *f, int weight, lm_buf *b, const char *fmt, double x) {
  lm_buf_printf(b, fmt, x);
  field_add(f, weight, b);
}

static void fields_make(const lm_progress *p, int64_t step, const lm_step_result *r, fields *f) {
  double flops = flops_at(p, step);
  lm_buf b = {0};
  lm_buf_printf(&b, "step %lld/%lld", (long long)step, (long long)p->steps);
  field_add(f, 8, &b);
  number_add(f, 7, &b, "loss %.4f", r->loss);
  number_add(f, 3, &b, "lr %.3g", r->lr);
  number_add(f, 4, &b, "norm %.3g", r->grad_norm);
  count_print(&b, p->rate, " tok/s");
  field_add(f, 5, &b);
  if (flops > 0 && p->peak_flops > 0)
    number_add(f, 2, &b, "MFU %.1f%%", 100 * p->rate * flops / p->peak_flops);
  lm_buf_puts(&b, "ETA ");
  duration_print(&b, seconds_left(p, step));
  field_add(f, 6, &b);
  count_print(&b, (double)p->memory, "B");
  if (p->memory)
    field_add(f, 1, &b);
  lm_buf_free(&b);
}

static int columns_of(const fields *f, int min_weight) {
  int n = 0;
  for (int i = 0; i < f->n; i++)
    if (f->v[i].weight >= min_weight)
      n += (n ? 2 : 0) + (int)strlen(f->v[i].text);
  return n;
}

// At most `width` columns; 0: any number.
static void line_print(const fields *f, int width, lm_buf *b) {
  int min_weight = 1;
  while (width && min_weight < 8 && columns_of(f, min_weight) > width)
    min_weight++;
  for (int i = 0; i < f->n; i++)
    if (f->v[i].weight >= min_weight)
      lm_buf_printf(b, "%s%s", b->n ? "  " : "", f->v[i].text);
  if (width && b->n > (size_t)width)
    b->p[b->n = (size_t)width] = 0;
}

// True if the line of a step is printed: without a terminal about fifty steps, including the first
// and the last.
static bool is_shown(const lm_progress *p, int64_t step) {
  int64_t every = p->steps / 50 > 1 ? p->steps / 50 : 1;
  return p->terminal || step == p->first + 1 || step == p->steps || step % every == 0;
}

// Read again for each line, since a terminal may be resized. The last column stays empty, since
// some terminals wrap when it is written.
static int width_of(const lm_progress *p) {
  int width = lm_terminal_width(p->to);
  return width > 1 ? width - 1 : 1;
}

void lm_progress_step(lm_progress *p, int64_t step, const lm_step_result *r) {
  rates_update(p, step, r);
  if (!p->to || !is_shown(p, step))
    return;
  fields f = {0};
  lm_buf b = {0};
  fields_make(p, step, r, &f);
  line_print(&f, p->terminal ? width_of(p) : 0, &b);
  fprintf(p->to, p->terminal ? "\r\x1b[K%s" : "%s\n", b.p);
  fflush(p->to);
  p->open = p->terminal;
  lm_buf_free(&b);
}

void lm_progress_end(lm_progress *p) {
  if (p->open)
    fputc('\n', p->to);
  p->open = false;
}

void lm_progress_say(lm_progress *p, const char *fmt, ...) {
  if (!p->to)
    return;
  lm_progress_end(p);
  va_list ap;
  va_start(ap, fmt);
  lm_vprint_wrapped(p->to, INDENT, fmt, ap);
  va_end(ap);
  fputc('\n', p->to);
  fflush(p->to);
}

void lm_progress_pause(lm_progress *p) {
  p->last = lm_now();
}
