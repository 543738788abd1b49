// metrics.h - metrics.jsonl: one JSON object a line, "step" first. A line is one write, so a killed
// run leaves at most one torn line, which the next open removes.
#ifndef LM_IO_METRICS_H
#define LM_IO_METRICS_H
#include "runtime/base/base.h"

typedef struct lm_metric {
  const char *name;
  double value;
} lm_metric; // what is not finite is written as null
typedef struct lm_metrics lm_metrics;

// Keeps the lines of steps up to `step` (0: none) and removes everything behind them.
lm_status lm_metrics_open(const char *path, int64_t step, lm_metrics **out);
lm_status lm_metrics_add(lm_metrics *m, int64_t step, const lm_metric *items, size_t n);
void lm_metrics_close(lm_metrics *m); // NULL is fine
#endif
