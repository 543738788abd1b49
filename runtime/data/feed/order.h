// order.h - the order of the rows of an epoch: a permutation that is a function of the key.
//
// Either all n rows are permuted, or the rows are split into chunks of at least `window`
// neighbors, and both the chunks and the rows inside each chunk are permuted, so that only one
// chunk of the files is in use at a time. The last chunk takes the remainder and comes last. Chunks
// start at a row that is drawn for each epoch, so their boundaries change.
#ifndef LM_DATA_FEED_ORDER_H
#define LM_DATA_FEED_ORDER_H
#include "runtime/data/rows/permute.h"

// The row at index i of the epoch that (seed, stream) identify. window 0: permute all rows.
static inline uint64_t lm_row_order(uint64_t seed, uint64_t stream, uint64_t n, uint64_t window,
                                    uint64_t i) {
  lm_philox_key2 key = lm_philox_key(seed, stream);
  uint64_t chunks = window ? n / window : 1;
  if (chunks < 2)
    return lm_permute(key, n, i);
  uint64_t last = chunks - 1;
  uint64_t at = i / window < last ? i / window : last;
  uint64_t in = i - at * window;
  uint64_t chunk = at < last ? lm_permute(key, last, at) : last;
  uint64_t size = at < last ? window : n - last * window;
  uint64_t row =
      chunk * window + lm_permute(lm_philox_key(seed ^ lm_philox_mix(chunk), stream), size, in);
  return (row + lm_philox_u64(key, UINT64_MAX) % n) % n;
}
#endif
