// half.c - see half.h.
#include "runtime/cpu/half.h"

#include "contract/floats.h"
#include "runtime/base/processors.h"
#include <stdbool.h>

static void widen(const uint16_t *from, int64_t stride, int64_t n, float *to) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++)
    to[i] = lm_f16_load(from[i * stride]);
}

static void narrow(const float *from, int64_t n, int64_t stride, uint16_t *to) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++)
    to[i * stride] = lm_f16_round(from[i]);
}

#ifdef __x86_64__
#include <immintrin.h>

enum {
  LANES = 8,
  COPIED = 64
};
#define WITH_F16C __attribute__((target("avx,f16c")))

WITH_F16C static void widen_8(const uint16_t *from, float *to) {
  _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)));
}

// A NaN becomes the one of lm_f16_round: the instruction would keep a part of its digits.
WITH_F16C static void narrow_8(const float *from, uint16_t *to) {
  const __m256 sign = _mm256_set1_ps(-0.0f), quiet = _mm256_set1_ps(__builtin_nanf(""));
  __m256 x = _mm256_loadu_ps(from);
  __m256 nan = _mm256_or_ps(_mm256_and_ps(x, sign), quiet);
  x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

// Elements that are not adjacent are copied first, many at a time: a load that follows the stores
// of its parts at once would wait for them.
WITH_F16C static int64_t widen_by_8(const uint16_t *from, int64_t stride, int64_t n, float *to) {
  uint16_t v[COPIED];
  int64_t i = 0;
  for (; stride == 1 && i + LANES <= n; i += LANES)
    widen_8(from + i, to + i);
  for (; stride != 1 && i + COPIED <= n; i += COPIED) {
    for (int k = 0; k < COPIED; k++)
      v[k] = from[(i + k) * stride];
    for (int k = 0; k < COPIED; k += LANES)
      widen_8(v + k, to + i + k);
  }
  return i;
}

WITH_F16C static int64_t narrow_by_8(const float *from, int64_t n, int64_t stride, uint16_t *to) {
  uint16_t v[COPIED];
  int64_t i = 0;
  for (; stride == 1 && i + LANES <= n; i += LANES)
    narrow_8(from + i, to + i);
  for (; stride != 1 && i + COPIED <= n; i += COPIED) {
    for (int k = 0; k < COPIED; k += LANES)
      narrow_8(from + i + k, v + k);
    for (int k = 0; k < COPIED; k++)
      to[(i + k) * stride] = v[k];
  }
  return i;
}
#else
static bool has_f16c(void) {
  return false;
}
static int64_t widen_by_8(const uint16_t *from, int64_t stride, int64_t n, float *to) {
  return 0;
}
static int64_t narrow_by_8(const float *from, int64_t n, int64_t stride, uint16_t *to) {
  return 0;
}
#endif

void lm_f16_widen(const uint16_t *from, int64_t stride, int64_t n, float *to) {
  int64_t done = lm_x86_64_has_f16c() ? widen_by_8(from, stride, n, to) : 0;
  widen(from + done * stride, stride, n - done, to + done);
}

void lm_f16_narrow(const float *from, int64_t n, int64_t stride, uint16_t *to) {
  int64_t done = lm_x86_64_has_f16c() ? narrow_by_8(from, n, stride, to) : 0;
  narrow(from + done, n - done, stride, to + done * stride);
}
