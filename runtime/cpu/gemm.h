// gemm.h - matrix products of a plan, by oneDNN's single-thread f32 GEMM over tiles spread on OpenMP threads.
//
// The tiles and the order of every sum depend on the shape alone, so the number of threads never changes a bit.
#ifndef LM_CPU_GEMM_H
#define LM_CPU_GEMM_H
#include "runtime/plan/plan.h"

enum { LM_GEMM_SCRATCH = 2 * (512 + 16) * (256 + 16) * 4 };   // bytes for each thread: a packed tile of A, one of B

// Must run where the OpenMP setting nthreads is 1 (see exec.c), so that the library starts no threads of its own.
// scratch: LM_GEMM_SCRATCH bytes for each of `threads`.
void lm_cpu_gemm(const lm_plan_gemm *g, const int64_t *var, const char *a, const char *b, char *c, char *scratch, int threads);

// A projection y[m, n] = x[m, k] w[k, n], `count` times.
typedef struct lm_cpu_projection { int64_t m, k, n; int count; } lm_cpu_projection;
typedef struct lm_cpu_gemm_times { double forward, data, weight; } lm_cpu_gemm_times;   // seconds

// The forward product, the gradient of x and the gradient of w (added to) of every projection, each the best of
// `repeats` runs on random data.
lm_cpu_gemm_times lm_cpu_gemm_bench(const lm_cpu_projection *p, int n, int threads, int repeats);

// Multiply-adds of registers alone: the most FLOP/s that `threads` cores reach.
double lm_cpu_peak(int threads);
#endif
