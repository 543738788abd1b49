// hash.c - 64-bit hash, the same on every machine: 128-bit multiplications folded, as in wyhash.
// Not cryptographic.
#include <string.h>

#include "runtime/base/base.h"

static uint64_t load_le(const unsigned char *p, size_t n) { // n <= 8
  uint64_t v = 0;
  if (n == 8)
    memcpy(&v, p, 8);
  else
    for (size_t i = 0; i < n; i++)
      v |= (uint64_t)p[i] << (8 * i);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  if (n == 8)
    v = __builtin_bswap64(v);
#endif
  return v;
}

// Adds the two halves of the product without carry. A factor of 0 gives 0, and a factor of 2^64 - 1
// gives 2^64 - 1, for every other factor. In these cases the factors are added instead, since the
// hash would otherwise lose all previous bytes.
static uint64_t fold(uint64_t a, uint64_t b) {
  unsigned __int128 m = (unsigned __int128)a * b;
  uint64_t x = (uint64_t)m ^ (uint64_t)(m >> 64);
  bool absorbs = a + 1 <= 1 || b + 1 <= 1;
  return absorbs ? x ^ a ^ b : x;
}

typedef struct constants {
  uint64_t k0, k1, k2;
} constants;
static const constants FIRST = {0xa0761d6478bd642full, 0xe7037ed1a0b428dbull,
                                0x8ebc6af09c88c6e3ull};
static const constants SECOND = {0x589965cc75374cc3ull, 0x1d8e4e27c47d124full,
                                 0xeb44accab455d165ull};

// n is a multiple of 16 except in the last call.
static uint64_t absorb(const constants *k, uint64_t h, const void *data, size_t n) {
  const unsigned char *p = data;
  for (size_t left = n; left;) {
    size_t a = left < 8 ? left : 8;
    size_t b = left - a < 8 ? left - a : 8;
    h = fold(load_le(p, a) ^ k->k1, load_le(p + a, b) ^ h);
    p += a + b;
    left -= a + b;
  }
  return h;
}

static uint64_t finish(const constants *k, uint64_t h, size_t n, uint64_t seed) {
  return fold(k->k2 ^ n, fold(h ^ k->k1, k->k2 ^ seed));
}

static uint64_t hash(const constants *k, const void *p, size_t n, uint64_t seed) {
  return finish(k, absorb(k, seed ^ k->k0, p, n), n, seed);
}

uint64_t lm_hash(const void *p, size_t n, uint64_t seed) {
  return hash(&FIRST, p, n, seed);
}

void lm_hash_key(uint64_t key[2], const void *p, size_t n) {
  key[0] = hash(&FIRST, p, n, key[0]);
  key[1] = hash(&SECOND, p, n, key[1]);
}

lm_hasher lm_hash_begin(uint64_t seed) {
  return (lm_hasher){
      .state = seed ^ FIRST.k0,
      .seed = seed,
  };
}

void lm_hash_add(lm_hasher *h, const void *p, size_t n) {
  LM_ASSERT(h->n % 16 == 0);
  h->state = absorb(&FIRST, h->state, p, n);
  h->n += n;
}

uint64_t lm_hash_end(const lm_hasher *h) {
  return finish(&FIRST, h->state, h->n, h->seed);
}

void lm_sum_add(lm_sum *s, const void *piece, size_t n) {
  s->hash = lm_hash(piece, n, s->hash);
  s->bytes += n;
}

lm_sum lm_sum_of(const void *p, size_t n) {
  lm_sum s = {0};
  const char *at = p;
  for (; n >= LM_SUM_PIECE; at += LM_SUM_PIECE, n -= LM_SUM_PIECE)
    lm_sum_add(&s, at, LM_SUM_PIECE);
  lm_sum_add(&s, at, n);
  return s;
}
