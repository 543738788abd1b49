// prelude_test.c - the functions of the kernels' prelude against libm in double, over dense ranges
// and at the limits.
// Build: both
#include <math.h>
#include <stdio.h>
#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "codegen/common/prelude/math.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codegen/cpu/prelude/compiler.h"
#include "codegen/cpu/prelude/quad.h"
#include "codegen/cpu/prelude/tile.h"
#include "codegen/cpu/prelude/tile_attend.h"
#pragma GCC diagnostic pop
#include "tests/codegen/sweep.h"
#include "tests/runtime/check.h"

#if defined(__FMA__) || defined(__aarch64__)
#define EXP 0.92
#define EXP_LOW 2.2
#else
#define EXP 1.2
#define EXP_LOW 2.5
#endif

// Distance of `got` from `want` in units in the last place of `want` as a float.
static double ulps(float got, double want) {
  if (isnan(want))
    return isnan(got) ? 0 : INFINITY;
  float near = (float)want;
  if (got == near)
    return 0;
  if (isinf(near) || isinf(got) || isnan(got))
    return INFINITY;
  double unit = fmax(ldexp(1, ilogb(fabs(want)) - 23), 0x1p-149);
  return fabs((double)got - want) / unit;
}

static void sweep(const sweep_case *c) {
  float at;
  double worst = sweep_worst(c, 400000, ulps, &at);
  if (worst > c->bound) {
    fprintf(stderr, "%s: %g ulp at %.9g: %.9g, not %.17g\n", c->name, worst, at, c->f(at),
            c->g(at));
    exit(1);
  }
}

// Ranges of a thousandth between larger steps, from `from` to `to`.
static void sweep_dense(sweep_case c, float from, float to) {
  for (float x = from; x < to; x += 0.5f) {
    c.from = x < 0 ? x + 0.001f : x;
    c.to = x < 0 ? x : x + 0.001f;
    sweep(&c);
  }
}

static void test_functions(void) {
  static const sweep_case cases[] = {
      {"exp", lm_exp, exp, 0, 89, EXP},
      {"exp", lm_exp, exp, -0.f, -86.5f, EXP},
      {"exp of attention", lm_exp_low, exp, 0, 80, EXP_LOW},
      {"exp of attention", lm_exp_low, exp, -0.f, -86, EXP_LOW},
      {"log", lm_log, log, 0, INFINITY, 1.1},
      {"log1p", lm_log1p, log1p, 0, INFINITY, 2},
      {"log1p", lm_log1p, log1p, -0.f, -1, 2},
      {"floor", lm_floor, floor, 0, INFINITY, 0},
      {"floor", lm_floor, floor, -0.f, -INFINITY, 0},
      {"round", lm_round, rint, 0, INFINITY, 0},
      {"round", lm_round, rint, -0.f, -INFINITY, 0},
      {"tanh", lm_tanh, tanh, 0, 20, 2.6},
      {"tanh", lm_tanh, tanh, -0.f, -20, 2.6},
      {"logistic", lm_logistic, logistic64, 0, 100, 1.5},
      {"logistic", lm_logistic, logistic64, -0.f, -87, 2.5},
      {"erf", lm_erf, erf, 0, 10, 1.6},
      {"erf", lm_erf, erf, -0.f, -10, 1.6},
      {"sin", lm_sin, sin, 0, 0x1.fffffep27f, 2},
      {"sin", lm_sin, sin, -0.f, -0x1.fffffep27f, 2},
      {"cos", lm_cos, cos, 0, 0x1.fffffep27f, 2},
      {"cos", lm_cos, cos, -0.f, -0x1.fffffep27f, 2},
      {"sqrt", lm_sqrt, sqrt, 0, INFINITY, 0.51},
      {"rsqrt", lm_rsqrt, rsqrt64, 0x1p-126f, INFINITY, 1.6},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    sweep(&cases[i]);
  sweep_dense((sweep_case){"exp", lm_exp, exp, 0, 0, EXP}, -86, 88);
  sweep_dense((sweep_case){"logistic", lm_logistic, logistic64, 0, 0, 2.5}, -86, 0);
}

// The scores of one query form a lane, keys follow each other; scaled by 0.5, in two tiles, the
// second of odd size.
static void test_softmax(void) {
  enum {
    KEYS = 40,
    FIRST = 17
  };
  float z[KEYS][LM_LANES], x[KEYS][LM_LANES], top[LM_LANES], sum[LM_LANES] = {0}, scale[LM_LANES];
  for (int m = 0; m < LM_LANES; m++)
    top[m] = -INFINITY;
  for (int n = 0; n < KEYS; n++)
    for (int m = 0; m < LM_LANES; m++)
      z[n][m] = n == m ? -2e30f : 30 * sinf((float)(n * n + 7 * m));
  CHECK(lm_softmax(FIRST, LM_LANES, &z[0][0], 0.5f, &x[0][0], top, sum, scale) && scale[0] == 0);
  lm_softmax(KEYS - FIRST, LM_LANES, &z[FIRST][0], 0.5f, &x[FIRST][0], top, sum, scale);
  for (int m = 0; m < LM_LANES; m++) {
    double most = -INFINITY, total = 0;
    for (int n = 0; n < KEYS; n++)
      most = fmax(most, z[n][m] * 0.5);
    for (int n = 0; n < KEYS; n++)
      total += exp(z[n][m] * 0.5 - most);
    CHECK(top[m] == most && fabs(sum[m] - total) < 1e-6 * total && (m >= KEYS || x[m][m] == 0));
    for (int n = FIRST; n < KEYS; n++)
      CHECK(fabs(x[n][m] - exp(z[n][m] * 0.5 - most)) < 1e-6);
  }
  CHECK(!lm_softmax(KEYS, LM_LANES, &z[0][0], 0.5f, &x[0][0], top, sum, scale) &&
        scale[LM_LANES - 1] == 1);
}

static void test_edges(void) {
  CHECK(lm_exp_low(0) == 1 && lm_exp_low(-1e30f) == 0 && lm_exp_low(-INFINITY) == 0 &&
        lm_exp_low(-86.1f) == 0 && isnan(lm_exp_low(NAN)));
  for (float x = -80; x > -120; x -= 0.01f)
    CHECK(fabs(lm_exp(x) - exp(x)) < 0x1p-124);
  CHECK(lm_exp(-1e30f) == 0 && lm_exp(-87) == 0 && lm_exp(-3.4e38f) == 0 &&
        lm_exp(-INFINITY) == 0 && lm_exp(-1000) == 0 && lm_exp(0) == 1);
  CHECK(lm_exp(INFINITY) == INFINITY && lm_exp(89) == INFINITY && isnan(lm_exp(NAN)));
  CHECK(lm_logistic(INFINITY) == 1 && lm_logistic(-INFINITY) == 0 && isnan(lm_logistic(NAN)) &&
        lm_logistic(0) == 0.5f && lm_logistic(-90) == 0 && lm_logistic(3e38f) == 1 &&
        lm_logistic(-3e38f) == 0);
  CHECK(lm_exp(88.72f) < INFINITY && lm_exp(88.73f) == INFINITY);
  CHECK(lm_log(0) == -INFINITY && lm_log(INFINITY) == INFINITY && lm_log(1) == 0 &&
        isnan(lm_log(-1)) && isnan(lm_log(NAN)));
  CHECK(lm_log1p(-1) == -INFINITY && lm_log1p(INFINITY) == INFINITY && isnan(lm_log1p(-1.5f)));
  CHECK(isnan(lm_log1p(NAN)) && signbit(lm_log1p(-0.f)) && lm_log1p(0x1p-149f) == 0x1p-149f);
  CHECK(lm_round(0.5f) == 0 && lm_round(1.5f) == 2 && lm_round(2.5f) == 2 && lm_round(-2.5f) == -2);
  CHECK(signbit(lm_round(-0.25f)) && signbit(lm_round(-0.f)) && signbit(lm_floor(-0.f)));
  for (int k = -126; k <= 127; k++) {
    float power = ldexpf(1, k);
    CHECK(lm_binade(power) == power && lm_binade(-nextafterf(power, INFINITY)) == power);
    CHECK(lm_binade(nextafterf(power, 0)) == (k > -126 ? power / 2 : 0));
    CHECK(lm_binade64(-1.5 * power) == power);
  }
  CHECK(lm_binade(0) == 0 && lm_binade(-INFINITY) == INFINITY && lm_binade(NAN) == INFINITY);
  CHECK(lm_floor(-0.25f) == -1 && isnan(lm_floor(NAN)) && isnan(lm_round(NAN)));
  CHECK(lm_tanh(INFINITY) == 1 && lm_tanh(-INFINITY) == -1 && isnan(lm_tanh(NAN)) &&
        signbit(lm_tanh(-0.f)));
  CHECK(lm_erf(INFINITY) == 1 && lm_erf(-INFINITY) == -1 && isnan(lm_erf(NAN)));
  CHECK(isnan(lm_sin(INFINITY)) && isnan(lm_cos(-INFINITY)) && isnan(lm_sin(NAN)) &&
        lm_cos(0) == 1);
  CHECK(isnan(lm_sin(0x1p28f)) && isnan(lm_cos(-0x1p28f)) && isnan(lm_sin(0x1p100f)));
}

static void test_pow(void) {
  static const float xs[] = {0,      -0.f,     1,         -1,     0.5f,     2,  -2,
                             3,      10,       10000,     1e-30f, 1e30f,    -7, 0.999f,
                             1.001f, INFINITY, -INFINITY, NAN,    0x1p-149f};
  static const float ys[] = {0,     -0.f, 1,    -1,   0.5f,      -0.5f,    2,         3,   -3,
                             4.25f, 100,  -100, 1001, -0.03125f, INFINITY, -INFINITY, NAN, 0.333f};
  for (size_t i = 0; i < LM_COUNT(xs); i++)
    for (size_t j = 0; j < LM_COUNT(ys); j++) {
      if (isinf(ys[j]))
        continue; // the language defines only integral y beyond finite values
      double want = pow(xs[i], ys[j]);
      if (isinf(xs[i]) && xs[i] < 0)
        continue;
      if (ulps(lm_pow(xs[i], ys[j]), want) > 1) {
        fprintf(stderr, "pow(%g, %g) = %.9g, not %.9g\n", xs[i], ys[j], lm_pow(xs[i], ys[j]), want);
        exit(1);
      }
    }
  for (float x = 0.001f; x < 1000; x *= 1.0137f)
    for (float y = -12; y < 12; y += 0.113f)
      CHECK(ulps(lm_pow(x, y), pow(x, y)) <= 1);
}

static void test_bf16(void) {
  CHECK(lm_bf16_round(1.0f) == 0x3f80 && lm_bf16_round(lm_of_bits(0x3f808000)) == 0x3f80);
  CHECK(lm_bf16_round(lm_of_bits(0x3f818000)) == 0x3f82 &&
        lm_bf16_round(lm_of_bits(0x3f808001)) == 0x3f81);
  CHECK(lm_bf16_round(INFINITY) == 0x7f80 && isnan(lm_bf16_load(lm_bf16_round(NAN))));
  CHECK(isnan(lm_bf16_load(lm_bf16_round(lm_of_bits(0x7f800001)))) && lm_bf16_load(0xc000) == -2);
  CHECK(lm_bf16_round(0x1p-126f) == 0x0080 && lm_bf16_round(0x1.fffffcp-127f) == 0 &&
        lm_bf16_round(-0x1p-130f) == 0x8000 && lm_bf16_round(0x1.fffffep127f) == 0x7f80);
}

static void test_integers(void) {
  CHECK(lm_idiv(7, 2) == 3 && lm_idiv(-7, 2) == -4 && lm_idiv(7, -2) == -4 && lm_idiv(5, 0) == 0);
  CHECK(lm_idiv(INT32_MIN, 1) == INT32_MIN && lm_idiv(INT32_MAX, 2) == 1073741823 &&
        lm_idiv(INT32_MIN, 2) == -1073741824);
  CHECK(lm_imod(-7, 3) == 2 && lm_imod(7, -3) == -2 && lm_imod(INT32_MAX, 10) == 7);
  CHECK(lm_iadd(INT32_MAX, 1) == INT32_MIN && lm_clamp(-3, 5) == 0 && lm_clamp(9, 5) == 4);
  for (int32_t a = -50; a < 50; a++)
    for (int32_t b = 1; b < 20; b++)
      CHECK(lm_idiv(a, b) == (int32_t)floor((double)a / b));
}

int main(void) {
  test_functions();
  test_edges();
  test_softmax();
  test_pow();
  test_bf16();
  test_integers();
  return 0;
}
