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

// Stores the sums of a row in pairs. If it adds, the loads of a row are in flight together.
static void put_results(const lm_plan_gemm *g, lm_buf *b) {
  const char *type = g->dtype_c == LM_BF16 ? "uint16_t" : "float";
  lm_buf_printf(b,
                "%s *const to = c + (int64_t)walk.group * %lld;\nLM_UNROLL\nfor (int32_t r = 0; r "
                "< 2; r++) {\nconst int32_t row = row0 + lm_thread() / 32 * 16 + lane / 4 + 8 * "
                "r;\nif (row < row_end) {\n",
                type, g->groups.sums ? (long long)g->groups.c : 0);
  lm_buf_printf(b, "%s *const line = to + (int64_t)row * %lld + col0 + lane %% 4 * 2;\n", type,
                (long long)g->c_m);
  if (g->accumulate)
    lm_buf_printf(b,
                  "float y[%d][2] = {{0}};\nif (adds)\nLM_UNROLL\nfor (int32_t i = 0; i < %d; "
                  "i++)\nif (col0 + 8 * i < %lld) lm_load2_f32(y[i], line + 8 * i);\n",
                  CUDA_GEMM_COLUMNS / 8, CUDA_GEMM_COLUMNS / 8, (long long)g->n.fixed);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i++) {\nconst float z[2] = {x[i][2 * r]%s, "
                "x[i][2 * r + 1]%s};\nif (col0 + 8 * i < %lld) lm_store2_%s(line + 8 * i, "
                "z);\n}\n}\n}\n",
                CUDA_GEMM_COLUMNS / 8, g->accumulate ? " + y[i][0]" : "",
                g->accumulate ? " + y[i][1]" : "", (long long)g->n.fixed,
                lm_dtype_name((lm_dtype)g->dtype_c));
}

static cuda_gemm ring_of(const lm_plan_gemm *g) {
  return (cuda_gemm){.g = *g,
                     .rows = 1,
                     .columns = g->n.fixed,
                     .parts = 1,
                     .panel = CUDA_GEMM_COLUMNS,
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
  put_results(g, &results);
  cuda_ring_put(&x, lm_arena_strndup(arena, results.p, results.n), &body);
  lm_buf_free(&results);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.launch = cuda_ring_launch(&x, &o->target, arena)};
  out->launch.adds = g->accumulate;
  out->launch.note = "grouped GEMMs by wgmma on tiles that TMA copies";
  cuda_code_render(c, "g", arena, out);
  return true;
}
