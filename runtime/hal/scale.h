// scale.h - the factor by which the gradient of a training step is multiplied. The GPU's builtin
// kernels include this file too, so that both compute the same bits; it must not include others.
#ifndef LM_HAL_SCALE_H
#define LM_HAL_SCALE_H

static inline int lm_scale_finite(double x) {
  return x - x == 0;
}

// The scale from a step's sum of losses, sum of weights, and norm of the gradient of loss_scale
// times the sum: min(1, clip / (norm / loss_scale / weight + 1e-6)) / weight / loss_scale, or
// 1 / weight / loss_scale if clip is 0. loss_scale is a power of 2. NaN for a step that must be
// skipped: loss or norm not finite, loss above `limit`, or weight 0.
static inline double lm_scale_of(double sum, double weight, double norm, double loss_scale,
                                 double clip, double limit) {
  double loss = sum / weight;
  double grad_norm = norm / loss_scale / weight;
  double part = clip > 0 ? clip / (grad_norm + 1e-6) : 1;
  int good = weight > 0 && lm_scale_finite(loss) && lm_scale_finite(grad_norm) && !(loss > limit);
  return good ? (part < 1 ? part : 1) / weight / loss_scale : 0.0 / 0.0;
}
#endif
