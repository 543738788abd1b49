// types.h - scalar types of generated kernels, bfloat16, and integer arithmetic that wraps around
// and never traps.
typedef __INT8_TYPE__ int8_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;

LM_INLINE uint32_t lm_f32_bits(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
LM_INLINE float lm_f32_of_bits(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

// bfloat16 is the upper half of a float32. Rounding is to nearest, ties to even; a NaN remains a
// NaN. On CPUs numbers below 2^-126 become zero of their sign, as the instructions of AVX512-BF16
// and AMX make them; GPUs keep them.
LM_INLINE float lm_bf16_load(uint16_t h) {
  return lm_f32_of_bits((uint32_t)h << 16);
}
#ifdef __CUDACC__
// The upper half is x, the lower one 0: one instruction.
LM_INLINE float lm_bf16_rounded(float x) {
  uint32_t u;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(x), "f"(0.0f));
  return lm_f32_of_bits(u);
}
LM_INLINE uint16_t lm_bf16_round(float x) {
  return (uint16_t)(lm_f32_bits(lm_bf16_rounded(x)) >> 16);
}
#else
LM_INLINE uint16_t lm_bf16_round(float x) {
  uint32_t u = lm_f32_bits(x);
  uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  rounded &= ~(-(uint32_t) !(u & 0x7f800000u) >> 1);
  return (uint16_t)((x == x ? rounded : u | 0x400000u) >> 16);
}
LM_INLINE float lm_bf16_rounded(float x) {
  return lm_bf16_load(lm_bf16_round(x));
}
#endif

LM_INLINE int32_t lm_iadd(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a + (uint32_t)b);
}
LM_INLINE int32_t lm_isub(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a - (uint32_t)b);
}
LM_INLINE int32_t lm_imul(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a * (uint32_t)b);
}
// floor(a / b), 0 for b = 0. A non-integral quotient is at least 1 / |b| away from every integer,
// and its rounding to double moves it by at most 2^-53 |a / b| <= 2^-22 / |b|, so it reaches none.
LM_INLINE int32_t lm_idiv(int32_t a, int32_t b) {
  double q = __builtin_floor((double)a / (double)(b ? b : 1));
  return b ? (int32_t)(int64_t)q : 0;
}
LM_INLINE int32_t lm_imod(int32_t a, int32_t b) {
  return b ? lm_isub(a, lm_imul(b, lm_idiv(a, b))) : 0;
}
// Truncates; saturates beyond the range; 0 for NaN.
LM_INLINE int32_t lm_int_f32(float x) {
  float y = x == x ? x : 0.0f;
  y = y < -0x1p31f ? -0x1p31f : y;
  y = y > 0x1.fffffep30f ? 0x1.fffffep30f : y;
  return x >= 0x1p31f ? 0x7fffffff : (int32_t)y;
}
LM_INLINE int32_t lm_int_f64(double x) {
  double y = x == x ? x : 0.0;
  y = y < -0x1p31 ? -0x1p31 : y;
  return (int32_t)(y > 2147483647.0 ? 2147483647.0 : y);
}
LM_INLINE int32_t lm_imax(int32_t a, int32_t b) {
  return a > b ? a : b;
}
// The nearest i8 or u8.
LM_INLINE int32_t lm_i8_clamp(int32_t x) {
  return x < -128 ? -128 : x > 127 ? 127 : x;
}
LM_INLINE int32_t lm_u8_clamp(int32_t x) {
  return x < 0 ? 0 : x > 255 ? 255 : x;
}
// An index clamped to [0, n).
LM_INLINE int64_t lm_clamp(int64_t i, int64_t n) {
  return i < 0 ? 0 : i >= n ? n - 1 : i;
}
LM_INLINE int64_t lm_min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
