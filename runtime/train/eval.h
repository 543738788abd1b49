// eval.h - the loss over a part of the data, and how well the model's logits tell its tokens.
#ifndef LM_TRAIN_EVAL_H
#define LM_TRAIN_EVAL_H
#include "runtime/train/ports.h"

typedef enum { LM_EVAL_LOSS, LM_EVAL_BITS_PER_BYTE, LM_EVAL_PERPLEXITY, LM_EVAL_METRICS } lm_eval_metric;
extern const char *const LM_EVAL_NAMES[LM_EVAL_METRICS];

typedef struct lm_eval_result {
  double value[LM_EVAL_METRICS];       // the mean loss; of the tokens' cross-entropy: bits for a byte (NAN where bytes are not
                                       // known), e^mean; both NAN without logits
  double weight; int64_t rows;         // what the mean is over
} lm_eval_result;

// Every row of the part through the plan's function `eval`, padding behind the last. LM_USER if there is nothing to predict.
lm_status lm_eval_run(lm_exec *e, const lm_plan *plan, const lm_data *data, int part, lm_eval_result *out);
#endif
