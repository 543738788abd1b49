// chart.c - curves over steps as an SVG picture.
#include "runtime/telemetry/chart.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/io/json.h"

// ---- curves from metrics.jsonl

static lm_curve *curve_of(lm_curves *c, const char *name) {
  for (size_t i = 0; i < c->n; i++)
    if (!strcmp(c->v[i].name, name))
      return &c->v[i];
  if (c->n == c->cap) {
    c->cap = c->cap ? 2 * c->cap : 8;
    c->v = lm_realloc(c->v, c->cap * sizeof *c->v);
  }
  c->v[c->n] = (lm_curve){.name = lm_strdup(name)};
  return &c->v[c->n++];
}

static void point_add(lm_curve *c, double step, double value) {
  if (c->n == c->cap) {
    c->cap = c->cap ? 2 * c->cap : 256;
    c->step = lm_realloc(c->step, c->cap * sizeof *c->step);
    c->value = lm_realloc(c->value, c->cap * sizeof *c->value);
  }
  c->step[c->n] = step;
  c->value[c->n++] = value;
}

static bool is_wanted(const char *key, const char *name) {
  size_t n = strlen(key);
  size_t m = strlen(name);
  return n >= m && !strcmp(key + n - m, name) && (n == m || key[n - m - 1] == '.');
}

static void line_read(lm_curves *c, const char *line, size_t n, const char *name) {
  json_t *j, *value;
  // A line that a killed run left incomplete has no points.
  lm_status_free(lm_json_parse(line, n, "", &j));
  double step = json_number_value(json_object_get(j, "step"));
  const char *key;
  json_object_foreach(j, key, value) if (is_wanted(key, name) && json_is_number(value))
      point_add(curve_of(c, key), step, json_number_value(value));
  json_decref(j);
}

lm_status lm_curves_read(const char *path, const char *name, lm_curves *out) {
  lm_buf text = {0};
  *out = (lm_curves){0};
  curve_of(out, name); // the training curve comes first
  lm_status s = lm_file_read(path, SIZE_MAX, &text);
  for (size_t at = 0; !s && at < text.n;) {
    size_t n = strcspn(text.p + at, "\n");
    line_read(out, text.p + at, n, name);
    at += n + 1;
  }
  lm_buf_free(&text);
  if (s)
    lm_curves_free(out);
  return s;
}

void lm_curves_free(lm_curves *c) {
  for (size_t i = 0; i < c->n; i++) {
    lm_free(c->v[i].name);
    lm_free(c->v[i].step);
    lm_free(c->v[i].value);
  }
  lm_free(c->v);
  *c = (lm_curves){0};
}

// ---- the picture

enum {
  WIDTH = 800,
  HEIGHT = 480,
  LEFT = 72,
  RIGHT = 24,
  TOP = 48,
  BOTTOM = 56,
  TICKS = 8,
  POINTS_MAX = 400
};
static const char *const COLORS[] = {"#1f77b4", "#d62728", "#2ca02c",
                                     "#9467bd", "#ff7f0e", "#17becf"};

typedef struct {
  double least;
  double most;
  double tick;
} scale;
typedef struct {
  scale x, y;
  lm_buf *out;
} chart;

static double pixel_x(const chart *c, double v) {
  return LEFT + (v - c->x.least) / (c->x.most - c->x.least) * (WIDTH - LEFT - RIGHT);
}
static double pixel_y(const chart *c, double v) {
  return HEIGHT - BOTTOM - (v - c->y.least) / (c->y.most - c->y.least) * (HEIGHT - TOP - BOTTOM);
}

// 1, 2 or 5 times a power of ten, at most TICKS of them over the range.
static double tick_of(double range) {
  double rough = range / TICKS;
  double power = pow(10, floor(log10(rough)));
  double digit = rough / power;
  return (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10) * power;
}

// Widens the range to whole ticks, which are at least `tick_min` apart.
static scale scale_make(double least, double most, double tick_min) {
  if (!(most > least)) {
    most = least + fmax(fabs(least), 1) * 1e-3;
    least -= fmax(fabs(least), 1) * 1e-3;
  }
  double tick = fmax(tick_of(most - least), tick_min);
  return (scale){floor(least / tick + 1e-9) * tick, ceil(most / tick - 1e-9) * tick, tick};
}

// ---- curves, averaged to at most POINTS_MAX points

static size_t points_of(const lm_curve *c) {
  return c->n < POINTS_MAX ? c->n : POINTS_MAX;
}

static void point_average(const lm_curve *c, size_t i, double *out_step, double *out_value) {
  size_t n = points_of(c);
  size_t first = i * c->n / n;
  size_t last = (i + 1) * c->n / n;
  double step = 0;
  double value = 0;
  for (size_t k = first; k < last; k++) {
    step += c->step[k];
    value += c->value[k];
  }
  *out_step = step / (double)(last - first);
  *out_value = value / (double)(last - first);
}

static void ranges_find(const lm_curves *c, scale *x, scale *y) {
  double step;
  double value;
  double x0 = 0;
  double x1 = 1;
  double y0 = INFINITY;
  double y1 = -INFINITY;
  for (size_t i = 0; i < c->n; i++)
    for (size_t k = 0; k < points_of(&c->v[i]); k++) {
      point_average(&c->v[i], k, &step, &value);
      x1 = fmax(x1, step);
      y0 = fmin(y0, value);
      y1 = fmax(y1, value);
    }
  *x = scale_make(x0, x1, 1);
  *y = y1 >= y0 ? scale_make(y0, y1, 0) : scale_make(0, 1, 0);
}

// ---- marks

static void text_at(const chart *c, double x, double y, const char *anchor, const char *more,
                    const char *text) {
  lm_buf_printf(c->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, more);
  for (; *text; text++)
    if (strchr("<>&", *text))
      lm_buf_printf(c->out, "&#%d;", *text);
    else
      lm_buf_add(c->out, text, 1);
  lm_buf_puts(c->out, "</text>\n");
}

// Prints as many decimals as the distance between ticks requires; thousands as k, millions as M.
static void number_show(double v, double tick, char *out, size_t n) {
  static const struct {
    double by;
    const char *unit;
  } units[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (size_t i = 0; i < LM_COUNT(units); i++)
    if (fabs(v) >= units[i].by && fmod(tick, units[i].by / 10) == 0) {
      snprintf(out, n, "%g%s", v / units[i].by, units[i].unit);
      return;
    }
  int decimals = tick < 1 ? (int)ceil(-log10(tick) - 1e-9) : 0;
  snprintf(out, n, "%.*f", decimals, fabs(v) < tick / 2 ? 0 : v);
}

static void line_draw(const chart *c, double x0, double y0, double x1, double y1,
                      const char *color) {
  lm_buf_printf(c->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                x0, y0, x1, y1, color);
}

static void axes_draw(const chart *c) {
  char text[40];
  int n = (int)lround((c->x.most - c->x.least) / c->x.tick);
  int m = (int)lround((c->y.most - c->y.least) / c->y.tick);
  for (int i = 0; i <= n; i++) {
    double v = c->x.least + i * c->x.tick;
    double x = pixel_x(c, v);
    line_draw(c, x, TOP, x, HEIGHT - BOTTOM, i ? "#eeeeee" : "#888888");
    number_show(v, c->x.tick, text, sizeof text);
    text_at(c, x, HEIGHT - BOTTOM + 18, "middle", "", text);
  }
  for (int i = 0; i <= m; i++) {
    double v = c->y.least + i * c->y.tick;
    double y = pixel_y(c, v);
    line_draw(c, LEFT, y, WIDTH - RIGHT, y, i ? "#eeeeee" : "#888888");
    number_show(v, c->y.tick, text, sizeof text);
    text_at(c, LEFT - 8, y + 4, "end", "", text);
  }
}

static void curve_draw(const chart *c, const lm_curve *curve, const char *color) {
  size_t n = points_of(curve);
  double step;
  double value;
  lm_buf_printf(c->out,
                "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" "
                "stroke-linejoin=\"round\" points=\"",
                color);
  for (size_t i = 0; i < n; i++) {
    point_average(curve, i, &step, &value);
    lm_buf_printf(c->out, "%s%.1f,%.1f", i ? " " : "", pixel_x(c, step), pixel_y(c, value));
  }
  lm_buf_puts(c->out, "\"/>\n");
  for (size_t i = 0; i < n && n <= 60; i++) {
    point_average(curve, i, &step, &value);
    lm_buf_printf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
                  pixel_x(c, step), pixel_y(c, value), color);
  }
}

static void legend_draw(const chart *c, const lm_curves *curves) {
  double y = TOP + 20;
  for (size_t i = 0; i < curves->n; i++) {
    const lm_curve *curve = &curves->v[i];
    if (!curve->n)
      continue;
    const char *color = COLORS[i % LM_COUNT(COLORS)];
    lm_buf label = {0};
    lm_buf_printf(&label, "%s%.*s  %.4f", i ? "" : "train",
                  i ? (int)(strrchr(curve->name, '.') - curve->name) : 0, curve->name,
                  curve->value[curve->n - 1]);
    lm_buf_printf(c->out, "<rect x=\"%d\" y=\"%.1f\" width=\"18\" height=\"4\" fill=\"%s\"/>\n",
                  WIDTH - RIGHT - 168, y - 6, color);
    text_at(c, WIDTH - RIGHT - 142, y, "start", "", label.p);
    lm_buf_free(&label);
    y += 20;
  }
}

void lm_chart_draw(const lm_curves *curves, const char *title, const char *y_label, lm_buf *out) {
  chart c = {.out = out};
  ranges_find(curves, &c.x, &c.y);
  lm_buf_printf(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" "
      "font-size=\"13\" fill=\"#333333\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
      WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
  axes_draw(&c);
  for (size_t i = 0; i < curves->n; i++)
    if (curves->v[i].n)
      curve_draw(&c, &curves->v[i], COLORS[i % LM_COUNT(COLORS)]);
  legend_draw(&c, curves);
  text_at(&c, LEFT, TOP - 20, "start", " font-size=\"16\"", title);
  text_at(&c, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, "middle", "", "step");
  lm_buf_printf(out, "<g transform=\"translate(18 %d) rotate(-90)\">", (TOP + HEIGHT - BOTTOM) / 2);
  text_at(&c, 0, 0, "middle", "", y_label);
  lm_buf_puts(out, "</g>\n</svg>\n");
}
