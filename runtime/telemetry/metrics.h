// metrics.h - writes metrics.jsonl: one JSON object a line, "step" first. Each line is a single
// write, so a killed run leaves at most one incomplete line, which the next open removes.
#ifndef LM_TELEMETRY_METRICS_H
#define LM_TELEMETRY_METRICS_H
#include "runtime/base/base.h"

typedef struct lm_metric {
  const char *name;
  double value;
} lm_metric; // a value that is not finite is written as null
typedef struct lm_metrics lm_metrics;

// Keeps the lines of steps up to `step` (0: none) and removes all lines after them.
lm_status lm_metrics_open(const char *path, int64_t step, lm_metrics **out);
lm_status lm_metrics_add(lm_metrics *m, int64_t step, const lm_metric *items, size_t n);
void lm_metrics_close(lm_metrics *m); // m may be NULL
#endif
