// gemm_bench.c - GFLOP/s of the projections of the models of docs/benchmarks.md against the machine's peak.
//   gemm_bench [THREADS [f32|bf16]]
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/gemm.h"

typedef struct model { const char *name; lm_cpu_projection p[8]; int n; } model;

static const model models[] = {
  {"6M", {{8192, 256, 256, 6}, {8192, 256, 128, 12}, {8192, 256, 256, 6}, {8192, 256, 768, 12}, {8192, 768, 256, 6}, {8192, 256, 4096, 1}}, 6},
  {"124M", {{4096, 768, 768, 12}, {4096, 768, 256, 24}, {4096, 768, 768, 12}, {4096, 768, 2048, 24}, {4096, 2048, 768, 12}, {4096, 768, 32000, 1}}, 6},
};

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
  lm_dtype dtype = argc > 2 && !strcmp(argv[2], "bf16") ? LM_BF16 : LM_F32;
  double peak = lm_cpu_peak(threads) * 1e-9;
  printf("%d threads, peak %.0f GFLOP/s\n%-8s %6s %6s %6s %9s %9s %9s  GFLOP/s\n", threads, peak, "model", "m", "k", "n", "forward", "data", "weight");
  for (size_t i = 0; i < LM_COUNT(models); i++) {
    double all = 0, flops = 0;
    for (int j = 0; j < models[i].n; j++) {
      const lm_cpu_projection *p = &models[i].p[j];
      lm_cpu_gemm_times t = lm_cpu_gemm_bench(p, 1, dtype, threads, 5);
      double f = 2e-9 * (double)p->m * (double)p->k * (double)p->n * p->count;
      all += t.forward + t.data + t.weight;
      flops += 3 * f;
      printf("%-8s %6d %6d %6d %9.1f %9.1f %9.1f\n", models[i].name, (int)p->m, (int)p->k, (int)p->n, f / t.forward, f / t.data, f / t.weight);
    }
    printf("%-8s all %.1f ms, %.1f GFLOP/s, %.0f %% of peak\n", models[i].name, all * 1e3, flops / all, 100 * flops / all / peak);
  }
}
