// scale.h - what the gradient of a training step is multiplied by. In front of the GPU's own
// kernels too, so that both decide alike to the bit: C on nothing.
#ifndef LM_HAL_SCALE_H
#define LM_HAL_SCALE_H

static inline int lm_scale_finite(double x) {
  return x - x == 0;
}

// From a step's sums of losses, of weights, and the norm of the gradient of the first: min(1, clip
// / (norm / weight + 1e-6)) / weight, 1 / weight without a clip (0). Not a number for a step that
// is to change nothing: loss or norm not finite, a loss above `limit`, no weight.
static inline double lm_scale_of(double sum, double weight, double norm, double clip,
                                 double limit) {
  double loss = sum / weight;
  double grad_norm = norm / weight;
  double part = clip > 0 ? clip / (grad_norm + 1e-6) : 1;
  int good = weight > 0 && lm_scale_finite(loss) && lm_scale_finite(grad_norm) && !(loss > limit);
  return good ? (part < 1 ? part : 1) / weight : 0.0 / 0.0;
}
#endif
