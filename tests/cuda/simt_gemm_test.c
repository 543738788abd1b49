// simt_gemm_test.c - GEMMs with a kernel in their epilogue, for sm_90a, under the shim against the
// interpreter: both layouts of B, rows, columns and k that end within a tile, several tiles of a
// block, one step of k. And grouped GEMMs: groups of all sizes, none and all rows among them, rows
// of no group, both layouts of the weights.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2 // so that a block computes several tiles
#include "tests/cuda/simt_run.h"
#include "tests/cuda/chosen.h"
#include "tests/cuda/gemm_case.h"
#include "tests/cuda/grouped_case.h"

static const gemm_case cases[] = {
    {"swiglu, edges", "b = 2, t = 75, d = 328, n = 272, f = 136", false, "", SWIGLU_RESULTS,
     SWIGLU(136)},
    {"swiglu, whole tiles", "b = 1, t = 128, d = 128, n = 512, f = 256", true, "", SWIGLU_RESULTS,
     SWIGLU(256)},
    {"swiglu derivative, edges", "b = 3, t = 50, d = 72, n = 264, m = 528", true, SWIGLU_VJP_IN,
     SWIGLU_VJP_RESULTS, SWIGLU_VJP(264)},
    {"gelu, one step", "b = 1, t = 30, d = 40, n = 24", false, GELU_IN, GELU_RESULTS, GELU},
    {"delta, edges", "b = 2, t = 75, d = 72, g = 2, h = 3, e = 64", true, DELTA_IN, DELTA_RESULTS,
     DELTA, "g, h, e"},
    {"delta, whole tiles", "b = 1, t = 128, d = 64, g = 4, h = 1, e = 128", false, DELTA_IN,
     DELTA_RESULTS, DELTA, "g, h, e"},
    {"norm and rotation of heads",
     "b = 2, t = 75, d = 8, g = 2, h = 3, e = 64, two = 2, c = 32, "
     "one = 1, n = 384",
     false, HEADS_IN, HEADS_RESULTS, HEADS},
    {"norm and rotation, whole tiles",
     "b = 1, t = 128, d = 64, g = 4, h = 4, e = 16, two = 2, "
     "c = 8, one = 1, n = 256",
     true, HEADS_IN, HEADS_RESULTS, HEADS},
    {"queries, keys and values, edges",
     "b = 2, t = 75, d = 72, g = 2, h = 3, e = 64, two = 2, c = 32, one = 1, nq = 384, nk = 128, "
     "n = 640",
     false, QKV_IN, QKV_RESULTS, QKV(0, 384)},
    {"values, keys and queries, whole tiles",
     "b = 1, t = 128, d = 64, g = 4, h = 1, e = 64, two = 2, c = 32, one = 1, nq = 256, nk = 256, "
     "n = 768",
     true, QKV_IN, QKV_RESULTS, QKV(512, 256)},
    {"rotation of queries and keys",
     "b = 1, t = 70, d = 8, g = 1, h = 2, e = 128, two = 2, c = 64, one = 1, nq = 256, nk = 128, "
     "n = 512",
     true, QKV_IN, ROTATED_RESULTS, ROTATED(0, 256)},
    {"queries behind other columns",
     "b = 1, t = 30, d = 40, g = 1, h = 3, e = 16, two = 2, c = 8, one = 1, nq = 48, n = 96", false,
     QKV_IN, QUERIES_RESULTS, QUERIES(32)},
    {"rotation of a part of each head",
     "b = 1, t = 70, d = 72, g = 2, h = 3, e = 64, first = 16, rest = 48, two = 2, c = 8, one = 1, "
     "nq = 6, m = 4, all = 10",
     false, QKV_IN, PARTLY_RESULTS, PARTLY(6), "all, e"},
    {"columns of two axes", "b = 1, t = 70, d = 64, g = 2, e = 64", true, "", SQUARES_RESULTS,
     SQUARES, "g, e"},
    {"gelu, two bands", "b = 2, t = 1050, d = 8, n = 264", true, GELU_IN, GELU_RESULTS, GELU},
};

static void one_kernel(const lm_module *m) {
  gemm_kernels_make(m);
  const lm_op *first = m->funcs->body->first;
  CHECK(lm_kernel_dot(first) && first->next->code == LM_OP_RETURN);
}

static const grouped_case grouped_cases[] = {
    {"uneven groups, edges", "b = 2, t = 75, c = 2, n = 300, g = 4, d = 136, f = 264", "g, d, f",
     ROWS},
    {"groups without rows", "b = 1, t = 317, c = 2, n = 634, g = 9, d = 136, f = 128", "g, f, d",
     ROWS},
    {"rows of no group, experts between the axes of a matrix",
     "b = 1, t = 128, c = 2, n = 256, g = 3, d = 128, f = 256", "d, g, f", SOME_ROWS},
    {"all rows in one group", "b = 1, t = 65, c = 2, n = 130, g = 1, d = 144, f = 136", "g, d, f",
     ROWS},
    {"few rows of a group, in one step of k",
     "b = 1, t = 66, c = 1, n = 66, g = 1, d = 136, f = 328", "g, f, d", SOME_ROWS},
};

// All GEMMs read tensor maps.
static void by_warpgroups(const lm_plan *plan) {
  for (int i = 0; i < plan->funcs[0].n_steps; i++) {
    const lm_plan_step *s = &plan->funcs[0].steps[i];
    CHECK(!s->gemm || plan->kernels[lm_plan_step_kernel(s)].launch.n_maps == 2);
  }
}

static void gemm_test(const gemm_case *c, uint64_t seed) {
  lm_buf text = {0};
  gemm_text(c, &text);
  // sums in f32 of values that were rounded to bf16
  bool rounds = strstr(c->results, "f32[b, t, g, h]");
  run_both(text.p, &(run_options){.name = c->name,
                                  .tolerance = 1e-6,
                                  .seed = seed,
                                  .rounds = rounds,
                                  .kernels = one_kernel});
  lm_buf_free(&text);
}

static void grouped_test(const grouped_case *c, uint64_t seed) {
  lm_buf text = {0};
  grouped_text(c, &text);
  run_both(text.p,
           &(run_options){.name = c->name, .tolerance = 2e-6, .seed = seed, .plan = by_warpgroups});
  lm_buf_free(&text);
}

static const grouped_case gated_cases[] = {
    {"gated experts, edges", "b = 2, t = 75, c = 2, n = 300, g = 4, d = 72, f = 264", "g, d, f",
     SOME_ROWS},
    {"gated experts, groups without rows",
     "b = 1, t = 317, c = 2, n = 634, g = 9, d = 136, f = 128", "g, f, d", ROWS},
};

// One kernel begins with a grouped GEMM, whose sums are in registers; it reads those of the others.
static void gated_kernels(const lm_module *m) {
  int n = 0, apart = 0;
  gemm_kernels_make(m);
  for (const lm_op *op = m->funcs->body->first; op; op = op->next) {
    n += lm_kernel_dot(op) && lm_kernel_dot(op)->code == LM_OP_GROUPED_DOT;
    apart += op->code == LM_OP_GROUPED_DOT;
  }
  CHECK(n == 1 && apart == 2);
}

static void gated_test(const grouped_case *c, uint64_t seed) {
  lm_buf text = {0};
  gated_text(c, &text);
  run_both(text.p, &(run_options){.name = c->name,
                                  .tolerance = 2e-6,
                                  .seed = seed,
                                  .rounds = true,
                                  .kernels = gated_kernels,
                                  .plan = by_warpgroups});
  lm_buf_free(&text);
}

// The rows of group 1 are NaN. Those of the groups beside it, which tiles and steps have too, are
// not, and neither are the gradients of their weights, as the reference says.
static void nan_test(uint64_t seed) {
  static const char text[] =
      "stage step\naxis b = 2, t = 150, c = 1, n = 300, g = 4, d = 136, f = 264\n"
      "func @f(%x: bf16[b, t, d], %i: int[b, t, c], %w: bf16[g, d, f]) -> (y: bf16[n, f], "
      "s: f32[g, d, f], v: f32[g, f, d]) {\n"
      "  %j = slice %i (c) -> () [0, 1]\n  %one = const 1 : int\n  %is = eq %j, %one\n"
      "  %z = sub %x, %x\n  %nan = div %z, %z\n  %h = select %is, %nan, %x\n"
      "  %k = group_counts %i (b, t, c) -> (g)\n  %o = group_order %i, %k (b, t, c) -> (n)\n"
      "  %p = group_inverse %i, %k over(b, t, c)\n"
      "  %r = group_rows %h, %o, %p (b, t, c) -> (n)\n"
      "  %y = grouped_dot %r, %w, %k over(d)\n"
      "  %s = grouped_outer %r, %y, %k over(n) : f32[g, d, f]\n"
      "  %v = grouped_outer %y, %r, %k over(n) : f32[g, f, d]\n"
      "  return %y, %s, %v\n}\n";
  run_both(text, &(run_options){.name = "NaN in one group",
                                .tolerance = 2e-6,
                                .seed = seed,
                                .rounds = true,
                                .plan = by_warpgroups});
}

int main(int argc, char **argv) {
  const char *argument = argc > 1 ? argv[1] : NULL;
  cache_begin();
  if (!RUN_HAS("sm_90a"))
    return 0;
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    if (case_is_chosen(cases[i].name, argument))
      gemm_test(&cases[i], i);
  for (size_t i = 0; i < LM_COUNT(grouped_cases); i++)
    if (case_is_chosen(grouped_cases[i].name, argument))
      grouped_test(&grouped_cases[i], i);
  for (size_t i = 0; i < LM_COUNT(gated_cases); i++)
    if (case_is_chosen(gated_cases[i].name, argument))
      gated_test(&gated_cases[i], i);
  if (case_is_chosen("NaN in one group", argument))
    nan_test(1);
}
