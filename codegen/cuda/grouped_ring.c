// grouped_ring.c - grouped GEMMs by warpgroups (gemm_ring.c): bf16 operands whose lines TMA copies.
#include "codegen/cuda/gemm.h"

enum {
  // Fewer rows of a group, or columns, are tiles of which most is idle.
  LEAST_ROWS = CUDA_GEMM_ROWS / 2,
  LEAST_COLUMNS = CUDA_GEMM_COLUMNS / 2,
  MOST_ROWS = 1 << 30, // whose numbers, and those behind them, are of 32 bits
  VECTOR = 8           // elements of 16 bytes
};

static bool is_fixed(const lm_plan_gemm *g) {
  return !g->n_batch && !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn && g->m.fixed < MOST_ROWS &&
         g->k.fixed < MOST_ROWS;
}

static bool is_large(const lm_plan_gemm *g) {
  int64_t rows = g->groups.sums ? g->m.fixed : g->m.fixed / g->groups.count;
  return rows > LEAST_ROWS && g->n.fixed >= LEAST_COLUMNS;
}

// True if both operands have lines of unit stride, apart by multiples of 16 bytes: along k, and the
// columns of B; if the rows of groups are along k, the rows and columns of the result.
static bool lines_fit(const lm_plan_gemm *g) {
  bool sums = g->groups.sums;
  bool b_by_k = g->b_k == 1 && !sums;
  int64_t all = g->n.fixed | (sums ? g->a_k | g->m.fixed : g->a_m | g->k.fixed | g->groups.b);
  all |= b_by_k ? g->b_n : g->b_k;
  return g->aligned && (sums ? g->a_m : g->a_k) == 1 && (b_by_k || g->b_n == 1) &&
         all % VECTOR == 0;
}

// The strides of a tensor map are multiples of each other.
static bool matrices_fit(const lm_plan_gemm *g) {
  int64_t line = g->b_k == 1 ? g->b_n : g->b_k;
  return g->groups.sums || g->groups.b % line == 0 || line % g->groups.b == 0;
}

static bool result_fits(const lm_plan_gemm *g) {
  bool half = g->dtype_c == LM_BF16 && !g->accumulate;
  return (half || g->dtype_c == LM_F32) && g->c_n == 1 && (g->c_m | g->groups.c) % 2 == 0;
}

bool cuda_ring_copies(const lm_plan_gemm *g) {
  return g->dtype_ab == LM_BF16 && is_fixed(g) && is_large(g) && lines_fit(g) && matrices_fit(g);
}

static void put_results(const cuda_gemm *x, lm_buf *b) {
  const lm_plan_gemm *g = &x->g;
  char pitch[24], columns[24];
  snprintf(pitch, sizeof pitch, "%lld", (long long)g->c_m);
  snprintf(columns, sizeof columns, "%lld", (long long)g->n.fixed);
  lm_buf_printf(b, "%s *const to = c + (int64_t)walk.group * %lld;\n",
                g->dtype_c == LM_BF16 ? "uint16_t" : "float",
                g->groups.sums ? (long long)g->groups.c : 0);
  cuda_ring_store(x, "to", pitch, columns, b);
}

static cuda_gemm ring_of(const lm_plan_gemm *g) {
  return (cuda_gemm){.g = *g,
                     .rows = 1,
                     .columns = g->n.fixed,
                     .parts = 1,
                     .panel = CUDA_GEMM_COLUMNS,
                     .width = CUDA_GEMM_COLUMNS,
                     .by_k = g->b_k == 1 && !g->groups.sums,
                     .counts = "counts"};
}

bool cuda_grouped_ring_emit(const lm_plan_options *o, const lm_plan_gemm *g, lm_arena *arena,
                            lm_kernel_code *out) {
  if (!cuda_ring_fits(&o->target) || !cuda_ring_copies(g) || !result_fits(g))
    return false;
  cuda_gemm x = ring_of(g);
  cuda_code *c = cuda_code_make(arena, cuda_ring_threads());
  lm_buf results = {0}, body = {0};
  cuda_operand_add(c, LM_BF16, false, "a");
  cuda_operand_add(c, LM_BF16, false, "b");
  cuda_operand_add(c, LM_INT, false, "counts");
  cuda_result_add(c, (lm_dtype)g->dtype_c, "c");
  c->last_params = g->accumulate ? ", LM_CONSTANT lm_map m0, LM_CONSTANT lm_map m1, int32_t adds"
                                 : ", LM_CONSTANT lm_map m0, LM_CONSTANT lm_map m1";
  c->whole_block = true;
  put_results(&x, &results);
  cuda_ring_put(&x, lm_arena_strndup(arena, results.p, results.n), &body);
  lm_buf_free(&results);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.launch = cuda_ring_launch(&x, &o->target, arena)};
  out->launch.adds = g->accumulate;
  out->launch.note = "grouped GEMMs by wgmma on tiles that TMA copies";
  cuda_code_render(c, "g", arena, out);
  return true;
}
