// permute.h - a pseudorandom permutation of 0 … n - 1 that computes one element at a time: a
// balanced Feistel network over the smallest power of four that is at least n, applied again until
// the result is below n (cycle walking). The round function is Philox under the key.
#ifndef LM_DATA_ROWS_PERMUTE_H
#define LM_DATA_ROWS_PERMUTE_H
#include "runtime/base/philox.h"

static inline uint64_t lm_permute(lm_philox_key2 key, uint64_t n, uint64_t i) {
  int half = 1;
  while (half < 32 && n > UINT64_C(1) << (2 * half))
    half++;
  uint64_t mask = (UINT64_C(1) << half) - 1;
  do {
    uint64_t left = i >> half;
    uint64_t right = i & mask;
    for (uint64_t round = 0; round < 6; round++) {
      uint64_t mixed = left ^ (lm_philox_u64(key, round << 32 | right) & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
#endif
