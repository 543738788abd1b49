// log.h - what a run leaves in its folder besides checkpoints:
//   metrics.jsonl              every step and every evaluation, one JSON object a line
//   events.out.tfevents.lmc    the same for TensorBoard
//   loss.svg                   the losses over the steps
// All three go on from a checkpoint: what an abandoned run left of later steps is removed.
#ifndef LM_TRAIN_LOG_H
#define LM_TRAIN_LOG_H
#include "runtime/telemetry/metrics.h"

typedef struct lm_run_log lm_run_log;
lm_status lm_run_log_open(const char *dir, int64_t step, lm_run_log **out);
lm_status lm_run_log_add(lm_run_log *l, int64_t step, const lm_metric *items,
                         size_t n);       // l NULL: nothing is written
lm_status lm_run_log_draw(lm_run_log *l); // brings loss.svg up to date
void lm_run_log_close(lm_run_log *l);     // NULL is fine
#endif
