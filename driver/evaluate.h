// evaluate.h - a trained model evaluated on parts of its data.
#ifndef LM_DRIVER_EVALUATE_H
#define LM_DRIVER_EVALUATE_H
#include "driver/session.h"
#include "runtime/train/eval.h"

typedef struct lm_evaluation_options {
  const char *weights;      // of lm_trained_open
  const char *const *parts; // holdouts, or "train"
  int n_parts;              // 0: all holdouts
  // Receives the result of each part.
  void (*result)(void *user, const char *part, const lm_eval_result *x);
  void *user;
} lm_evaluation_options;

// s: a session that lm_trained_open has opened. LM_USER if a part does not exist, or, after the
// results of all parts, if one of them has nothing to predict: its metrics are NAN.
lm_status lm_evaluation_run(lm_session *s, const lm_evaluation_options *o);
#endif
