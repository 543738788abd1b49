// builtin.h - kernels that are part of the runtime: moves, fills, small GEMMs, epilogues, totals.
#ifndef LM_CUDA_BUILTIN_H
#define LM_CUDA_BUILTIN_H
#include "runtime/base/dtype.h"
#include "runtime/cuda/driver.h"
#include "runtime/hal/draw.h"
#include "runtime/hal/totals.h"
#include "runtime/plan/plan.h"

typedef unsigned long long lm_cuda_address;

typedef struct lm_cuda_builtins {
  const lm_cuda_driver *driver;
  void *stream;
  void *fill_8, *move[4] /* of 1, 2, 4, 8 bytes */, *add;
  void *small_gemm[LM_DTYPES][LM_DTYPES]; // GEMMs by types of A and C; NULL: unsupported
  void *finish[LM_DTYPES];                // epilogues by type; NULL: unsupported
  void *round[LM_DTYPES];                 // of f32 sums, by type of the result; NULL: unsupported
  void *tally, *rule, *judge, *mark;
  void *draw[3];               // the greatest logits, the bins, the token
  void *ordered[LM_DTYPES][2]; // sums and maxima over ranks; NULL: unsupported
  lm_cuda_address fault; // two int32: the step that failed and its invalid position; zeros if none
} lm_cuda_builtins;

// All kernels are defined by one text, lm_cuda_builtin_text.
enum {
  LM_CUDA_BUILTIN_KERNELS = 34
};
extern const char *const lm_cuda_builtin_names[LM_CUDA_BUILTIN_KERNELS];
const char *lm_cuda_builtin_text(lm_arena *a);
// functions: the addresses of lm_cuda_builtin_names, in order.
void lm_cuda_builtins_set(lm_cuda_builtins *b, void *const *functions);

lm_status lm_cuda_fill(const lm_cuda_builtins *b, lm_cuda_address to, const lm_plan_step *s);
// at: address of the position, 0 if there is none. If the position is out of range, nothing is
// moved and `step`, which must not be 0, is stored in `fault`.
lm_status lm_cuda_move(const lm_cuda_builtins *b, const lm_plan_move *m, const int64_t *var,
                       lm_cuda_address from, lm_cuda_address at, lm_cuda_address to, bool add,
                       int step);

// As lm_totals_add. io: the arena of the ports; totals: LM_TOTALS_MAX float64s.
lm_status lm_cuda_totals_add(const lm_cuda_builtins *b, const lm_plan_func *f, lm_cuda_address io,
                             lm_cuda_address totals, bool first);
// As lm_totals_scale, in two parts: a graph can contain the second one, whose parameters are the
// same in each step. The first one writes the numbers of the rule to the device.
typedef struct lm_cuda_rule {
  double loss_scale, clip, limit;
} lm_cuda_rule;
lm_status lm_cuda_rule_send(const lm_cuda_builtins *b, const lm_cuda_rule *r, lm_cuda_address to);
lm_status lm_cuda_totals_scale(const lm_cuda_builtins *b, const lm_scale_rule *r,
                               lm_cuda_address io, lm_cuda_address totals, lm_cuda_address rule);

// C (+)= A B
typedef struct lm_cuda_small_gemm {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  int32_t add, spare;
} lm_cuda_small_gemm;
// y (+)= x rounded to `type`, bf16 or f16. x is f32, dense [m, n]; y has the given strides.
typedef struct lm_cuda_rounding {
  int64_t m, n, y_m, y_n;
  int32_t add, spare;
} lm_cuda_rounding;
// y += bias, where the bias has `row` elements and repeats; before = y; y = gelu(y). Parts whose
// address is 0 are skipped.
typedef struct lm_cuda_finish {
  int64_t n, row;
  int32_t gelu, spare;
} lm_cuda_finish;
lm_status lm_cuda_finish_run(const lm_cuda_builtins *b, const lm_cuda_finish *f, int type,
                             lm_cuda_address y, lm_cuda_address bias, lm_cuda_address before);
lm_status lm_cuda_round(const lm_cuda_builtins *b, const lm_cuda_rounding *r, lm_dtype type,
                        lm_cuda_address x, lm_cuda_address y);
lm_status lm_cuda_small_gemm_run(const lm_cuda_builtins *b, const lm_cuda_small_gemm *p, int ab,
                                 int cc, lm_cuda_address x, lm_cuda_address w, lm_cuda_address z);

// Adds n elements of each rank in the order of the ranks, as lm_ordered_reduce does, or takes their
// maximum. `own` are those of this rank; the others' are in `received`, at rank * slice bytes.
typedef struct lm_cuda_ordered_sum {
  int64_t n, slice;
  int32_t ranks, me;
} lm_cuda_ordered_sum;
lm_status lm_cuda_ordered_reduce(const lm_cuda_builtins *b, const lm_cuda_ordered_sum *s,
                                 lm_dtype type, bool max, lm_cuda_address own,
                                 lm_cuda_address received, lm_cuda_address to);

// Writes x to pinned memory of the host, which the GPU accesses by the host's address.
lm_status lm_cuda_mark(const lm_cuda_builtins *b, void *at, uint64_t x);

// As lm_exec_draw. work: lm_cuda_draw_bytes of memory, whose first int32 receives the id.
size_t lm_cuda_draw_bytes(int64_t n);
lm_status lm_cuda_draw(const lm_cuda_builtins *b, lm_dtype type, lm_cuda_address row, int64_t n,
                       const lm_draw_rule *r, lm_cuda_address work);
#endif
