// gemm_memory_test.c - memory after GEMMs by oneDNN: the process grows by the panels of each thread
// once, not with every call.
// Build: plain
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gemm_call.h"
#include "tests/runtime/check.h"
#include "tests/sanitizer.h"

enum {
  THREADS = 2,
  CALLS = 30,
  M = 1000,
  N = 768,
  K = 512,
  ROW = 32000,
  MOST = 4 << 20 /* of a thread; panels take 0.9 MB */
};

static int64_t anonymous_bytes(void) {
  lm_buf text = {0};
  CHECK_OK(lm_file_read("/proc/self/status", 1 << 20, &text));
  const char *at = strstr(text.p, "RssAnon:");
  CHECK(at);
  int64_t bytes = 1024 * strtoll(at + strlen("RssAnon:"), NULL, 10);
  lm_buf_free(&text);
  return bytes;
}

// A has unit stride along its columns and a large row stride, for which the library copies operands
// into panels.
static void gemm_run(const float *a, const float *b, float *c) {
  lm_gemm_shape s = {.m = M,
                     .n = N,
                     .k = K,
                     .a_m = 1,
                     .a_k = ROW,
                     .b_k = N,
                     .b_n = 1,
                     .c_m = N,
                     .c_n = 1,
                     .ab = LM_F32,
                     .cc = LM_F32};
  CHECK(!lm_gemm_packs(&s));
  lm_gemm_call(&s, (const char *)a, (const char *)b, c, false, NULL);
}

typedef struct operands {
  const float *a, *b;
  float *c;
} operands;

static void gemms_run(void *user, int me) {
  const operands *o = user;
  for (int i = 0; i < CALLS; i++)
    gemm_run(o->a, o->b, o->c + me * M * N);
}

int main(void) {
#if LM_ADDRESS_SANITIZER
  return 0; // it does not return freed memory
#endif
  float *a = lm_calloc((size_t)ROW * K, sizeof *a);
  float *b = lm_calloc(K * N, sizeof *b);
  float *c = lm_calloc(THREADS * M * N, sizeof *c);
  memset(c, 1, sizeof *c * THREADS * M * N); // faults in its pages
  lm_team *team = lm_team_create(THREADS);
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){.threads = THREADS, .team = team});
  int64_t before = anonymous_bytes();
  operands o = {a, b, c};
  lm_team_run(team, gemms_run, &o);
  int64_t grown = anonymous_bytes() - before;
  printf("%d GEMMs on each of %d threads: %.1f MB\n", CALLS, THREADS, (double)grown * 1e-6);
  CHECK(grown < (int64_t)THREADS * MOST);
  lm_cpu_gemms_destroy(all);
  lm_team_destroy(team);
  lm_free(a);
  lm_free(b);
  lm_free(c);
  return 0;
}
