// simt_gemm_test.c - GEMMs with a kernel in their epilogue, for sm_90a, under the shim against the
// interpreter: both layouts of B, rows, columns and k that end within a tile, several tiles of a
// block, one step of k.
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2 // so that a block computes several tiles
#include "tests/cuda/simt_run.h"
#include "tests/cuda/gemm_case.h"

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
    {"columns of two axes", "b = 1, t = 70, d = 64, g = 2, e = 64", true, "", SQUARES_RESULTS,
     SQUARES, "g, e"},
    {"gelu, two bands", "b = 2, t = 1050, d = 8, n = 264", true, GELU_IN, GELU_RESULTS, GELU},
};

static void one_kernel(const lm_module *m) {
  gemm_kernels_make(m);
  const lm_op *first = m->funcs->body->first;
  CHECK(lm_kernel_dot(first) && first->next->code == LM_OP_RETURN);
}

int main(int argc, char **argv) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(cases) && RUN_HAS("sm_90a"); i++) {
    lm_buf text = {0};
    if (argc > 1 && !strcmp(argv[1], "--list")) {
      printf("%s\n", cases[i].name);
      continue;
    }
    if (argc > 1 && !strstr(cases[i].name, argv[1]))
      continue;
    gemm_text(&cases[i], &text);
    // sums in f32 of values that were rounded to bf16
    bool rounds = strstr(cases[i].results, "f32[b, t, g, h]");
    run_both(text.p, &(run_options){.name = cases[i].name,
                                    .tolerance = 1e-6,
                                    .seed = i,
                                    .rounds = rounds,
                                    .kernels = one_kernel});
    lm_buf_free(&text);
  }
}
