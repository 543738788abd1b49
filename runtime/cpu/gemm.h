// gemm.h - matrix products of a plan: single-thread calls of generated code or of oneDNN over tiles
// spread on the threads of a team.
//
// The library does bf16 where the processor multiplies it, by matmul primitives; else what the plan
// has code for is the code's where that is known to be faster, and the rest the library's, by its
// f32 GEMM, on operands widened to f32 if they are bf16. A lm_gemm_tiling may say otherwise. In
// each case products are summed in f32 and rounded once. The order of every sum depends on the
// shape (and its lm_gemm_tiling) alone, and so do the tiles of the library, since its bits depend
// on them: the number of threads never changes a bit.
#ifndef LM_CPU_GEMM_H
#define LM_CPU_GEMM_H
#include "runtime/base/dtype.h"
#include "runtime/base/team.h"
#include "runtime/cpu/share.h"
#include "runtime/plan/plan.h"

// What the cut of a product may depend on. Of the product as it is computed: of C's transpose where
// that has the rows.
typedef struct lm_gemm_key {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  int64_t outers, sums; // places of the batch axes that are not summed, and of those that are
  int64_t ab, cc, accumulate;
} lm_gemm_key;
typedef struct lm_tile {
  int64_t m, n;
  bool code;
} lm_tile; // code: by the plan's own; m 0: as that one is best cut

// How products are cut where that is not left to this file (tune.h). A tile too large for its
// product is made smaller.
typedef struct lm_gemm_tiling {
  lm_gemm_key key;
  lm_tile tile;
  double gain; // measured, over the default; 1: it is the default; 0: not measured
} lm_gemm_tiling;
typedef struct lm_gemm_tilings {
  lm_gemm_tiling *v;
  uint32_t n, cap;
} lm_gemm_tilings;
const lm_gemm_tiling *lm_gemm_tilings_find(const lm_gemm_tilings *cuts,
                                           const lm_gemm_key *key); // NULL if there is none
bool lm_gemm_key_find(const lm_plan_gemm *g,
                      lm_gemm_key *out); // false: a size is known only at run time

typedef struct lm_cpu_gemms lm_cpu_gemms; // what products share: scratch of each thread, primitives
typedef struct lm_cpu_gemm_options {
  int threads;
  uint32_t primitives; // 1 << lm_dtype: operands that go through matmul primitives; 0: bf16 alone
  const lm_gemm_tilings *cuts;  // outlive what is made; NULL: none
  bool code;                    // a plan's may be used for products that have some, and then
  lm_kernel_fn *const *kernels; // as the plan's; NULL: nothing is run
  lm_team *team;                // of `threads` threads, outlives what is made; NULL: its own
} lm_cpu_gemm_options;
lm_cpu_gemms *lm_cpu_gemms_create(const lm_cpu_gemm_options *o);
void lm_cpu_gemms_destroy(lm_cpu_gemms *all);
int64_t lm_cpu_gemms_bytes(const lm_cpu_gemms *all); // scratch of all threads
// What the products of a plan share, ready for their first run; NULL if it has none. And the bytes
// of scratch that will have.
lm_cpu_gemms *lm_cpu_gemms_of_plan(const lm_plan *plan, const lm_cpu_gemm_options *o);
int64_t lm_cpu_gemms_of_plan_bytes(const lm_plan *plan, const lm_cpu_gemm_options *o);

// The library starts no threads of its own: OpenMP's setting nthreads becomes 1 in each thread that
// calls it (gemm.c).
//
// Makes what a product of fixed size needs, before the first run of any.
void lm_cpu_gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g);
void lm_cpu_gemm(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                 const char *b, char *c);
// The same by threads that are there: each calls it with its share, and it is done when all have
// returned.
void lm_cpu_gemm_share(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                       const char *b, char *c, lm_share *share);

// The tiles that a product of fixed size is cut into, and whose they are.
lm_tile lm_cpu_gemm_tile(lm_cpu_gemms *all, const lm_plan_gemm *g);

// Numbers in [-1, 1), of f32 or bf16, in huge pages as a plan's memory is: products run at up to
// twice the speed there.
char *lm_cpu_matrix_make(int64_t elements, lm_dtype dtype);

// A projection y[m, n] = x[m, k] w[k, n], `count` times.
typedef struct lm_cpu_linear {
  int64_t m, k, n;
  int count;
} lm_cpu_linear;
typedef struct lm_cpu_gemm_times {
  double forward, data, weight;
} lm_cpu_gemm_times; // seconds

// The forward product, the gradient of x and the gradient of w (added to, in f32) of every
// projection on operands of a type, each the best of `repeats` runs on random data.
lm_cpu_gemm_times lm_cpu_gemm_bench(const lm_cpu_linear *p, int n, lm_dtype dtype, int threads,
                                    int repeats);

// The most FLOP/s that `threads` cores reach with operands of a type (0 threads: all cores):
// multiply-adds of f32 registers alone; where the processor multiplies bf16, whose units only the
// library reaches, its products of matrices in caches.
double lm_cpu_peak(int threads, lm_dtype dtype);
double lm_cpu_gemm_peak(int threads, lm_dtype dtype); // the latter
#endif
