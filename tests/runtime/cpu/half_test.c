// half_test.c - conversions of f16 by instructions have the bits of contract/floats.h: all codes,
// the numbers between them, NaN with any digits, and random bits, with and without a stride.
#include "runtime/base/philox.h"
#include "runtime/cpu/half.h"
#include "runtime/base/dtype.h"
#include "tests/runtime/check.h"

enum {
  N = 1 << 20,
  STRIDE = 3
};

static void widen_check(const uint16_t *codes, int64_t stride, int64_t n) {
  float *got = lm_calloc((size_t)n, sizeof *got);
  lm_f16_widen(codes, stride, n, got);
  for (int64_t i = 0; i < n; i++) {
    float want = lm_f16_load(codes[i * stride]);
    CHECK(!memcmp(&got[i], &want, sizeof want));
  }
  lm_free(got);
}

static void narrow_check(const float *x, int64_t n, int64_t stride) {
  uint16_t *got = lm_calloc((size_t)(n * stride), sizeof *got);
  lm_f16_narrow(x, n, stride, got);
  for (int64_t i = 0; i < n * stride; i++)
    CHECK(got[i] == (i % stride ? 0 : lm_f16_round(x[i / stride])));
  lm_free(got);
}

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Each code, the midpoint after it, and the f32 beside both.
static int64_t numbers_near(float *out) {
  int64_t n = 0;
  for (uint32_t code = 0; code < 0x10000; code++) {
    float x = lm_f16_load((uint16_t)code), y = lm_f16_load((uint16_t)(code + 1));
    float middle = (float)(((double)x + (double)y) / 2);
    const float of[] = {x, middle};
    for (int k = 0; k < 2; k++)
      for (int side = -1; side <= 1; side++)
        out[n++] = side ? nextafterf(of[k], side * INFINITY) : of[k];
  }
  return n;
}

int main(void) {
  uint16_t *codes = lm_calloc(0x10000 * STRIDE + 5, sizeof *codes);
  for (uint32_t i = 0; i < 0x10000; i++)
    codes[i * STRIDE] = (uint16_t)i;
  widen_check(codes, STRIDE, 0x10000);
  for (uint32_t i = 0; i < 0x10000; i++)
    codes[i] = (uint16_t)i;
  widen_check(codes, 1, 0x10000);
  widen_check(codes + 0x7bfd, 1, 13);
  float *x = lm_calloc(N, sizeof *x);
  int64_t n = numbers_near(x);
  narrow_check(x, n, 1);
  narrow_check(x, n, STRIDE);
  for (uint32_t i = 0; i < N; i++)
    x[i] = of_bits(lm_philox_block(lm_philox_key(1, 2), i).v[0]);
  for (uint32_t i = 0; i < 64; i++)
    x[i] = of_bits((i % 2 ? 0xff800001u : 0x7f800001u) + (i << 17));
  narrow_check(x, N - 3, 1);
  lm_free(x);
  lm_free(codes);
}
