// nvrtc_gemm_test.c - GEMMs with a kernel in their epilogue, grouped GEMMs, and GEMMs of few rows,
// as machine code for sm_90a: no kernel spills registers, and wgmma instructions are not
// serialized. Prints the resources of each.
//
// Prints that it is skipped if there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h"

#include "tests/cuda/gemm_case.h"
#include "tests/cuda/grouped_case.h"
#include "tests/cuda/joined_case.h"

static const gemm_case cases[] = {
    {"swiglu", "b = 8, t = 2048, d = 768, n = 4096, f = 2048", false, "", SWIGLU_RESULTS,
     SWIGLU(2048)},
    {"swiglu derivative", "b = 8, t = 2048, d = 768, n = 2048, m = 4096", true, SWIGLU_VJP_IN,
     SWIGLU_VJP_RESULTS, SWIGLU_VJP(2048)},
    {"gelu, edges", "b = 3, t = 333, d = 1000, n = 520", true, GELU_IN, GELU_RESULTS, GELU},
    {"delta", "b = 8, t = 2048, d = 768, g = 4, h = 3, e = 64", true, DELTA_IN, DELTA_RESULTS,
     DELTA, "g, h, e"},
    {"queries and keys",
     "b = 8, t = 2048, d = 768, g = 4, h = 3, e = 64, two = 2, c = 32, one = 1, nq = 768, nk = "
     "256, n = 1280",
     false, QKV_IN, QKV_RESULTS, QKV(0, 768)},
    {"heads of 128",
     "b = 4, t = 4096, d = 2048, g = 8, h = 2, e = 128, two = 2, c = 64, one = 1, nq = 2048, nk = "
     "1024, n = 4096",
     false, QKV_IN, QKV_RESULTS, QKV(0, 2048)},
    {"delta, edges", "b = 3, t = 333, d = 1000, g = 3, h = 1, e = 128", false, DELTA_IN,
     DELTA_RESULTS, DELTA, "g, h, e"},
};

static void compile(const lm_plan *plan, const lm_plan_kernel *k, lm_cuda_code *out) {
  lm_plan one = *plan;
  one.kernels = (lm_plan_kernel *)k;
  one.n_kernels = 1;
  CHECK_OK(lm_cuda_compile(&one, &(lm_cuda_compile_options){.arch = "sm_90a", .threads = 1}, out));
}

static void test_kernel(const lm_plan *plan, const lm_plan_kernel *k, const char *name) {
  lm_cuda_code code;
  compile(plan, k, &code);
  const lm_cuda_kernel *x = code.kernels;
  printf("%-18s %4d threads %4d registers %6lld bytes shared %5d spilled %6.2f s\n", name,
         k->launch.threads, x->registers, (long long)k->launch.shared, x->spilled, code.seconds);
  fflush(stdout);
  CHECK(x->registers > 0 && !x->spilled && !x->hindered);
  lm_cuda_code_free(&code);
}

// Reads sums while they are computed: the assembler must report that it serializes wgmma.
static void test_hindered(const lm_plan *plan, lm_plan_kernel k, lm_arena *a) {
  static const char wait[] = "lm_wgmma_wait(1);\n", read[] = "lm_order_after(x[0][0]);\n";
  lm_cuda_code code;
  const char *at = strstr(k.source, wait);
  CHECK(at);
  k.source =
      lm_arena_printf(a, "%.*s%s%s", (int)(at - k.source), k.source, read, at + strlen(wait));
  compile(plan, &k, &code);
  CHECK(code.kernels->hindered);
  lm_cuda_code_free(&code);
}

// Weights [d, n] and [n, d] times one row and eight, as one kernel each.
static const char *const few_rows[] = {"t = 1, d = 2048, n = 8192", "t = 8, d = 2048, n = 8192"};

static void test_few_rows(const char *axes) {
  lm_ctx *ctx = lm_ctx_create();
  const char *text = lm_arena_printf(
      ctx->arena,
      "stage step\naxis %s\nfunc @f(%%x: bf16[t, d], %%w: bf16[d, n], %%v: bf16[n, d], %%r: "
      "bf16[t, n]) -> (y: bf16[t, n], z: bf16[t, n]) {\n  %%y = dot_add %%x, %%w, %%r over(d)\n  "
      "%%z = dot_add %%x, %%v, %%r over(d)\n  return %%y, %%z\n}\n",
      axes);
  lm_plan_options target = lm_cuda_options("sm_90a", false);
  lm_plan *plan = lm_plan_build(parse_and_run(ctx, text, "fuse"), &target);
  CHECK(plan && plan->n_kernels == 2);
  for (int i = 0; i < plan->n_kernels; i++)
    test_kernel(plan, &plan->kernels[i],
                lm_arena_printf(ctx->arena, "%.5s, %s", axes, i ? "k" : "columns"));
  lm_ctx_destroy(ctx);
}

// Gradients of the weights of a layer of the 180M model, in one launch.
static void test_joined(void) {
  static const joined_case layer = {"weights", "t = 16384, d = 768, f = 2048, h = 1280", JOINED, 3};
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = lm_cuda_options("sm_90a", false);
  lm_plan *plan = joined_plan(ctx, &layer, &target);
  const lm_plan_kernel *k = &plan->kernels[joined_kernel_of(plan)];
  CHECK(k->launch.n_maps == 2 * layer.joined);
  test_kernel(plan, k, "weights of a layer");
  lm_ctx_destroy(ctx);
}

// Experts of Mixtral.
static const grouped_case experts = {
    "experts", "b = 2, t = 4096, c = 2, n = 16384, g = 8, d = 4096, f = 14336", "g, d, f", ROWS};

// The grouped GEMMs of a module.
static void test_grouped(void (*put)(const grouped_case *, lm_buf *), const char *name) {
  lm_ctx *ctx = lm_ctx_create();
  lm_plan_options target = lm_cuda_options("sm_90a", false);
  lm_buf text = {0};
  put(&experts, &text);
  lm_module *m = parse_and_run(ctx, text.p, "decompose,cse,dce,fuse");
  gemm_kernels_make(m);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].launch.n_maps)
      test_kernel(plan, &plan->kernels[i], name);
  lm_buf_free(&text);
  lm_ctx_destroy(ctx);
}

int main(void) {
  nvrtc_begin(false);
  test_grouped(grouped_text, "experts, gradients");
  test_grouped(gated_text, "gated experts");
  test_joined();
  for (size_t i = 0; i < LM_COUNT(few_rows); i++)
    test_few_rows(few_rows[i]);
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_ctx *ctx = lm_ctx_create();
    lm_plan_options target = lm_cuda_options("sm_90a", false);
    lm_plan *plan = gemm_plan(ctx, &cases[i], &target);
    test_kernel(plan, &plan->kernels[gemm_kernel_of(plan)], cases[i].name);
    if (!i)
      test_hindered(plan, plan->kernels[gemm_kernel_of(plan)], ctx->arena);
    lm_ctx_destroy(ctx);
  }
}
