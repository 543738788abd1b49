// parallel.h - the same work on every item of a range, by a few threads that live as long as the call.
#ifndef LM_PARALLEL_H
#define LM_PARALLEL_H
#include <stdint.h>

// `wanted` threads, or for 0 as many as this process may run on and OMP_NUM_THREADS says at most; at least 1, at most 256.
int lm_threads(int wanted);

// body(user, i, worker) for every i in 0 … n - 1, worker in 0 … threads - 1. Which worker does which item is chance, so
// results belong to items, and only scratch to workers. Returns when all are done. Threads that the system refuses to
// make are done without.
void lm_parallel(int threads, int64_t n, void (*body)(void *user, int64_t i, int worker), void *user);
#endif
