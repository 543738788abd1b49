// philox.h - Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011). A draw is a pure function of (key, counter); the
// generator has no state.
//
// Every use in this project follows the same scheme:
//   key     = the low and high 32 bits of lm_philox_key(seed, stream). `seed` comes from the
//             program; `stream` identifies the random quantity, e.g. lm_hash of a parameter's path.
//   counter = (low and high 32 bits of the block number, 0, 0), unless a stream documents more.
//   Element i of a stream is word i % 4 of block i / 4.
#ifndef LM_PHILOX_H
#define LM_PHILOX_H
#include <stdint.h>

typedef struct lm_philox4 {
  uint32_t v[4];
} lm_philox4;
typedef struct lm_philox_key2 {
  uint32_t v[2];
} lm_philox_key2;

// Factors of words 0 and 2 in each round, and the steps of the words of the key.
#define LM_PHILOX_FACTOR_0 0xd2511f53u
#define LM_PHILOX_FACTOR_1 0xcd9e8d57u
#define LM_PHILOX_STEP_0 0x9e3779b9u
#define LM_PHILOX_STEP_1 0xbb67ae85u

static inline lm_philox4 lm_philox(lm_philox4 c, lm_philox_key2 k) {
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)LM_PHILOX_FACTOR_0 * c.v[0];
    uint64_t p1 = (uint64_t)LM_PHILOX_FACTOR_1 * c.v[2];
    c = (lm_philox4){{(uint32_t)(p1 >> 32) ^ c.v[1] ^ k.v[0], (uint32_t)p1,
                      (uint32_t)(p0 >> 32) ^ c.v[3] ^ k.v[1], (uint32_t)p0}};
    k.v[0] += LM_PHILOX_STEP_0;
    k.v[1] += LM_PHILOX_STEP_1;
  }
  return c;
}

// The finaliser of splitmix64: nearby arguments give unrelated results.
static inline uint64_t lm_philox_mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static inline lm_philox_key2 lm_philox_key(uint64_t seed, uint64_t stream) {
  uint64_t z = lm_philox_mix(seed ^ lm_philox_mix(stream));
  return (lm_philox_key2){{(uint32_t)z, (uint32_t)(z >> 32)}};
}

static inline lm_philox4 lm_philox_block(lm_philox_key2 key, uint64_t block) {
  return lm_philox((lm_philox4){{(uint32_t)block, (uint32_t)(block >> 32), 0, 0}}, key);
}

static inline uint64_t lm_philox_u64(lm_philox_key2 key, uint64_t block) {
  lm_philox4 r = lm_philox_block(key, block);
  return r.v[0] | (uint64_t)r.v[1] << 32;
}

// Maps 23 bits to the open interval (0, 1), exactly in float32.
static inline float lm_philox_unit(uint32_t x) {
  return ((float)(x >> 9) + 0.5f) * 0x1p-23f;
}
#endif
