// floats.h - conversion between f32 and the narrower floats f16, e4m3 and e5m2, in integers: equal
// bits on every machine, whatever its rounding mode. Generated kernels contain this text.
//
// A float is rounded to nearest, ties to even; subnormals are rounded like other numbers, NaN
// remains NaN and keeps its sign. e4m3 is the type of OCP's 8-bit formats without infinities (448
// is the largest), e5m2 has the exponent of f16 (57344 is the largest). Both saturate: a larger
// number, also an infinity, becomes the largest of its sign. Beyond 65504, f16 becomes infinite.
#ifndef LM_CONTRACT_FLOATS_H
#define LM_CONTRACT_FLOATS_H
#ifdef LM_INLINE
#define LM_FLOATS LM_INLINE
#else
#include <stdint.h>
#define LM_FLOATS static inline
#endif

// The code of x: `most` is the code of the largest number, `beyond` that of larger ones.
LM_FLOATS uint32_t lm_float_encode(float x, int32_t exponent, int32_t mantissa, uint32_t most,
                                   uint32_t beyond, uint32_t nan) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  uint32_t magnitude = u & 0x7fffffffu;
  int32_t bias = (1 << (exponent - 1)) - 1;
  // Binades from the number up to the smallest normal one.
  int32_t below = 128 - bias - (int32_t)(magnitude >> 23);
  int32_t drop = 23 - mantissa + (below > 0 ? below : 0);
  uint32_t shift = (uint32_t)(drop < 25 ? drop : 25);
  uint32_t digits = (magnitude & 0x7fffffu) | 0x800000u;
  uint32_t rounded = (digits + (1u << (shift - 1)) - 1u + (digits >> shift & 1u)) >> shift;
  uint32_t code = rounded + ((uint32_t)(below < 0 ? -below : 0) << mantissa);
  code = code > most ? beyond : code;
  code = magnitude > 0x7f800000u ? nan : code;
  return code | (u >> 31) << (exponent + mantissa);
}

LM_FLOATS float lm_float_decode(uint32_t code, int32_t exponent, int32_t mantissa, uint32_t most) {
  uint32_t magnitude = code & ((1u << (exponent + mantissa)) - 1u);
  int32_t bias = (1 << (exponent - 1)) - 1;
  // The smallest subnormal number.
  uint32_t unit_bits = (uint32_t)(128 - bias - mantissa) << 23, small_bits;
  float unit, x;
  __builtin_memcpy(&unit, &unit_bits, 4);
  float small = (float)(int32_t)magnitude * unit;
  __builtin_memcpy(&small_bits, &small, 4);
  uint32_t digits = magnitude << (23 - mantissa);
  uint32_t u = magnitude >> mantissa ? digits + ((uint32_t)(127 - bias) << 23) : small_bits;
  u = magnitude > most ? 0x7f800000u | digits : u;
  u |= (code >> (exponent + mantissa)) << 31;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

#define LM_FLOAT(NAME, TYPE, EXPONENT, MANTISSA, MOST, BEYOND, NOT_A_NUMBER)                       \
  LM_FLOATS TYPE lm_##NAME##_round(float x) {                                                      \
    return (TYPE)lm_float_encode(x, EXPONENT, MANTISSA, MOST, BEYOND, NOT_A_NUMBER);               \
  }                                                                                                \
  LM_FLOATS float lm_##NAME##_load(TYPE code) {                                                    \
    return lm_float_decode(code, EXPONENT, MANTISSA, MOST);                                        \
  }
LM_FLOAT(f16, uint16_t, 5, 10, 0x7bffu, 0x7c00u, 0x7e00u)
LM_FLOAT(e4m3, uint8_t, 4, 3, 0x7eu, 0x7eu, 0x7fu)
LM_FLOAT(e5m2, uint8_t, 5, 2, 0x7bu, 0x7bu, 0x7eu)
#endif
