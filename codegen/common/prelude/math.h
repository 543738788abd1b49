// math.h - float32 functions without branches and table look-ups, so that loops over them
// vectorise. Errors are in units in the last place, measured against libm in double; infinities and
// NaN follow IEEE 754.
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

#if defined(__FMA__) || defined(__aarch64__)
#define LM_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define LM_FMA64(a, b, c) __builtin_fma(a, b, c)
#else
#define LM_FMA(a, b, c) ((a) * (b) + (c))
#define LM_FMA64(a, b, c) ((a) * (b) + (c))
#endif

LM_INLINE uint32_t lm_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
LM_INLINE float lm_of_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
LM_INLINE uint64_t lm_bits64(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, 8);
  return u;
}
LM_INLINE double lm_of_bits64(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, 8);
  return x;
}
// Splits x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 + bias rounds to an integer, and leaves
// n + bias in the low bits of the sum, which it returns. The upper part of ln 2 has 9 bits, so its
// product with n is exact.
LM_INLINE uint32_t lm_exp_reduce(float x, float bias, float *out_r) {
  float t = LM_FMA(x, 0x1.715476p0f, 0x1.8p23f + bias);
  float n = t - (0x1.8p23f + bias);
  *out_r = LM_FMA(n, 2.12194440e-4f, LM_FMA(n, -0.693359375f, x));
  return lm_bits(t);
}
// k (e^r - 1 - r) / r^2 for a power of two k: minimax, so that the error of e^r is below 2^-28
LM_INLINE float lm_exp_poly(float r, float k) {
  float p = LM_FMA(k * 0x1.6b6e18p-10f, r, k * 0x1.122fc2p-7f);
  p = LM_FMA(p, r, k * 0x1.555688p-5f);
  p = LM_FMA(p, r, k * 0x1.5554a4p-3f);
  return LM_FMA(p, r, k * 0.5f);
}
// e^x for x from -86.6 to 89 is *out_scale times the result: 2^(n - 1) times 2 e^r, since n may be
// 128.
LM_INLINE float lm_exp_parts(float x, float *out_scale) {
  float r;
  uint32_t n = lm_exp_reduce(x, 126.0f, &r);
  *out_scale = lm_of_bits(n << 23);
  return LM_FMA(LM_FMA(lm_exp_poly(r, 2.0f), r, 2.0f), r, 2.0f);
}
// e^x, 0.9 ulp (1.2 without FMA); results below 2^-125 are 0.
LM_INLINE float lm_exp(float x) {
  float scale;
  float e = lm_exp_parts(x > 89.0f ? 89.0f : x, &scale);
  return x < -86.6f ? 0.0f : e * scale;
}

// Natural logarithm, 1 ulp (Cephes): x = 2^k m, m in [sqrt 1/2, sqrt 2).
LM_INLINE float lm_log(float x) {
  int tiny = x < 0x1p-126f;
  uint32_t u = lm_bits(tiny ? x * 0x1p23f : x) - 0x3f3504f3u;
  float k = (float)((int32_t)u >> 23) - (tiny ? 23.0f : 0.0f);
  float f = lm_of_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float z = f * f;
  float p = LM_FMA(7.0376836292e-2f, f, -1.1514610310e-1f);
  p = LM_FMA(p, f, 1.1676998740e-1f);
  p = LM_FMA(p, f, -1.2420140846e-1f);
  p = LM_FMA(p, f, 1.4249322787e-1f);
  p = LM_FMA(p, f, -1.6668057665e-1f);
  p = LM_FMA(p, f, 2.0000714765e-1f);
  p = LM_FMA(p, f, -2.4999993993e-1f);
  p = LM_FMA(p, f, 3.3333331174e-1f);
  float y = LM_FMA(k, -2.12194440e-4f, f * z * p);
  y = LM_FMA(k, 0.693359375f, f + LM_FMA(-0.5f, z, y));
  y = x > 0x1.fffffep127f ? x : y;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x < 0.0f || x != x ? __builtin_nanf("") : y;
}

// log(1 + x), 2 ulp: the logarithm of the rounded sum plus the rounding error divided by the sum.
LM_INLINE float lm_log1p(float x) {
  float sum = 1.0f + x;
  float error = x - (sum - 1.0f);
  float more = x > -1.0f && x < 0x1p24f ? error / sum : 0.0f;
  float y = lm_log(sum) + more;
  return x == 0.0f ? x : y;
}

// e^(2 a) - 1 for a >= 0, exact for small a; beyond 9.5 as at 9.5, where tanh is 1.
LM_INLINE float lm_tanh_part(float a) {
  float r;
  uint32_t n = lm_exp_reduce(a > 9.5f ? 19.0f : 2.0f * a, 127.0f, &r);
  float m = LM_FMA(lm_exp_poly(r, 1.0f), r * r, r);
  float s = lm_of_bits(n << 23);
  return LM_FMA(m, s, s - 1.0f);
}
// tanh, 2.6 ulp: t / (t + 2) with t = e^(2|x|) - 1
LM_INLINE float lm_tanh(float x) {
  float t = lm_tanh_part(__builtin_fabsf(x));
  return __builtin_copysignf(t / (t + 2.0f), x);
}

// 1 / (1 + e^-x), 2.5 ulp: relative, so that log(logistic(x)) is exact for negative x too. Above 80
// it is 1, below -89 it is 0.
LM_INLINE float lm_logistic(float x) {
  float scale, y = x > 80.0f ? 80.0f : x;
  float e = lm_exp_parts(y < -89.0f ? 89.0f : -y, &scale);
  return 1.0f / LM_FMA(e, scale, 1.0f);
}

// Error function, 1 ulp: odd polynomial near 0, 1 - e^(polynomial) beyond (after N. Juffa).
LM_INLINE float lm_erf(float x) {
  float a = __builtin_fabsf(x);
  float s = x * x;
  float r = LM_FMA(-1.72853470e-5f, a, 3.83197126e-4f);
  r = LM_FMA(r, s, LM_FMA(-3.88396438e-3f, a, 2.42546219e-2f));
  r = LM_FMA(r, a, -1.06777877e-1f);
  r = LM_FMA(r, a, -6.34846687e-1f);
  r = LM_FMA(r, a, -1.28717512e-1f);
  float far = __builtin_copysignf(1.0f - lm_exp(LM_FMA(r, a, -a)), x);
  float p = LM_FMA(-5.96761703e-4f, s, 4.99119423e-3f);
  p = LM_FMA(p, s, -2.67681349e-2f);
  p = LM_FMA(p, s, 1.12819925e-1f);
  p = LM_FMA(p, s, -3.76125336e-1f);
  p = LM_FMA(p, s, 1.28379166e-1f);
  float near = LM_FMA(p, x, x);
  return a > 0.927734375f ? far : near;
}

// Splits x = n pi/2 + r in double: n * (the upper 25 bits of pi/2) is exact for |x| < 2^28. Beyond,
// where neighbours of x in f32 are 32 and more apart, r is NaN.
LM_INLINE float lm_trig_reduce(float x, uint32_t *out_quadrant) {
  double t = (double)x * 0.63661977236758134308 + 0x1.8p52;
  double n = t - 0x1.8p52;
  *out_quadrant = (uint32_t)lm_bits64(t);
  double r = (double)x - n * 1.57079631090164184570 - n * 1.58932547735281966916e-8;
  return __builtin_fabsf(x) < 0x1p28f ? (float)r : __builtin_nanf("");
}
LM_INLINE float lm_sin_poly(float r, float s) {
  float p = LM_FMA(-1.9515295891e-4f, s, 8.3321608736e-3f);
  return LM_FMA(LM_FMA(p, s, -1.6666654611e-1f), s * r, r);
}
LM_INLINE float lm_cos_poly(float s) {
  float p = LM_FMA(2.443315711809948e-5f, s, -1.388731625493765e-3f);
  return LM_FMA(LM_FMA(p, s, 4.166664568298827e-2f), s * s, LM_FMA(-0.5f, s, 1.0f));
}
LM_INLINE float lm_quarter(float r, uint32_t quadrant) {
  float s = r * r;
  float y = quadrant & 1u ? lm_cos_poly(s) : lm_sin_poly(r, s);
  return quadrant & 2u ? -y : y;
}
// sine and cosine, 2 ulp for |x| < 2^28; NaN beyond
LM_INLINE float lm_sin(float x) {
  uint32_t q;
  float r = lm_trig_reduce(x, &q);
  return lm_quarter(r, q);
}
LM_INLINE float lm_cos(float x) {
  uint32_t q;
  float r = lm_trig_reduce(x, &q);
  return lm_quarter(r, q + 1u);
}

// log2 of a positive normal double, absolute error below 1e-11: 2 artanh(s) / ln 2 with s = (m - 1)
// / (m + 1)
LM_INLINE double lm_log2_wide(double x) {
  uint64_t u = lm_bits64(x) - 0x3fe6a09e667f3bcdull;
  double k = (double)((int32_t)(u >> 32) >> 20);
  double m = lm_of_bits64((u & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  double s = (m - 1.0) / (m + 1.0);
  double z = s * s;
  double p = LM_FMA64(z, 1.0 / 13, 1.0 / 11);
  p = LM_FMA64(p, z, 1.0 / 9);
  p = LM_FMA64(p, z, 1.0 / 7);
  p = LM_FMA64(p, z, 1.0 / 5);
  p = LM_FMA64(p, z, 1.0 / 3);
  p = LM_FMA64(p, z, 1.0);
  return LM_FMA64(s * p, 2.8853900817779268147, k);
}
// 2^y for |y| <= 160, relative error below 1e-10
LM_INLINE double lm_exp2_wide(double y) {
  double t = y + 0x1.8p52;
  double n = t - 0x1.8p52;
  double r = (y - n) * 0.69314718055994530942;
  double p = LM_FMA64(r, 1.0 / 40320, 1.0 / 5040);
  p = LM_FMA64(p, r, 1.0 / 720);
  p = LM_FMA64(p, r, 1.0 / 120);
  p = LM_FMA64(p, r, 1.0 / 24);
  p = LM_FMA64(p, r, 1.0 / 6);
  p = LM_FMA64(p, r, 0.5);
  p = LM_FMA64(p, r, 1.0);
  p = LM_FMA64(p, r, 1.0);
  return p * lm_of_bits64((lm_bits64(t) << 52) + 0x3ff0000000000000ull);
}
// x^y, 1 ulp: 2^(y log2 |x|) in double, then the signs, zeros and infinities of IEEE 754.
LM_INLINE float lm_pow(float x, float y) {
  float inf = __builtin_inff();
  float a = __builtin_fabsf(x);
  float half = y * 0.5f;
  double e = (double)y * lm_log2_wide((double)(a > 0.0f && a < inf ? a : 1.0f));
  e = e < -160.0 ? -160.0 : e;
  e = e > 160.0 ? 160.0 : e;
  float z = (float)lm_exp2_wide(e);
  float edge = (a == 0.0f) == (y > 0.0f) ? 0.0f : inf;
  z = (a == 0.0f || a == inf) ? edge : z;
  int integral = __builtin_floorf(y) == y;
  int odd = integral && __builtin_floorf(half) != half;
  z = (lm_bits(x) >> 31) && odd ? -z : z;
  z = x < 0.0f && a < inf && !integral ? __builtin_nanf("") : z;
  z = x != x || y != y ? __builtin_nanf("") : z;
  return y == 0.0f || x == 1.0f ? 1.0f : z;
}

LM_INLINE float lm_sqrt(float x) {
  return __builtin_sqrtf(x);
}
LM_INLINE float lm_rsqrt(float x) {
  return 1.0f / __builtin_sqrtf(x);
}
LM_INLINE float lm_floor(float x) {
  return __builtin_floorf(x);
}
LM_INLINE float lm_round(float x) {
  return __builtin_rintf(x);
}
LM_INLINE float lm_binade(float x) {
  return lm_of_bits(lm_bits(x) & 0x7f800000u);
}
LM_INLINE float lm_mod(float x, float y) {
  return x - y * __builtin_floorf(x / y);
}

// float64 serves the few scalars that need it, by the C library's functions.
LM_INLINE double lm_exp64(double x) {
  return __builtin_exp(x);
}
LM_INLINE double lm_log64(double x) {
  return __builtin_log(x);
}
LM_INLINE double lm_log1p64(double x) {
  return __builtin_log1p(x);
}
LM_INLINE double lm_tanh64(double x) {
  return __builtin_tanh(x);
}
LM_INLINE double lm_logistic64(double x) {
  return 1.0 / (1.0 + __builtin_exp(-x));
}
LM_INLINE double lm_erf64(double x) {
  return __builtin_erf(x);
}
LM_INLINE double lm_sin64(double x) {
  return __builtin_sin(x);
}
LM_INLINE double lm_cos64(double x) {
  return __builtin_cos(x);
}
LM_INLINE double lm_pow64(double x, double y) {
  return __builtin_pow(x, y);
}
LM_INLINE double lm_sqrt64(double x) {
  return __builtin_sqrt(x);
}
LM_INLINE double lm_rsqrt64(double x) {
  return 1.0 / __builtin_sqrt(x);
}
LM_INLINE double lm_floor64(double x) {
  return __builtin_floor(x);
}
LM_INLINE double lm_round64(double x) {
  return __builtin_rint(x);
}
LM_INLINE double lm_binade64(double x) {
  return lm_of_bits64(lm_bits64(x) & 0x7ff0000000000000ull);
}
LM_INLINE double lm_mod64(double x, double y) {
  return x - y * __builtin_floor(x / y);
}
