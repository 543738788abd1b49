// chart.h - curves over steps as an SVG picture: axes, ticks, a legend.
#ifndef LM_IO_CHART_H
#define LM_IO_CHART_H
#include "runtime/base/base.h"

typedef struct lm_curve {
  char *name;
  double *step, *value;
  size_t n, cap; // in the order of steps; only finite values
} lm_curve;
typedef struct lm_curves {
  lm_curve *v;
  size_t n, cap;
} lm_curves;

// The curves of metrics.jsonl whose names are `name` or end in ".name": the training's own, then
// each evaluation's. What is no line of metrics is left out.
lm_status lm_curves_read(const char *path, const char *name, lm_curves *out);
void lm_curves_free(lm_curves *c);
// A curve of many values is drawn as the means of as many stretches as the picture can show.
// Nothing to draw is fine.
void lm_chart_draw(const lm_curves *c, const char *title, const char *y_label, lm_buf *out);
#endif
