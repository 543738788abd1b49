// roofline.c - see roofline.h. Bandwidth is measured with c = a + s b, each thread on its own part
// of the arrays.
#include "runtime/cpu/roofline.h"

#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/cpu/gemm.h"

enum {
  REPEATS = 3,
  TOUCHED = 64 << 20
}; // best of; bytes that a measurement moves at least

// Sanitizers would check each access, and their checks would be measured.
__attribute__((no_sanitize("address", "undefined"))) static void
triad(const float *a, const float *b, float *c, int64_t n, float s) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++)
    c[i] = a[i] + s * b[i];
}

typedef struct triads {
  float *arrays;
  int64_t n;
  int rounds;
  int threads;
} triads;

static void triads_do(void *user, int me) {
  const triads *t = user;
  int64_t n = t->n;
  int64_t lo = n * me / t->threads;
  int64_t hi = n * (me + 1) / t->threads;
  float *a = t->arrays;
  for (int k = 0; k < t->rounds; k++)
    triad(a + lo, a + n + lo, a + 2 * n + lo, hi - lo, (float)k);
}

// n floats in each array.
static double triad_time(lm_team *team, float *arrays, int64_t n, int rounds) {
  triads t = {arrays, n, 1, lm_team_size(team)};
  double best = 1e30;
  lm_team_run(team, triads_do, &t); // touches the pages
  t.rounds = rounds;
  for (int i = 0; i < REPEATS; i++) {
    double start = lm_now();
    lm_team_run(team, triads_do, &t);
    double took = lm_now() - start;
    if (took < best)
      best = took;
  }
  return best / rounds;
}

void lm_cpu_measure(lm_target *t, int threads, lm_dtype dtype) {
  int64_t most = (int64_t)LM_TARGET_MIN_BYTES << 2 * (LM_TARGET_SIZES - 1);
  float *arrays = (float *)(void *)lm_cpu_zeros_make(most / (int64_t)sizeof *arrays);
  if (threads <= 0)
    threads = lm_threads(0);
  t->math[dtype].peak = lm_cpu_peak(threads, dtype);
  // Lanes of a vector that multiply and add, two FLOPs, in f32.
  double f32 = dtype == LM_F32 ? t->math[dtype].peak : lm_cpu_peak(threads, LM_F32);
  t->math[LM_F32].peak = f32;
  t->rates.lanes = f32 / 2;
  lm_team *team = lm_team_create(threads);
  for (int i = 0; i < LM_TARGET_SIZES; i++) {
    int64_t bytes = (int64_t)LM_TARGET_MIN_BYTES << 2 * i;
    int64_t n = bytes / 3 / (int64_t)sizeof *arrays;
    int rounds = (int)(TOUCHED / bytes) + 1;
    t->bandwidth[i] = (double)bytes / triad_time(team, arrays, n, rounds);
  }
  lm_team_destroy(team);
  // A smaller working set is not slower than a larger one; this removes disturbed measurements.
  for (int i = LM_TARGET_SIZES - 2; i >= 0; i--)
    if (t->bandwidth[i] < t->bandwidth[i + 1])
      t->bandwidth[i] = t->bandwidth[i + 1];
  lm_free(arrays);
}
