// gemm.c - a GEMM of a plan as calls of cuBLASLt (gemm_call.h): its batch axes, sums over several
// calls, and rounding to bf16; see gemm.h.
#include "runtime/cuda/gemm.h"

#include "runtime/base/dtype.h"
#include "runtime/cuda/gemm_call.h"

typedef struct problem {
  lm_plan_batch loop[LM_PLAN_BATCH], sum[LM_PLAN_BATCH], batch;
  int n_loop, n_sum;
  int64_t n_loops, n_sums;
} problem;

static void axis_swap(lm_plan_batch *a, lm_plan_batch *b) {
  lm_plan_batch keep = *a;
  *a = *b;
  *b = keep;
}

// The longest batch axis that is not summed becomes the library's batch.
static problem problem_make(const lm_plan_gemm *g, const int64_t *var) {
  problem p = {.batch = {.size = 1}, .n_loops = 1, .n_sums = 1};
  for (int i = 0; i < g->n_batch; i++) {
    lm_plan_batch x = lm_plan_batch_axis(g, i, var);
    if (!g->batch[i].sum && x.size > p.batch.size)
      axis_swap(&x, &p.batch);
    if (g->batch[i].sum)
      p.sum[p.n_sum++] = x;
    else
      p.loop[p.n_loop++] = x;
  }
  for (int i = 0; i < p.n_loop; i++)
    p.n_loops *= p.loop[i].size;
  for (int i = 0; i < p.n_sum; i++)
    p.n_sums *= p.sum[i].size;
  return p;
}

static uint64_t bytes_of(int64_t elements, int dtype) {
  return (uint64_t)(elements * lm_dtype_bytes((lm_dtype)dtype));
}

// The calls for one result, each of which adds to C.
static lm_status sums_run(lm_cuda_gemms *g, const lm_cuda_call *x, const problem *all,
                          lm_cuda_address workspace) {
  for (int64_t j = 0; j < all->n_sums; j++) {
    lm_plan_batch at = lm_plan_batch_at(all->sum, all->n_sum, j);
    lm_cuda_call y = *x;
    y.a += bytes_of(at.a, x->aa);
    y.b += bytes_of(at.b, x->bb);
    y.p.add = x->p.add || j;
    LM_TRY(lm_cuda_call_run(g, &y, workspace));
  }
  return NULL;
}

// Computes a submatrix of matrix `i` of the batch in f32 and rounds it once.
static lm_status panel_run(lm_cuda_gemms *g, const lm_cuda_call *x, const problem *all, int64_t i,
                           int64_t row, int64_t rows, int64_t col, int64_t cols,
                           lm_cuda_address workspace) {
  lm_cuda_address sums = workspace + LM_CUDA_WORKSPACE;
  lm_cuda_address to = x->c + bytes_of(i * x->batch.c + row * x->p.c_m + col * x->p.c_n, x->cc);
  lm_cuda_call y = *x;
  y.batch = (lm_plan_batch){.size = 1};
  y.a += bytes_of(i * x->batch.a + row * x->p.a_m, x->aa);
  y.b += bytes_of(i * x->batch.b + col * x->p.b_n, x->bb);
  y.c = sums;
  y.cc = LM_F32;
  y.p.m = rows;
  y.p.n = cols;
  y.p.c_m = cols;
  y.p.c_n = 1;
  y.p.add = false;
  LM_TRY(sums_run(g, &y, all, workspace));
  lm_cuda_rounding rounding = {rows, cols, x->p.c_m, x->p.c_n, x->p.add, 0};
  return lm_cuda_round(lm_cuda_gemms_builtins(g), &rounding, (lm_dtype)x->cc, sums, to);
}

// For a bf16 or f16 result that is the sum of several calls, or whose operands are f32: computes it
// in pieces that fit into the f32 buffer. The pieces depend on sizes alone.
static lm_status panels_run(lm_cuda_gemms *g, const lm_cuda_call *x, const problem *all,
                            lm_cuda_address workspace) {
  enum {
    MAX_SUMS = LM_CUDA_SUMS / 4
  };
  int64_t cols = x->p.n < MAX_SUMS ? x->p.n : MAX_SUMS;
  int64_t rows = MAX_SUMS / cols;
  for (int64_t i = 0; i < x->batch.size; i++)
    for (int64_t row = 0; row < x->p.m; row += rows)
      for (int64_t col = 0; col < x->p.n; col += cols)
        LM_TRY(panel_run(g, x, all, i, row, x->p.m - row < rows ? x->p.m - row : rows, col,
                         x->p.n - col < cols ? x->p.n - col : cols, workspace));
  return NULL;
}

static lm_cuda_epilogue epilogue_of(const lm_plan_step *s, const int64_t *var,
                                    const lm_cuda_address *at) {
  const lm_plan_gemm *p = s->gemm;
  lm_cuda_epilogue e = {.row = lm_plan_extent_value(p->c_n == 1 ? &p->n : &p->m, var),
                        .gelu = p->gelu};
  const lm_cuda_address *next = at + 2;
  if (p->residual)
    e.residual = *next++;
  if (p->bias)
    e.bias = *next;
  if (s->n_write > 1)
    e.gelu_input = at[s->n_read + 1];
  return e;
}

lm_status lm_cuda_gemm(lm_cuda_gemms *g, const lm_plan_step *s, bool overwrites, const int64_t *var,
                       const lm_cuda_address *at, lm_cuda_address workspace) {
  const lm_plan_gemm *p = s->gemm;
  problem all = problem_make(p, var);
  lm_cuda_call x = {.p = {.m = lm_plan_extent_value(&p->m, var),
                          .n = lm_plan_extent_value(&p->n, var),
                          .k = lm_plan_extent_value(&p->k, var),
                          .a_m = p->a_m,
                          .a_k = p->a_k,
                          .b_k = p->b_k,
                          .b_n = p->b_n,
                          .c_m = p->c_m,
                          .c_n = p->c_n,
                          .add = p->accumulate && !overwrites},
                    .batch = all.batch,
                    .aa = p->dtype_ab,
                    .bb = p->scaled ? p->dtype_b : p->dtype_ab,
                    .cc = p->dtype_c,
                    .scale_a = p->scaled ? at[LM_GEMM_SCALE_A] : 0,
                    .scale_b = p->scaled ? at[LM_GEMM_SCALE_B] : 0,
                    .scales = {p->scales[0], p->scales[1]},
                    .fast = p->fast,
                    .epi = epilogue_of(s, var, at),
                    .step = s};
  bool other = !p->scaled && x.aa != x.cc;
  bool rounds = lm_dtype_is_half((lm_dtype)x.cc) && (all.n_sums > 1 || other);
  if (!x.p.m || !x.p.n || !all.batch.size)
    return NULL;
  if ((p->residual || p->bias || p->gelu) && (p->n_batch || rounds))
    return lm_fail(LM_BUG_STATUS, "a GEMM with batch axes or with rounding has an epilogue");
  for (int64_t i = 0; i < all.n_loops; i++) {
    lm_plan_batch to = lm_plan_batch_at(all.loop, all.n_loop, i);
    x.a = at[0] + bytes_of(to.a, x.aa);
    x.b = at[1] + bytes_of(to.b, x.bb);
    x.c = at[s->n_read] + bytes_of(to.c, x.cc);
    LM_TRY(rounds ? panels_run(g, &x, &all, workspace) : sums_run(g, &x, &all, workspace));
  }
  return NULL;
}
