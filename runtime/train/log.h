// log.h - writes the metrics of a run to its folder:
//   metrics.jsonl              every step and every evaluation, one JSON object a line
//   events.out.tfevents.lmc    the same for TensorBoard
//   loss.svg                   chart of the losses over the steps
// When a run resumes from a checkpoint, the metrics of later steps are removed.
#ifndef LM_TRAIN_LOG_H
#define LM_TRAIN_LOG_H
#include "runtime/telemetry/metrics.h"

typedef struct lm_run_log lm_run_log;
lm_status lm_run_log_open(const char *dir, int64_t step, lm_run_log **out);
// Writes metrics of a step; does nothing if l is NULL.
lm_status lm_run_log_add(lm_run_log *l, int64_t step, const lm_metric *items, size_t n);
lm_status lm_run_log_draw(lm_run_log *l); // updates loss.svg
void lm_run_log_close(lm_run_log *l);     // l may be NULL
#endif
