// gemm.h - the GEMMs of a plan on the CPU: single-threaded calls of generated kernels or of oneDNN
// on tiles that are distributed over the threads of a team.
//
// The implementation is chosen in this order:
//   1. the plan's generated kernel, if there is one and it is known to be faster on this processor,
//      or if B is in panels, or if the number of rows is small or known only at run time
//   2. oneDNN's matmul primitives, for bf16 on processors that multiply bf16
//   3. oneDNN's f32 GEMM, with bf16 operands widened to f32
//   4. a plain loop, for f64
// A lm_gemm_tiling overrides the choice between 1 and the others where neither is required. Sums
// are always in f32 and rounded once. The order of every sum depends on the shape and its
// lm_gemm_tiling alone, and so do the tiles that oneDNN is called on, so results are bitwise
// independent of the number of threads.
#ifndef LM_CPU_GEMM_H
#define LM_CPU_GEMM_H
#include "runtime/base/dtype.h"
#include "runtime/base/team.h"
#include "runtime/cpu/share.h"
#include "runtime/plan/plan.h"

// Everything that the choice of a tiling depends on. If C has unit stride along m, these are the
// numbers of the transposed GEMM, which is the one that is computed.
typedef struct lm_gemm_key {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  int64_t batches, sums; // points of the batch axes that are not summed; points of the summed ones
  int64_t ab, cc, accumulate;
} lm_gemm_key;
// A tile size. code: use the plan's kernel. m 0: the default size for that implementation.
typedef struct lm_tile {
  int64_t m, n;
  bool code;
} lm_tile;

// Tilings that replace the defaults (tune.h). A tile larger than its GEMM is clipped.
typedef struct lm_gemm_tiling {
  lm_gemm_key key;
  lm_tile tile;
  double gain; // measured speed-up over the default; 1: it is the default; 0: not measured
} lm_gemm_tiling;
typedef struct lm_gemm_tilings {
  lm_gemm_tiling *v;
  uint32_t n, cap;
} lm_gemm_tilings;
// NULL if there is none.
const lm_gemm_tiling *lm_gemm_tilings_find(const lm_gemm_tilings *tilings, const lm_gemm_key *key);
// False if a size is known only at run time.
bool lm_gemm_key_find(const lm_plan_gemm *g, lm_gemm_key *out);

// State that GEMMs share: the workspace of each thread, and oneDNN's primitives.
typedef struct lm_cpu_gemms lm_cpu_gemms;
typedef struct lm_cpu_gemm_options {
  int threads;
  uint32_t primitives; // set of 1 << lm_dtype: operands for matmul primitives; 0: bf16 alone
  const lm_gemm_tilings *tilings; // optional; outlives the lm_cpu_gemms
  bool code;                      // allow the plan's kernels
  lm_kernel_fn *const *kernels;   // as the plan's; NULL if nothing will be run
  lm_team *team; // of `threads` threads, outlives the lm_cpu_gemms; NULL: it makes its own
} lm_cpu_gemm_options;
lm_cpu_gemms *lm_cpu_gemms_create(const lm_cpu_gemm_options *o);
void lm_cpu_gemms_destroy(lm_cpu_gemms *all);
// Prepares all GEMMs of a plan, so that the first run allocates nothing; NULL if there are none.
lm_cpu_gemms *lm_cpu_gemms_of_plan(const lm_plan *plan, const lm_cpu_gemm_options *o);
// Bytes of the workspaces that lm_cpu_gemms_of_plan would allocate.
int64_t lm_cpu_gemms_of_plan_bytes(const lm_plan *plan, const lm_cpu_gemm_options *o);

// Creates what a GEMM of fixed size needs; must be called before the first run of any GEMM.
// oneDNN starts no threads: OpenMP's nthreads is set to 1 in each thread that calls it.
void lm_cpu_gemm_prepare(lm_cpu_gemms *all, const lm_plan_gemm *g);
void lm_cpu_gemm(lm_cpu_gemms *all, const lm_plan_gemm *g, const int64_t *var, const char *a,
                 const char *b, char *c);
// The same, called by every thread of a team with its share. The result is complete when all calls
// have returned. overwrites: a GEMM that accumulates takes C as zeros, without reading it. counts:
// the rows of each group, if the GEMM has groups.
void lm_cpu_gemm_share(lm_cpu_gemms *all, const lm_plan_gemm *g, bool overwrites,
                       const int64_t *var, const char *a, const char *b, const int32_t *counts,
                       char *c, lm_share *share);

// The tile size of a GEMM of fixed size, and its implementation.
lm_tile lm_cpu_gemm_tile(lm_cpu_gemms *all, const lm_plan_gemm *g);

// Zeros of four bytes in huge pages, as a plan's memory is.
char *lm_cpu_zeros_make(int64_t elements);
// A random matrix in [-1, 1), f32 or bf16, in huge pages as a plan's memory is; GEMMs are up to
// twice as fast there.
char *lm_cpu_matrix_make(int64_t elements, lm_dtype dtype);

// A linear layer y[m, n] = x[m, k] w[k, n], `count` times.
typedef struct lm_cpu_linear {
  int64_t m, k, n;
  int count;
} lm_cpu_linear;
// Its forward GEMM, the gradient of x and the gradient of w, which is accumulated; without dtypes.
// All matrices are row-major.
typedef struct lm_cpu_linear_gemms {
  lm_plan_gemm forward, data, weight;
} lm_cpu_linear_gemms;
lm_cpu_linear_gemms lm_cpu_linear_gemms_of(const lm_cpu_linear *p);
// Seconds of these.
typedef struct lm_cpu_gemm_times {
  double forward, data, weight;
} lm_cpu_gemm_times;

// Measures the three GEMMs of every linear layer on random operands of the given type; the gradient
// of w is accumulated in f32. Each time is the minimum of at most `repeats` runs.
lm_cpu_gemm_times lm_cpu_gemm_bench(const lm_cpu_linear *p, int n, lm_dtype dtype, int threads,
                                    int repeats);

// Measured peak FLOP/s of `threads` cores (0: all cores) for operands of a type: multiply-adds in
// registers, of f32 or, if the processor has them, of pairs of bf16 or of tiles of AMX.
double lm_cpu_peak(int threads, lm_dtype dtype);
#endif
