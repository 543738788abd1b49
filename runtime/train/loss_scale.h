// loss_scale.h - dynamic loss scaling, for models that compute in f16: the rule of PyTorch's
// GradScaler (https://pytorch.org/docs/stable/amp.html).
//
// f16 has no numbers below 2^-24, and many gradients are smaller. So @micro computes the gradients
// of the loss times a scale, a power of 2, and the update divides them by it (hal/scale.h), which
// is exact. If the gradient of a step overflows although its loss is finite, the step is skipped
// and the scale halved; after 2,000 steps in a row without an overflow it is doubled. At the lowest
// scale an overflow is a bad step (guard.h), as in a model without a scale.
//
// The loss is a sum over positions, so the gradient of a logit is of magnitude up to 1, where
// GradScaler's users divide by the number of positions: the first scale is 2^15 instead of 2^16.
// The scale depends on the results of steps alone, which are equal on all ranks.
#ifndef LM_TRAIN_LOSS_SCALE_H
#define LM_TRAIN_LOSS_SCALE_H
#include <stdbool.h>
#include <stdint.h>

typedef struct lm_loss_scale {
  double scale; // 0: the gradients are those of the loss itself
  int64_t good; // steps without an overflow since the last change
} lm_loss_scale;

lm_loss_scale lm_loss_scale_first(void);
// True if `s` can be the scale of a run.
bool lm_loss_scale_is_valid(const lm_loss_scale *s);
// True if a step whose loss is finite and whose gradient is not halves the scale.
bool lm_loss_scale_can_halve(const lm_loss_scale *s);
// Gives the scale its value after a step that overflowed, or that did not.
void lm_loss_scale_move(lm_loss_scale *s, bool overflow);
#endif
