// floats_test.c - f16, e4m3, e5m2, e8m0, dyn8 and udyn8 (contract/floats.h) against a search in
// float64 among all the values of a type, whose formula is written here again; and the types that
// are rounded to by lm_dtype_round.
// Build: both
#include "runtime/base/dtype.h"
#include "tests/runtime/check.h"

typedef struct format {
  lm_dtype type;
  int exponent, mantissa;
  uint32_t most; // code of the largest number
  bool saturates;
} format;

static const format formats[] = {
    {LM_F16, 5, 10, 0x7bff, false}, {LM_E4M3, 4, 3, 0x7e, true}, {LM_E5M2, 5, 2, 0x7b, true}};

// The value of a code without its sign, up to `most`.
static double value_of(const format *f, uint32_t code) {
  uint32_t field = code >> f->mantissa, digits = code & ((1u << f->mantissa) - 1);
  int bias = (1 << (f->exponent - 1)) - 1;
  double m = digits + (field ? 1 << f->mantissa : 0);
  return ldexp(m, (int)(field ? field : 1) - bias - f->mantissa);
}

static float load(const format *f, uint32_t code) {
  return f->type == LM_F16    ? lm_f16_load((uint16_t)code)
         : f->type == LM_E4M3 ? lm_e4m3_load((uint8_t)code)
                              : lm_e5m2_load((uint8_t)code);
}

// The code of a number that is not negative; a tie goes to the even code.
static uint32_t nearest(const format *f, double x) {
  uint32_t low = 0, high = f->most;
  double beyond = 2 * value_of(f, f->most) - value_of(f, f->most - 1);
  double limit = (value_of(f, f->most) + beyond) / 2;
  if (x >= limit && !f->saturates)
    return f->most + 1;
  if (x >= value_of(f, f->most))
    return f->most;
  while (high - low > 1) {
    uint32_t half = (low + high) / 2;
    *(value_of(f, half) <= x ? &low : &high) = half;
  }
  double below = x - value_of(f, low), above = value_of(f, high) - x;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

static void encode_check(const format *f, float x) {
  uint32_t sign = signbit(x) ? 1u << (f->exponent + f->mantissa) : 0;
  uint32_t got = lm_dtype_bits(f->type, x), want = nearest(f, fabs((double)x)) | sign;
  bool same = isnan(x) ? isnan(load(f, got)) && (got & sign) == sign : got == want;
  if (isnan(x) && f->saturates)
    same = got == 127;
  if (same)
    return;
  fprintf(stderr, "%s of %a: %x, not %x\n", lm_dtype_name(f->type), (double)x, got, want);
  exit(1);
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void codes_check(const format *f) {
  uint32_t sign = 1u << (f->exponent + f->mantissa);
  for (uint32_t code = 0; code < sign; code++) {
    double x = load(f, code), y = load(f, code | sign);
    CHECK(code > f->most ? isnan(x) == (code != f->most + 1 || f->type == LM_E4M3)
                         : x == value_of(f, code));
    CHECK(isnan(x) ? isnan(y) && signbit((float)y) : y == -x && signbit((float)y));
    if (code <= f->most)
      CHECK(lm_dtype_bits(f->type, x) == code && lm_dtype_bits(f->type, y) == (code | sign));
  }
}

// Midpoints of neighbours, and the floats next to them.
static void midpoints_check(const format *f) {
  for (uint32_t code = 0; code <= f->most; code++) {
    double above =
        code < f->most ? value_of(f, code + 1) : 2 * value_of(f, code) - value_of(f, code - 1);
    float half = (float)((value_of(f, code) + above) / 2);
    for (int sign = -1; sign <= 1; sign += 2) {
      encode_check(f, (float)sign * half);
      encode_check(f, (float)sign * nextafterf(half, 0));
      encode_check(f, (float)sign * nextafterf(half, INFINITY));
    }
  }
}

// All f32 whose lower half is 0, one, or about a half: all bf16, subnormals, infinities and NaN.
static void inputs_check(const format *f) {
  static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (size_t k = 0; k < LM_COUNT(low); k++)
    for (uint32_t high = 0; high < 0x10000; high++)
      encode_check(f, float_of(high << 16 | low[k]));
  for (uint32_t code = 0; code < 0x10000; code++)
    encode_check(f, lm_f16_load((uint16_t)code));
}

static void ints_check(void) {
  static const double x[] = {-1e9, -129, -128.5, -128, -1.5, -0.5, 0, 1.9, 127, 128, 255, 256, 1e9};
  static const double i8[] = {-128, -128, -128, -128, -1, 0, 0, 1, 127, 127, 127, 127, 127};
  static const double u8[] = {0, 0, 0, 0, 0, 0, 0, 1, 127, 128, 255, 255, 255};
  for (size_t i = 0; i < LM_COUNT(x); i++) {
    CHECK(lm_dtype_round(LM_I8, x[i]) == i8[i] && lm_dtype_round(LM_U8, x[i]) == u8[i]);
    CHECK(lm_dtype_bits(LM_I8, x[i]) == (uint8_t)(int8_t)i8[i]);
  }
  CHECK(lm_dtype_round(LM_I8, NAN) == 0 && lm_dtype_round(LM_U8, NAN) == 0);
}

// ---- the maps dyn8 and udyn8

// The number of a code, by the definition of the map: of each decade the centers of equal parts.
static double dynamic_of(bool is_signed, int code) {
  int rank = is_signed ? abs(code - 127) : code + 1, top = is_signed ? 7 : 8, e = 0;
  while (rank >> (e + 1))
    e++;
  double parts = ldexp(1, e);
  double x = pow(10, e - (top - 1)) * (0.1 + 0.9 * (rank - parts + 0.5) / parts);
  x = e == top ? 1 : rank == top - 7 ? 0 : x;
  return is_signed && code < 127 ? -x : x;
}

// Every number is encoded by the nearest one of the map, up to the rounding of a midpoint.
static void dynamic_check(bool is_signed, float x) {
  lm_dtype t = is_signed ? LM_DYN8 : LM_UDYN8;
  double got = fabs(dynamic_of(is_signed, (int)lm_dtype_bits(t, x)) - (double)x), best = INFINITY;
  for (int code = 0; code < 256; code++)
    best = fmin(best, fabs(dynamic_of(is_signed, code) - (double)x));
  if (got <= best + 4e-7 * fabs((double)x))
    return;
  fprintf(stderr, "%s of %a: code %u\n", lm_dtype_name(t), (double)x, lm_dtype_bits(t, x));
  exit(1);
}

static void dynamic_checks(bool is_signed) {
  lm_dtype t = is_signed ? LM_DYN8 : LM_UDYN8;
  for (int code = 0; code < 256; code++) {
    double x = dynamic_of(is_signed, code);
    float y = is_signed ? lm_dyn8_load((uint8_t)code) : lm_udyn8_load((uint8_t)code);
    CHECK(fabs((double)y - x) <= 2.4e-7 * fabs(x));
    CHECK(lm_dtype_bits(t, y) == (uint32_t)code);
    float half = code < 255 ? (float)((x + dynamic_of(is_signed, code + 1)) / 2) : 1;
    dynamic_check(is_signed, half * (1 - 1e-6f));
    dynamic_check(is_signed, half * (1 + 1e-6f));
  }
  for (uint32_t i = 0; i < 5000; i++) {
    float x = ldexpf((float)(i * 2654435761u >> 8), -24 - (int)(i % 24));
    dynamic_check(is_signed, is_signed && i & 1 ? -x : x);
  }
  CHECK(lm_dtype_round(t, NAN) == 0 && lm_dtype_round(t, INFINITY) == 1);
  CHECK(lm_dtype_round(t, -0.0) == 0 && lm_dtype_round(t, 1) == 1);
}

static void powers_check(void) {
  for (int code = 0; code < 255; code++) {
    double x = ldexp(1, code - 127), above = 1.5 * x;
    CHECK(lm_e8m0_load((uint8_t)code) == (float)x && lm_dtype_bits(LM_E8M0, x) == (uint32_t)code);
    uint32_t tie = code < 254 ? (uint32_t)(code + code % 2) : 254;
    CHECK(lm_dtype_bits(LM_E8M0, above) == tie);
    CHECK(lm_dtype_bits(LM_E8M0, nextafterf((float)above, 0)) == (uint32_t)code);
    uint32_t next = code < 254 ? (uint32_t)code + 1 : 254;
    CHECK(lm_dtype_bits(LM_E8M0, nextafterf((float)above, INFINITY)) == next);
  }
  CHECK(!lm_dtype_bits(LM_E8M0, 0) && !lm_dtype_bits(LM_E8M0, -3) &&
        lm_dtype_bits(LM_E8M0, INFINITY) == 254);
  CHECK(lm_dtype_bits(LM_E8M0, NAN) == 255 && isnan(lm_e8m0_load(255)));
}

int main(void) {
  powers_check();
  dynamic_checks(true);
  dynamic_checks(false);
  for (size_t i = 0; i < LM_COUNT(formats); i++) {
    codes_check(&formats[i]);
    midpoints_check(&formats[i]);
    inputs_check(&formats[i]);
  }
  CHECK(lm_dtype_round(LM_E4M3, INFINITY) == 448 && lm_dtype_round(LM_E5M2, -1e30) == -57344);
  CHECK(isinf(lm_dtype_round(LM_F16, 65520)) && lm_dtype_round(LM_F16, 65519) == 65504);
  ints_check();
}
