// parallel.h - parallel loops over items and over ranges.
#ifndef LM_PARALLEL_H
#define LM_PARALLEL_H
#include <stdint.h>

// Calls body(user, i, worker) for every i in 0 … n - 1 with worker in 0 … threads - 1, and returns
// when all calls have returned. threads: 0 is one per processor. The assignment of items to workers
// is not deterministic, so results must be stored by item; only temporary buffers may be per
// worker. Creates the threads for each call.
typedef void (*lm_item_body)(void *user, int64_t i, int worker);
void lm_parallel(int threads, int64_t n, lm_item_body body, void *user);

// Calls body(user, first, last) on contiguous ranges first … last - 1 that cover 0 … n - 1, one
// range per thread, or on the calling thread alone if n < 2 * min.
typedef void (*lm_range_body)(void *user, int64_t first, int64_t last);
void lm_parallel_ranges(int64_t n, int64_t min, lm_range_body body, void *user);
#endif
