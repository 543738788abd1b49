// gemm.h - matrix products of a plan: single-thread calls of oneDNN over tiles spread on OpenMP threads.
//
// f32 goes through its GEMM, bf16 through its matmul primitives where the processor multiplies bf16, and else through the
// GEMM on operands widened to f32: in each case products are summed in f32 and rounded once. The tiles and the order of
// every sum depend on the shape alone, so the number of threads never changes a bit.
#ifndef LM_CPU_GEMM_H
#define LM_CPU_GEMM_H
#include "runtime/base/dtype.h"
#include "runtime/cpu/team.h"
#include "runtime/plan/plan.h"

typedef struct lm_cpu_gemms lm_cpu_gemms;        // what products share: scratch of each thread, primitives
typedef struct lm_cpu_gemm_options {
  int threads;
  uint32_t primitives;                           // 1 << lm_dtype: operands that go through matmul primitives; 0: bf16 alone
} lm_cpu_gemm_options;
lm_cpu_gemms *lm_cpu_gemms_create(const lm_cpu_gemm_options *o);
void lm_cpu_gemms_destroy(lm_cpu_gemms *all);

// prepare, run: the OpenMP setting nthreads must be 1 (see exec.c), so that the library starts no threads of its own.
//
// Makes what a product of fixed size needs, before the first run of any.
void lm_cpu_gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g);
void lm_cpu_gemm(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a, const char *b, char *c);
// The same by threads that are there: each calls it with its share, and it is done when all have returned.
void lm_cpu_gemm_share(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a, const char *b, char *c, lm_share *share);

// A projection y[m, n] = x[m, k] w[k, n], `count` times.
typedef struct lm_cpu_projection { int64_t m, k, n; int count; } lm_cpu_projection;
typedef struct lm_cpu_gemm_times { double forward, data, weight; } lm_cpu_gemm_times;   // seconds

// The forward product, the gradient of x and the gradient of w (added to, in f32) of every projection on operands of a
// type, each the best of `repeats` runs on random data.
lm_cpu_gemm_times lm_cpu_gemm_bench(const lm_cpu_projection *p, int n, lm_dtype dtype, int threads, int repeats);

// Multiply-adds of registers alone: the most FLOP/s in f32 that `threads` cores reach.
double lm_cpu_peak(int threads);
#endif
