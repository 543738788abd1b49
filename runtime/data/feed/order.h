// order.h - in which order the rows of an epoch come: each once, a function of the key.
//
// By chance among all n, or in stretches of at least `window` neighbours: the order of stretches is
// by chance and so is that inside of each, so only a stretch of the files is in use at a time. The
// last stretch takes what is left over and comes last; all are counted from a row drawn for the
// epoch, so which one that is changes.
#ifndef LM_DATA_ORDER_H
#define LM_DATA_ORDER_H
#include "runtime/data/rows/permute.h"

// The row at place i of the epoch that (seed, stream) stand for; window 0: all.
static inline uint64_t lm_row_order(uint64_t seed, uint64_t stream, uint64_t n, uint64_t window,
                                    uint64_t i) {
  lm_philox_key2 key = lm_philox_key(seed, stream);
  uint64_t stretches = window ? n / window : 1;
  if (stretches < 2)
    return lm_permute(key, n, i);
  uint64_t last = stretches - 1;
  uint64_t at = i / window < last ? i / window : last;
  uint64_t in = i - at * window;
  uint64_t stretch = at < last ? lm_permute(key, last, at) : last;
  uint64_t size = at < last ? window : n - last * window;
  uint64_t row =
      stretch * window + lm_permute(lm_philox_key(seed ^ lm_philox_mix(stretch), stream), size, in);
  return (row + lm_philox_u64(key, UINT64_MAX) % n) % n;
}
#endif
