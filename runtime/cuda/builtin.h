// builtin.h - the runtime's own kernels: their functions, and what a plan's steps want of them.
#ifndef LM_CUDA_BUILTIN_H
#define LM_CUDA_BUILTIN_H
#include "runtime/base/dtype.h"
#include "runtime/cuda/driver.h"
#include "runtime/hal/totals.h"
#include "runtime/plan/plan.h"

typedef unsigned long long lm_cuda_address;

typedef struct lm_cuda_builtins {
  const lm_cuda_driver *driver;
  void *stream;
  void *fill_8, *move[4] /* of 1, 2, 4, 8 bytes */, *add;
  void *product[LM_DTYPES][LM_DTYPES]; // by types of A and C; NULL: there is none
  void *finish[LM_DTYPES];             // by type; NULL: there is none
  void *round, *tally, *judge;
  lm_cuda_address fault; // two int32: a step and the position that it refused; zeros if all is well
} lm_cuda_builtins;

// The kernels as the compiler takes them: each of `n` has the same text, which defines all.
enum {
  LM_CUDA_BUILTIN_KERNELS = 15
};
extern const char *const lm_cuda_builtin_names[LM_CUDA_BUILTIN_KERNELS];
const char *lm_cuda_builtin_text(lm_arena *a);
// From the functions of those names, in order.
void lm_cuda_builtins_set(lm_cuda_builtins *b, void *const *functions);

lm_status lm_cuda_fill(const lm_cuda_builtins *b, lm_cuda_address to, const lm_plan_step *s);
// from, position (0: none), to; `step`: what is left in `fault` if the position is out of range,
// not 0.
lm_status lm_cuda_move(const lm_cuda_builtins *b, const lm_plan_move *m, const int64_t *var,
                       lm_cuda_address from, lm_cuda_address at, lm_cuda_address to, bool add,
                       int step);

// As lm_totals_add and lm_totals_scale: io is the arena that ports are in, totals LM_TOTALS_MAX
// float64s.
lm_status lm_cuda_totals_add(const lm_cuda_builtins *b, const lm_plan_func *f, lm_cuda_address io,
                             lm_cuda_address totals, bool first);
lm_status lm_cuda_totals_scale(const lm_cuda_builtins *b, const lm_scale_rule *r,
                               lm_cuda_address io, lm_cuda_address totals);

typedef struct lm_cuda_small_gemm {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  int32_t add, spare;
} lm_cuda_small_gemm; // C (+)= A B
// y (+)= x of f32, dense [m, n], rounded to bf16 in these strides.
typedef struct lm_cuda_rounding {
  int64_t m, n, y_m, y_n;
  int32_t add, spare;
} lm_cuda_rounding;
// y += bias, which a row of `row` elements has one of each of; before = y; y = gelu(y): what of it
// there is (addresses not 0).
typedef struct lm_cuda_finish {
  int64_t n, row;
  int32_t gelu, spare;
} lm_cuda_finish;
lm_status lm_cuda_finish_run(const lm_cuda_builtins *b, const lm_cuda_finish *f, int type,
                             lm_cuda_address y, lm_cuda_address bias, lm_cuda_address before);
lm_status lm_cuda_round(const lm_cuda_builtins *b, const lm_cuda_rounding *r, lm_cuda_address x,
                        lm_cuda_address y);
lm_status lm_cuda_small_gemm_run(const lm_cuda_builtins *b, const lm_cuda_small_gemm *p, int ab,
                                 int cc, lm_cuda_address x, lm_cuda_address w, lm_cuda_address z);
#endif
