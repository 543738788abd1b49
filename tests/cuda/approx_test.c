// approx_test.c - the functions of approx.cuh against libm in double. The shim's approximations are
// wrong by the bounds of PTX, so bounds that hold here hold on a device.
#include <math.h>
#include <stdio.h>
#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "contract/floats.h"
#include "codegen/common/prelude/math.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/approx.cuh"
#pragma GCC diagnostic pop
#include "tests/codegen/sweep.h"
#include "tests/runtime/check.h"

static const double F32 = 0x1.6a09e6p-21; // 2^-20.5
static const double BF16 = 0x1p-16;

static const sweep_case cases[] = {
    {"exp_f32", lm_exp_f32, exp, 0, 88.7f, F32},
    {"exp_f32", lm_exp_f32, exp, -0.f, -87.3f, F32},
    {"exp_bf16", lm_exp_bf16, exp, 0, 88.7f, BF16},
    {"exp_bf16", lm_exp_bf16, exp, -0.f, -87.3f, BF16},
    {"logistic_f32", lm_logistic_f32, logistic64, 0, INFINITY, F32},
    {"logistic_f32", lm_logistic_f32, logistic64, -0.f, -87.3f, F32},
    {"logistic_bf16", lm_logistic_bf16, logistic64, 0, INFINITY, BF16},
    {"logistic_bf16", lm_logistic_bf16, logistic64, -0.f, -87.3f, BF16},
    {"tanh_f32", lm_tanh_f32, tanh, 0x1p-120f, INFINITY, F32},
    {"tanh_f32", lm_tanh_f32, tanh, -0x1p-120f, -INFINITY, F32},
    {"tanh_bf16", lm_tanh_bf16, tanh, 0x1p-120f, INFINITY, BF16},
    {"tanh_bf16", lm_tanh_bf16, tanh, -0x1p-120f, -INFINITY, BF16},
    {"rsqrt", lm_rsqrt_approx, rsqrt64, 0x1p-149f, 0x1.fffffep127f, F32},
};

static double relative_error(float got, double want) {
  return (double)got == want ? 0 : fabs((double)got - want) / fabs(want);
}

static void sweep(const sweep_case *c) {
  float at;
  double worst = sweep_worst(c, 1000000, relative_error, &at);
  printf("%s: 2^%.1f at %.9g\n", c->name, log2(worst), (double)at);
  CHECK(worst <= c->bound);
}

// 1 + tanh(x) and 1 - logistic(x) for negative and positive x, the cancellations of gelu and silu.
static void test_cancellation(void) {
  for (float x = -6; x < 0; x += 0x1p-10f) {
    double gelu = 1 + tanh((double)x);
    CHECK(relative_error(1 + lm_tanh_bf16(x), gelu) < 0x1p-22 / gelu + 0x1p-17);
    double silu = logistic64((double)x);
    CHECK(fabs(1 - (double)lm_logistic_bf16(-x) - silu) < 0x1p-21);
  }
}

static void test_limits(void) {
  CHECK(lm_exp_f32(INFINITY) == INFINITY && lm_exp_bf16(INFINITY) == INFINITY);
  CHECK(lm_exp_f32(89) == INFINITY && lm_exp_bf16(89) == INFINITY);
  CHECK(lm_exp_f32(-INFINITY) == 0 && lm_exp_bf16(-INFINITY) == 0);
  CHECK(lm_exp_f32(-1e30f) == 0 && lm_exp_bf16(-1e30f) == 0);
  CHECK(lm_exp_f32(0) == 1 && lm_exp_bf16(0) == 1);
  CHECK(isnan(lm_exp_f32(NAN)) && isnan(lm_exp_bf16(NAN)));
  CHECK(lm_logistic_f32(-INFINITY) == 0 && lm_logistic_bf16(-INFINITY) == 0);
  CHECK(lm_logistic_f32(-100) == 0 && lm_logistic_bf16(-100) == 0);
  CHECK(isnan(lm_logistic_f32(NAN)) && isnan(lm_logistic_bf16(NAN)));
  CHECK(lm_tanh_f32(0) == 0 && lm_tanh_bf16(0) == 0 && signbit(lm_tanh_bf16(-0.f)));
  CHECK(isnan(lm_tanh_f32(NAN)) && isnan(lm_tanh_bf16(NAN)));
  CHECK(lm_rsqrt_approx(0) == INFINITY && lm_rsqrt_approx(INFINITY) == 0);
  CHECK(isnan(lm_rsqrt_approx(-1)));
}

int main(void) {
  for (int i = 0; i < (int)LM_COUNT(cases); i++)
    sweep(&cases[i]);
  test_cancellation();
  test_limits();
}
