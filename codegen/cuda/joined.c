// joined.c - several GEMMs in one launch, for sm_90a: the gradients of a layer's weights, each of
// which has too few tiles for all multiprocessors. Both operands have the axis of the sum outside:
//
//   gemm m=2048(1,0,768) n=768(0,1,1) k=16384(2048,768,0) accumulate      48 tiles of 128 x 256
//   gemm m=768(1,0,4096) n=4096(0,1,1) k=16384(768,4096,0) accumulate     96
//
// The tiles of all are numbered one GEMM after the other (gemm_ring.c), and are as wide as the cost
// model expects to be fastest: 262 tiles of 128 x 192 are two rounds of 132 multiprocessors, where
// 192 of 128 x 256 leave half of them idle in the second.
#include "codegen/cuda/gemm.h"
#include "compiler/plan/cost.h"

enum {
  VECTOR = 8,         // elements of 16 bytes
  MOST_ROWS = 1 << 30 // whose numbers, and those behind them, are of 32 bits
};

static bool is_fixed(const lm_plan_gemm *g) {
  return !g->n_batch && !g->groups.count && !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn &&
         g->m.fixed < MOST_ROWS && g->n.fixed < MOST_ROWS && g->k.fixed < MOST_ROWS;
}

// TMA needs lines of multiples of 16 bytes, which begin at multiples of them. A line alone has no
// stride.
static bool lines_fit(const lm_plan_gemm *g) {
  int64_t all = g->m.fixed | g->n.fixed | g->a_k | g->b_k;
  bool apart = g->a_k > 0 && g->b_k > 0;
  return apart && g->aligned && g->a_m == 1 && g->b_n == 1 && all % VECTOR == 0;
}

bool cuda_joins(const lm_target *t, const lm_plan_gemm *g) {
  bool plain = !g->code && !g->residual && !g->bias && !g->gelu && !g->scaled && !g->b_columns;
  bool types = g->dtype_ab == LM_BF16 && g->dtype_c == LM_F32;
  bool result = g->accumulate && g->c_n == 1 && g->c_m % 2 == 0;
  return cuda_ring_fits(t) && plain && types && is_fixed(g) && lines_fit(g) && result;
}

static void params_add(const cuda_gemm *x, cuda_code *c) {
  for (int i = 0; i < x->n_joined; i++) {
    cuda_operand_add(c, LM_BF16, false, lm_arena_printf(c->arena, "a%d", i));
    cuda_operand_add(c, LM_BF16, false, lm_arena_printf(c->arena, "b%d", i));
  }
  for (int i = 0; i < x->n_joined; i++)
    cuda_result_add(c, LM_F32, lm_arena_printf(c->arena, "c%d", i));
}

static const char *last_params(const cuda_gemm *x, lm_arena *arena) {
  lm_buf b = {0};
  for (int i = 0; i < 2 * x->n_joined; i++)
    lm_buf_printf(&b, ", LM_CONSTANT lm_map m%d", i);
  lm_buf_puts(&b, ", int32_t adds");
  const char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static int width_of(const lm_target *t, const lm_plan_gemm *g, int n) {
  lm_cost_gemm all[LM_JOINED];
  int width;
  for (int i = 0; i < n; i++)
    all[i] = (lm_cost_gemm){
        .m = (double)g[i].m.fixed,
        .n = (double)g[i].n.fixed,
        .k = (double)g[i].k.fixed,
        .batch = 1,
        .ab = LM_BF16,
        .alignment = 2 * VECTOR,
        .adds = true,
    };
  lm_cost_of_joined(t, all, n, &width);
  return width;
}

void cuda_join(const lm_plan_options *o, const lm_plan_gemm *g, int n, lm_arena *arena,
               lm_kernel_code *out) {
  cuda_gemm x = {
      .g = g[0],
      .joined = g,
      .n_joined = n,
      .width = width_of(&o->target, g, n),
  };
  lm_buf results = {0}, body = {0};
  cuda_code *c = cuda_code_make(arena, cuda_ring_threads());
  x.panel = x.width;
  params_add(&x, c);
  c->last_params = last_params(&x, arena);
  c->whole_block = true;
  cuda_ring_store(&x, "to", "pitch", "columns", &results);
  cuda_ring_put(&x, lm_arena_strndup(arena, results.p, results.n), &body);
  lm_buf_free(&results);
  cuda_code_body(c, NULL, &body);
  *out = (lm_kernel_code){.launch = cuda_ring_launch(&x, &o->target, arena)};
  out->space.fixed = out->launch.blocks;
  out->launch.blocks = 0;
  out->launch.adds = true;
  out->launch.note = "GEMMs by wgmma on tiles that TMA copies, in one launch";
  cuda_code_render(c, "j", arena, out);
}
