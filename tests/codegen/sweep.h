// sweep.h - a function of f32 against a function of double, over a range of floats. Included behind
// the prelude's math.h.
#ifndef LM_TESTS_SWEEP_H
#define LM_TESTS_SWEEP_H
#include <math.h>

typedef struct sweep_case {
  const char *name;
  float (*f)(float);
  double (*g)(double);
  float from, to; // of one sign, by increasing magnitude
  double bound;
} sweep_case;

static inline double logistic64(double x) {
  return 1 / (1 + exp(-x));
}
static inline double rsqrt64(double x) {
  return 1 / sqrt(x);
}

// The greatest error at about n floats from one end of the range to the other; *at is where. NaN
// counts as infinity.
static inline double sweep_worst(const sweep_case *c, uint32_t n,
                                 double (*error)(float got, double want), float *at) {
  uint32_t from = lm_bits(c->from), to = lm_bits(c->to);
  uint32_t step = (to - from) / n + 1;
  double worst = 0;
  *at = c->from;
  for (uint64_t u = from; u <= to; u += step) {
    float x = lm_of_bits((uint32_t)u);
    double e = error(c->f(x), c->g((double)x));
    if (e <= worst)
      continue;
    worst = isnan(e) ? INFINITY : e;
    *at = x;
  }
  return worst;
}
#endif
