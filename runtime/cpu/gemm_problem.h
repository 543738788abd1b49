// gemm_problem.h - the numbers of a GEMM, and its division into tiles.
#ifndef LM_CPU_GEMM_PROBLEM_H
#define LM_CPU_GEMM_PROBLEM_H
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gemm_call.h"

// A lm_plan_gemm with its run-time extents filled in.
typedef struct lm_gemm_problem {
  lm_gemm_shape s; // of one call before tiling
  lm_plan_batch batch[LM_PLAN_BATCH], sum[LM_PLAN_BATCH];
  int n_batch, n_sum;
  int64_t n_batches, n_sums;
  bool accumulate;
  bool flipped; // C^T = B^T A^T is computed, since C^T has rows of unit stride
  int64_t tile_m, tile_n;
  const lm_gemm_tiling *tiling; // NULL: the default
  int code;                     // as lm_plan_gemm; also 0 if the plan's kernels are not allowed
  bool any_rows;                // lm_plan_gemm_any_rows
  bool run_time_k;              // the size of k is known only at run time
  int64_t panel; // B is in panels of this many columns, which tiles must not split; 0: it is not
  int groups;    // 0: it has none
  int64_t group_b, group_c; // from group to group
  bool group_sums;          // the rows of groups are along k, else along m, or n if `flipped`
} lm_gemm_problem;

// tilings: NULL: none. code: the plan's kernels are allowed.
lm_gemm_problem lm_gemm_problem_make(const lm_plan_gemm *g, const int64_t *var,
                                     const lm_gemm_tilings *tilings, bool code);
lm_gemm_key lm_gemm_problem_key(const lm_gemm_problem *p);
// Choose the tiles, at most `max` wide: for the library, and for generated code.
void lm_gemm_tiles_choose(lm_gemm_problem *p, int64_t max);
void lm_gemm_tiles_of_code(lm_gemm_problem *p, int threads, int64_t max);

static inline int64_t lm_gemm_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t lm_gemm_pieces(int64_t size, int64_t tile) { // size > 0
  return (size - 1) / tile + 1;
}
#endif
