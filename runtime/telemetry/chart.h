// chart.h - draws curves over steps as an SVG picture with axes, ticks and a legend.
#ifndef LM_TELEMETRY_CHART_H
#define LM_TELEMETRY_CHART_H
#include "runtime/base/base.h"

typedef struct lm_curve {
  char *name;
  double *step, *value; // [n], sorted by step; all values are finite
  size_t n, cap;
} lm_curve;
typedef struct lm_curves {
  lm_curve *v;
  size_t n, cap;
} lm_curves;

// Reads the curves of metrics.jsonl that are called `name` (training) or end in ".name"
// (evaluations). Malformed lines are skipped.
lm_status lm_curves_read(const char *path, const char *name, lm_curves *out);
void lm_curves_free(lm_curves *c);
// Draws the curves. A curve with more values than the picture has columns is averaged. c may be
// empty.
void lm_chart_draw(const lm_curves *c, const char *title, const char *y_label, lm_buf *out);
#endif
