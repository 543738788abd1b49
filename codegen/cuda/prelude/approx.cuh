// approx.cuh - elementary functions by the approximations of the special function unit, without
// branches or tables.
//
// lm_NAME_f32 has a relative error of at most 2^-20.5. lm_NAME_bf16 serves operations whose result
// is bf16 and has at most 2^-16, a hundredth of what rounding to bf16 loses (2^-9). Both bounds
// follow from the bounds of PTX for the approximations (device.cuh); the functions of simt.h have
// errors as large. Infinities and NaN follow IEEE 754. Results below 2^-126 are 0 or exact.
//
// tanh.approx is not used: gelu and the logistic function compute 1 + tanh(x), which is as small as
// the error of tanh.approx, 2^-11, where tanh(x) is close to -1.
#define LM_LOG2E 0x1.715476p0f
#define LM_LOG2E_REST 0x1.4ae0cp-26f

// 2^n 2^f, n = floor(x log2 e) in [-126, 126], which saturation limits; the rest is left to f.
LM_INLINE float lm_exp_f32(float x) {
  float j = lm_fma_down(lm_saturate(lm_fma(x, LM_LOG2E / 252.0f, 0.5f)), 252.0f, 0x1.800002p23f);
  float n = j - (0x1.8p23f + 127.0f);
  float f = lm_fma(x, LM_LOG2E_REST, lm_fma(x, LM_LOG2E, -n));
  return lm_exp2_approx(f) * lm_of_bits(lm_bits(j) << 23);
}
LM_INLINE float lm_exp_bf16(float x) {
  return lm_exp2_approx(x * LM_LOG2E);
}

// The integer nearest to x * unit; the result is the same wherever this is inlined.
LM_INLINE float lm_whole(float x, float unit) {
  return lm_fma(x, unit, 0x1.8p23f) - 0x1.8p23f;
}
// The multiple of ln 2 nearest to a maximum score; itself if no key is visible.
LM_INLINE float lm_binade_of(float top) {
  return top > -1e29f ? lm_whole(top, LM_LOG2E) * 0x1.62e43p-1f : top;
}
// A weight of attention, at most sqrt(2), to the nearest of the e4m3 numbers times 2^-8.
LM_INLINE float lm_weight_e4m3(float p) {
  float binade = lm_of_bits(lm_bits(p) & 0x7f800000u);
  float to = (binade > 0x1p-14f ? binade : 0x1p-14f) * 0x1.8p20f;
  return (p + to) - to;
}

LM_INLINE float lm_logistic_f32(float x) {
  return lm_reciprocal_approx(1.0f + lm_exp_f32(-x));
}
LM_INLINE float lm_logistic_bf16(float x) {
  return lm_reciprocal_approx(1.0f + lm_exp2_approx(-LM_LOG2E * x));
}

// t / (t + 2) with t = e^(2|x|) - 1, which keeps small x exact.
LM_INLINE float lm_tanh_f32(float x) {
  float t = lm_tanh_part(__builtin_fabsf(x));
  return __builtin_copysignf(t * lm_reciprocal_approx(t + 2.0f), x);
}
// 1 - 2 / (e^(2|x|) + 1), which loses digits near 0; there x - x^3 / 3.
LM_INLINE float lm_tanh_bf16(float x) {
  float a = __builtin_fabsf(x);
  float far = lm_fma(-2.0f, lm_reciprocal_approx(1.0f + lm_exp2_approx(2.0f * LM_LOG2E * a)), 1.0f);
  float near = lm_fma(x * x, -1.0f / 3.0f, 1.0f) * x;
  return a < 0.0625f ? near : __builtin_copysignf(far, x);
}
