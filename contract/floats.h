// floats.h - conversion between f32 and narrower types: the floats f16, e4m3, e5m2 and e8m0, in
// integers, and the maps dyn8 and udyn8. Equal bits on every machine. Generated kernels contain
// this text.
//
// A float is rounded to nearest, ties to even; subnormals are rounded like other numbers, NaN
// remains NaN and becomes quiet; in f16 it keeps its sign. e4m3 is the type of OCP's 8-bit formats
// without infinities (448 is the largest), e5m2 has the exponent of f16 (57344 is the largest).
// Both saturate: a larger number, also an infinity, becomes the largest of its sign. Beyond 65504,
// f16 becomes infinite.
//
// With LM_HARDWARE_CODES the instructions of a GPU round to e4m3 and e5m2
// (codegen/cuda/prelude/codes.cuh), to the same codes.
#ifndef LM_CONTRACT_FLOATS_H
#define LM_CONTRACT_FLOATS_H
#ifdef LM_INLINE
#define LM_FLOATS LM_INLINE
#else
#include <stdint.h>
#define LM_FLOATS static inline
#endif

// The code of x in a type of a sign, `exponent` bits and `mantissa` bits, in the low bits of the
// result. Codes without the sign: `most` is the largest number's, `beyond` that of larger ones.
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

// The number of a code of such a type. Codes above `most` are infinity, the first, and NaN.
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
  u = magnitude > most ? (magnitude > most + 1u ? 0x7fc00000u : 0x7f800000u) | digits : u;
  u |= (code >> (exponent + mantissa)) << 31;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

LM_FLOATS uint16_t lm_f16_round(float x) {
  return (uint16_t)lm_float_encode(x, 5, 10, 0x7bffu, 0x7c00u, 0x7e00u);
}
LM_FLOATS float lm_f16_load(uint16_t code) {
  return lm_float_decode(code, 5, 10, 0x7bffu);
}

// Any NaN becomes the one of code 127.
#define LM_CODE(NAME, EXPONENT, MANTISSA, MOST)                                                    \
  LM_FLOATS uint8_t lm_##NAME##_round(float x) {                                                   \
    uint32_t code = lm_float_encode(x, EXPONENT, MANTISSA, MOST, MOST, 127);                       \
    return (uint8_t)(x == x ? code : 127u);                                                        \
  }                                                                                                \
  LM_FLOATS float lm_##NAME##_load(uint8_t code) {                                                 \
    return lm_float_decode(code, EXPONENT, MANTISSA, MOST);                                        \
  }
#ifndef LM_HARDWARE_CODES
LM_CODE(e4m3, 4, 3, 0x7eu)
LM_CODE(e5m2, 5, 2, 0x7bu)
#endif

// e8m0, OCP's type of the scales of MX formats, has the powers of 2 from 2^-127, code 0, to 2^127,
// code 254; code 255 is NaN. The next power of 2 of a number, of equally near ones that of the even
// code; of a smaller number, also a negative one, it is 2^-127.
LM_FLOATS uint8_t lm_e8m0_round(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  uint32_t magnitude = u & 0x7fffffffu, digits = magnitude & 0x7fffffu;
  uint32_t code = magnitude >> 23;
  // Subnormal numbers of f32 begin with 2^-127, which is half of the first normal one.
  uint32_t half = code ? 0x400000u : 0x600000u;
  uint32_t up = digits > half || (digits == half && code & 1u);
  code = code + up < 254u ? code + up : 254u;
  code = u >> 31 ? 0u : code;
  return (uint8_t)(magnitude > 0x7f800000u ? 255u : code);
}
LM_FLOATS float lm_e8m0_load(uint8_t code) {
  uint32_t u = code ? (uint32_t)code << 23 : 0x400000u;
  float x;
  u = code == 255 ? 0x7fc00000u : u;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

// dyn8 and udyn8 are the dynamic maps of bitsandbytes (Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"): numbers in [-1, 1] and in [0, 1], of which the seven decades below 1
// have 1, 2, 4, … 64 each (udyn8: 2, 4, … 128), at equal distances. A magnitude has a rank r:
//   r = 2^e + j, 0 <= j < 2^e:  10^(e - 6) (0.1 + 0.9 (j + 1/2) / 2^e)        (udyn8: 10^(e - 7))
//                            =  (18 r + 9 - 16 * 2^e) 5^e unit                 unit: 5e-8 (5e-9)
// Rank 2^7 (udyn8: 2^8) is 1, and rank 0 (udyn8: 1) is 0. The code of dyn8 is 127 + r or 127 - r;
// -1 has none, and becomes -0.993. The code of udyn8 is r - 1.

// DO(e, 5^e) for each decade but the first.
#define LM_DECADES(DO)                                                                             \
  DO(1, 5) DO(2, 25) DO(3, 125) DO(4, 625) DO(5, 3125) DO(6, 15625) DO(7, 78125)

// The magnitude of rank r; rank 2^top is 1.
LM_FLOATS float lm_dynamic_load(int32_t r, int32_t top, float unit) {
  int32_t low = 1, five = 1;
#define LM_DECADE(E, FIVE)                                                                         \
  low = r >= 1 << E ? 1 << E : low;                                                                \
  five = r >= 1 << E ? FIVE : five;
  LM_DECADES(LM_DECADE)
#undef LM_DECADE
  float x = (float)(18 * r + 9 - 16 * low) * ((float)five * unit);
  x = r >= 1 << top ? 1.0f : x;
  return r < top - 6 ? 0.0f : x;
}

// The rank of the number nearest to x >= 0. The least number of decade e begins at the midpoint
// between it and the number before, (10 * 2^e + 18) 5^(e - 1) unit.
LM_FLOATS int32_t lm_dynamic_round(float x, int32_t top, float unit) {
  int32_t low = 1, five = 1;
#define LM_DECADE(E, FIVE)                                                                         \
  low = x > (float)((10 << E) + 18) * ((float)(FIVE / 5) * unit) ? 1 << E : low;                   \
  five = low == 1 << E ? FIVE : five;
  LM_DECADES(LM_DECADE)
#undef LM_DECADE
  float steps = (x / ((float)five * unit) + (float)(16 * low)) * (1.0f / 18);
  steps = steps > (float)low ? steps : (float)low;
  steps = steps < (float)(2 * low - 1) ? steps : (float)(2 * low - 1);
  int32_t r = (int32_t)steps, last = (1 << top) - 1;
  float greatest = lm_dynamic_load(last, top, unit), least = lm_dynamic_load(top - 6, top, unit);
  r = r < last ? r : last;
  r = r > top - 6 ? r : top - 6;
  r = x > 0.5f * (greatest + 1.0f) ? last + 1 : r;
  return x > 0.5f * least ? r : top - 7;
}

LM_FLOATS uint8_t lm_dyn8_round(float x) {
  int32_t r = lm_dynamic_round(x < 0.0f ? -x : x, 7, 5e-8f);
  int32_t code = x < 0.0f ? 127 - r : 127 + r;
  return (uint8_t)(code > 0 ? code : 0);
}
LM_FLOATS float lm_dyn8_load(uint8_t code) {
  int32_t r = (int32_t)code - 127;
  float x = lm_dynamic_load(r < 0 ? -r : r, 7, 5e-8f);
  return r < 0 ? -x : x;
}
LM_FLOATS uint8_t lm_udyn8_round(float x) {
  return (uint8_t)(lm_dynamic_round(x, 8, 5e-9f) - 1);
}
LM_FLOATS float lm_udyn8_load(uint8_t code) {
  return lm_dynamic_load((int32_t)code + 1, 8, 5e-9f);
}
#endif
