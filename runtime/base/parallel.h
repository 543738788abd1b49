// parallel.h - how many threads to use, and the same work on every item of a range by some threads.
#ifndef LM_PARALLEL_H
#define LM_PARALLEL_H
#include <stdint.h>

// Processors that this process may use: those of its affinity mask, but no more than the CPU quota
// of its control groups (rounded up). At least 1.
int lm_processors(void);

// The quota alone, in processors; 0 if there is none. root: the folder of control groups,
// /sys/fs/cgroup; list: the file that names those of the process, /proc/self/cgroup.
double lm_processors_quota(const char *root, const char *list);

// `wanted` threads; for 0, one for each processor, but no more than OMP_NUM_THREADS. At least 1, at
// most 256.
int lm_threads(int wanted);

// body(user, i, worker) for every i in 0 … n - 1, worker in 0 … threads - 1. Which worker does
// which item is not determined, so results must belong to items, and only workspace to workers.
// Returns when all are done. The threads are created for the call.
typedef void (*lm_item_body)(void *user, int64_t i, int worker);
void lm_parallel(int threads, int64_t n, lm_item_body body, void *user);

// body(user, first, last) on pieces of 0 … n - 1, one piece for each thread; on the calling thread
// alone if n < 2 `least`.
typedef void (*lm_range_body)(void *user, int64_t first, int64_t last);
void lm_parallel_ranges(int64_t n, int64_t least, lm_range_body body, void *user);
#endif
