// gemm_bench.c - the GEMMs of the models of docs/benchmarks.md by the library and by generated
// code, each the best of some runs in turn: GFLOP/s of the library, and the time of the code ÷ the
// library's.
//   gemm_bench [THREADS [f32|bf16 [RUNS [all]]]]     all: also where the library is the default
// On one thread it is processor time, which others on the machine disturb less.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "codegen/cpu/cpu.h"
#include "runtime/base/processors.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "tests/runtime/check.h"

typedef struct model {
  const char *name;
  lm_cpu_linear p[8];
  int n;
} model;
typedef struct bench {
  int threads, runs;
  bool all;
  lm_dtype dtype;
  lm_target target; // this processor
  lm_arena *arena;
} bench;
typedef struct total {
  double flops, library, best;
} total;

// y[m, n] = x[m, k] w[k, n]; the projection to the vocabulary some rows at a time
static const model models[] = {
    {"6M",
     {{8192, 256, 256, 12},
      {8192, 256, 128, 12},
      {8192, 256, 768, 12},
      {8192, 768, 256, 6},
      {1024, 256, 4096, 8}},
     5},
    {"124M",
     {{4096, 768, 768, 24},
      {4096, 768, 256, 24},
      {4096, 768, 2048, 24},
      {4096, 2048, 768, 12},
      {256, 768, 32000, 16}},
     5},
};

static double now(const bench *b) {
  struct timespec t;
  if (b->threads > 1)
    return lm_now();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double run(const bench *b, lm_cpu_gemms *all, const lm_plan_gemm *g, char *const *memory) {
  double start = now(b);
  lm_cpu_gemm(all, g, NULL, memory[0], memory[1], memory[2]);
  return now(b) - start;
}

static void gemm_bench(const bench *b, lm_plan_gemm g, int count, total *t) {
  int64_t m = g.m.fixed;
  int64_t n = g.n.fixed;
  int64_t k = g.k.fixed;
  g.dtype_ab = (uint8_t)b->dtype;
  g.dtype_c = g.accumulate ? LM_F32 : (uint8_t)b->dtype;
  lm_kernel_code code = {0};
  lm_plan_kernel kernel = {0};
  lm_plan plan = {.prelude = lm_cpu_prelude_text(b->arena), .kernels = &kernel};
  if ((b->all || lm_cpu_gemm_is_profitable(&b->target, &g)) &&
      lm_cpu_gemm_emit(NULL, &g, true, b->arena, &code))
    plan.n_kernels = g.code = 1;
  kernel = (lm_plan_kernel){.name = code.name, .source = code.source};
  lm_kernels kernels;
  CHECK_OK(lm_kernels_load(&plan, &(lm_exec_options){0}, 1, &kernels));
  lm_cpu_gemm_options o = {.threads = b->threads};
  lm_cpu_gemms *library = lm_cpu_gemms_create(&o);
  lm_gemm_tiling tiling = {.tile = {.code = true}};
  lm_gemm_tilings tilings = {&tiling, 1, 1};
  o.code = lm_gemm_key_find(&g, &tiling.key);
  o.tilings = &tilings;
  o.kernels = kernels.fn;
  lm_cpu_gemms *own = lm_cpu_gemms_create(&o);
  char *memory[] = {lm_cpu_matrix_make(m * k, b->dtype), lm_cpu_matrix_make(k * n, b->dtype),
                    lm_cpu_matrix_make(m * n, LM_F32)};
  double best[2] = {1e30, 1e30}, flops = 2.0 * (double)m * (double)n * (double)k;
  lm_cpu_gemm_prepare(library, &g);
  lm_cpu_gemm_prepare(own, &g);
  for (int i = 0; i < b->runs; i++)
    for (int j = 0; j < 1 + g.code; j++) {
      double took = run(b, j ? own : library, &g, memory);
      if (took < best[j])
        best[j] = took;
    }
  printf(" %8.1f", flops / best[0] * 1e-9);
  if (g.code)
    printf(" %6.3f", best[1] / best[0]);
  else
    printf(" %6s", "-");
  t->flops += flops * count;
  t->library += best[0] * count;
  t->best += (g.code ? best[1] : best[0]) * count;
  lm_cpu_gemms_destroy(library);
  lm_cpu_gemms_destroy(own);
  lm_kernels_unload(&kernels);
  for (int i = 0; i < 3; i++)
    lm_free(memory[i]);
}

static void projection_bench(const bench *b, const char *name, const lm_cpu_linear *p, total *t) {
  lm_cpu_linear_gemms g = lm_cpu_linear_gemms_of(p);
  printf("%-6s %6d %6d %6d", name, (int)p->m, (int)p->k, (int)p->n);
  gemm_bench(b, g.forward, p->count, t);
  gemm_bench(b, g.data, p->count, t);
  gemm_bench(b, g.weight, p->count, t);
  printf("\n");
  fflush(stdout);
}

int main(int argc, char **argv) {
  bench b = {.threads = argc > 1 ? atoi(argv[1]) : lm_processors(),
             .runs = argc > 3 ? atoi(argv[3]) : 5,
             .all = argc > 4,
             .arena = lm_arena_create()};
  lm_cpu_target_find(&b.target);
  lm_cpu_codegen.choose(&b.target);
  b.dtype = argc > 2 && !strcmp(argv[2], "bf16") ? LM_BF16 : LM_F32;
  printf("%d threads, peak %.0f GFLOP/s\n%-6s %6s %6s %6s %15s %15s %15s\n", b.threads,
         lm_cpu_peak(b.threads, LM_F32) * 1e-9, "model", "m", "k", "n", "forward", "data",
         "weight");
  for (size_t i = 0; i < LM_COUNT(models); i++) {
    total t = {0};
    for (int j = 0; j < models[i].n; j++)
      projection_bench(&b, models[i].name, &models[i].p[j], &t);
    printf("%-6s all %.1f GFLOP/s by the library; with code where there is some, in %.3f of the "
           "time\n",
           models[i].name, t.flops / t.library * 1e-9, t.best / t.library);
  }
  lm_arena_destroy(b.arena);
}
