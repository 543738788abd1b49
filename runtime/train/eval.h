// eval.h - computes the loss, the cross-entropy and the perplexity over a part of the data.
#ifndef LM_TRAIN_EVAL_H
#define LM_TRAIN_EVAL_H
#include "runtime/comm/comm.h"
#include "runtime/train/ports.h"

typedef enum {
  LM_EVAL_LOSS,
  LM_EVAL_BITS_PER_BYTE,
  LM_EVAL_PERPLEXITY,
  LM_EVAL_METRICS
} lm_eval_metric;
extern const char *const LM_EVAL_NAMES[LM_EVAL_METRICS];

typedef struct lm_eval_result {
  // loss: sum of losses / sum of weights. With the mean cross-entropy H per predicted token in
  // nats: bits per byte = H * tokens / (bytes * ln 2), NAN if the number of bytes is unknown;
  // perplexity = exp(H). Both are NAN if the function has no logits.
  double value[LM_EVAL_METRICS];
  double weight; // sum of the weights
  double tokens; // sum of the weights `w` of the predicted tokens; NAN as above
  int64_t rows;
} lm_eval_result;

// Reports progress.
typedef struct lm_eval_watch {
  void (*rows)(void *user, int64_t done, int64_t all);
  void *user;
} lm_eval_watch;

// Runs the plan's function `eval` on every row of the part; the last call is filled up with
// padding. All values are NAN if the weights sum to 0 or less. watch is optional. The calls are
// divided among the ranks of comm (NULL: one process), and their sums added in order.
lm_status lm_eval_run(lm_exec *e, const lm_plan *plan, const lm_data *data, int part, lm_comm *comm,
                      const lm_eval_watch *watch, lm_eval_result *out);
#endif
