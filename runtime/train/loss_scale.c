// loss_scale.c - see loss_scale.h.
#include "runtime/train/loss_scale.h"

#include <math.h>

enum {
  GROWTH_INTERVAL = 2000 // steps
};
static const double FIRST = 0x1p15, LEAST = 0x1p-14, MOST = 0x1p120;

lm_loss_scale lm_loss_scale_first(void) {
  return (lm_loss_scale){.scale = FIRST};
}

bool lm_loss_scale_is_valid(const lm_loss_scale *s) {
  int exponent;
  bool in_range = s->scale >= LEAST && s->scale <= MOST;
  return in_range && frexp(s->scale, &exponent) == 0.5 && s->good >= 0 && s->good < GROWTH_INTERVAL;
}

bool lm_loss_scale_can_halve(const lm_loss_scale *s) {
  return s->scale > LEAST;
}

void lm_loss_scale_move(lm_loss_scale *s, bool overflow) {
  if (overflow) {
    *s = (lm_loss_scale){.scale = s->scale / 2};
  } else if (++s->good == GROWTH_INTERVAL) {
    double doubled = 2 * s->scale;
    *s = (lm_loss_scale){.scale = doubled < MOST ? doubled : MOST};
  }
}
