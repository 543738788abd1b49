// eval.h - the loss over a part of the data, and how well the model's logits tell its tokens.
#ifndef LM_TRAIN_EVAL_H
#define LM_TRAIN_EVAL_H
#include "runtime/train/ports.h"

typedef enum {
  LM_EVAL_LOSS,
  LM_EVAL_BITS_PER_BYTE,
  LM_EVAL_PERPLEXITY,
  LM_EVAL_METRICS
} lm_eval_metric;
extern const char *const LM_EVAL_NAMES[LM_EVAL_METRICS];

typedef struct lm_eval_result {
  // the mean loss; of the tokens' cross-entropy: bits for a byte (NAN where bytes are not known),
  // e^mean; both NAN without logits
  double value[LM_EVAL_METRICS];
  double weight;
  int64_t rows; // what the mean is over
} lm_eval_result;

typedef struct lm_eval_watch {
  void (*rows)(void *user, int64_t done, int64_t all);
  void *user;
} lm_eval_watch; // called as rows are done

// Every row of the part through the plan's function `eval`, padding behind the last. Where the
// weights sum to 0 or less, no value is a number. watch: NULL: nobody.
lm_status lm_eval_run(lm_exec *e, const lm_plan *plan, const lm_data *data, int part,
                      const lm_eval_watch *watch, lm_eval_result *out);
#endif
