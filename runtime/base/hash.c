// hash.c - 64-bit hash, the same on every machine: 128-bit multiplications folded, as in wyhash. Not cryptographic.
#include <string.h>

#include "runtime/base/base.h"

static uint64_t load_le(const unsigned char *p, size_t n) {   // n <= 8
  uint64_t v = 0;
  if (n == 8) memcpy(&v, p, 8);
  else for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  if (n == 8) v = __builtin_bswap64(v);
#endif
  return v;
}

static uint64_t fold(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)a * b;
  return (uint64_t)m ^ (uint64_t)(m >> 64);
}

uint64_t lm_hash(const void *data, size_t n, uint64_t seed) {
  const uint64_t k0 = 0xa0761d6478bd642full, k1 = 0xe7037ed1a0b428dbull, k2 = 0x8ebc6af09c88c6e3ull;
  const unsigned char *p = data;
  uint64_t h = seed ^ k0;
  for (size_t left = n; left; ) {
    size_t a = left < 8 ? left : 8, b = left - a < 8 ? left - a : 8;
    h = fold(load_le(p, a) ^ k1, load_le(p + a, b) ^ h);
    p += a + b;
    left -= a + b;
  }
  return fold(k2 ^ n, fold(h ^ k1, k2 ^ seed));
}

void lm_sum_add(lm_sum *s, const void *piece, size_t n) {
  s->hash = lm_hash(piece, n, s->hash);
  s->bytes += n;
}

lm_sum lm_sum_of(const void *p, size_t n) {
  lm_sum s = {0};
  const char *at = p;
  for (; n >= LM_SUM_PIECE; at += LM_SUM_PIECE, n -= LM_SUM_PIECE) lm_sum_add(&s, at, LM_SUM_PIECE);
  lm_sum_add(&s, at, n);
  return s;
}
