// tune_test.c - the choice of tiles with simulated times and a simulated clock; results are correct
// with every tiling, and have the same bits for every number of threads.
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/cpu/detect.h"
#include "runtime/cpu/tune.h"
#include "tests/runtime/check.h"
#include "tests/runtime/cpu/plan_gemm.h"

typedef struct planted {
  lm_tile fast, lucky; // fast: takes `time`; lucky: half of it, but only in its first `luck` runs
  double time, now;
  int runs, luck;
} planted;

static bool equal(lm_tile a, lm_tile b) {
  return a.m == b.m && a.n == b.n && a.code == b.code;
}

static double run(void *user, const lm_plan_gemm *g, lm_tile t) {
  planted *x = user;
  double seconds = equal(t, x->fast) ? x->time : equal(t, x->lucky) && x->luck-- > 0 ? 0.5 : 1;
  x->runs++;
  x->now += seconds;
  return seconds;
}

static double now(void *user) {
  return ((planted *)user)->now;
}

static lm_gemm_tilings tune(lm_arena *a, planted *x, double budget, const lm_gemm_tilings *known,
                            int *measured) {
  // the cheaper one first, and twice: equal shapes are measured once
  lm_plan_gemm gemms[] = {gemm_make(256, 128, 64, LM_F32), gemm_make(512, 512, 256, LM_F32),
                          gemm_make(256, 128, 64, LM_F32), gemm_make(8, 8, 8, LM_F32)};
  lm_plan_step steps[LM_COUNT(gemms)] = {0};
  for (size_t i = 0; i < LM_COUNT(gemms); i++)
    steps[i] = (lm_plan_step){.kind = LM_STEP_GEMM, .gemm = &gemms[i]};
  lm_plan_func f = {.name = "micro", .steps = steps, .n_steps = LM_COUNT(steps)};
  lm_plan plan = {.funcs = &f, .n_funcs = 1};
  lm_gemm_tilings none = {0}, out = {0};
  lm_cpu_tune(a, &plan,
              &(lm_tune_options){.threads = 2, .budget = budget, .run = run, .now = now, .user = x},
              known ? known : &none, &out, measured);
  CHECK(out.n == 2 && out.v[0].key.m == 512 && out.v[1].key.m == 256);
  return out;
}

// A plan of one GEMM without known tilings.
static lm_gemm_tiling tune_one(lm_arena *a, lm_plan_gemm *g, const lm_tune_options *o,
                               int *measured) {
  lm_plan_step step = {.kind = LM_STEP_GEMM, .gemm = g};
  lm_plan_func f = {.name = "micro", .steps = &step, .n_steps = 1};
  lm_plan plan = {.funcs = &f, .n_funcs = 1};
  lm_gemm_tilings none = {0}, out = {0};
  lm_cpu_tune(a, &plan, o, &none, &out, measured);
  CHECK(out.n == 1);
  return out.v[0];
}

static void choices_check(lm_arena *a) {
  int measured;
  planted even = {.time = 1};
  lm_gemm_tilings usual = tune(a, &even, 1e9, NULL, &measured);
  lm_tile d = usual.v[0].tile, other = {2 * d.m, d.n};
  CHECK(measured == 2 && usual.v[0].gain == 1 && usual.v[1].gain == 1);
  CHECK(d.m <= 256);
  planted fast = {.fast = other, .time = 0.8};
  lm_gemm_tilings c = tune(a, &fast, 1e9, NULL, &measured);
  CHECK(equal(c.v[0].tile, other) && c.v[0].gain > 1.24 && c.v[0].gain < 1.26);
  planted barely = {.fast = other, .time = 0.98}; // within noise
  c = tune(a, &barely, 1e9, NULL, &measured);
  CHECK(equal(c.v[0].tile, d) && c.v[0].gain == 1);
  planted late = {.fast = other, .time = 0.8}; // the budget ends before anything is measured
  c = tune(a, &late, 5, NULL, &measured);
  CHECK(measured == 0 && equal(c.v[0].tile, d) && c.v[0].gain == 0 &&
        equal(c.v[1].tile, usual.v[1].tile) && c.v[1].gain == 0);
  CHECK(late.runs <= 8);
  planted never = {.time = 1};
  c = tune(a, &never, 0, NULL, &measured);
  CHECK(never.runs == 0 && equal(c.v[0].tile, d));
  c = tune(a, &never, 1e9, &usual, &measured); // known
  CHECK(never.runs == 0 && measured == 0 && c.v[0].gain == 1);
}

// The winner is measured again, which exposes luck that lasts through the first rounds.
static void luck_check(lm_arena *a) {
  int measured;
  planted even = {.time = 1};
  lm_tile d = tune(a, &even, 1e9, NULL, &measured).v[0].tile;
  planted lucky = {.lucky = {2 * d.m, d.n}, .luck = 3, .time = 1};
  lm_gemm_tilings c = tune(a, &lucky, 1e9, NULL, &measured);
  CHECK(equal(c.v[0].tile, d) && c.v[0].gain == 1);
}

static bool code_is_usual(void) {
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  return lm_cpu_prefers_code(&cpu, LM_F32);
}

// If a GEMM has a kernel, the kernel or the library is the default, depending on the processor, and
// the other one is a candidate.
static void code_check(lm_arena *a) {
  lm_plan_gemm g = gemm_make(512, 512, 256, LM_F32);
  g.code = 1;
  lm_gemm_tiling other = {.tile = {.code = !code_is_usual()}};
  lm_gemm_tilings tilings = {&other, 1, 1};
  int measured;
  planted even = {.time = 1};
  lm_tune_options o = {.threads = 2, .budget = 1e9, .run = run, .now = now, .user = &even};
  lm_gemm_tiling usual = tune_one(a, &g, &o, &measured);
  CHECK(usual.tile.code == code_is_usual() && usual.gain == 1);
  CHECK(lm_gemm_key_find(&g, &other.key));
  lm_cpu_gemms *all =
      lm_cpu_gemms_create(&(lm_cpu_gemm_options){.threads = 2, .tilings = &tilings, .code = true});
  planted fast = {.fast = lm_cpu_gemm_tile(all, &g), .time = 0.8};
  lm_cpu_gemms_destroy(all);
  CHECK(fast.fast.code == other.tile.code);
  o.user = &fast;
  lm_gemm_tiling out = tune_one(a, &g, &o, &measured);
  CHECK(equal(out.tile, fast.fast) && out.gain > 1.2);
}

static float *multiply(const lm_plan_gemm *g, int threads, uint32_t primitives,
                       const lm_gemm_tilings *tilings, const char *a, const char *b) {
  float *c = (float *)lm_cpu_matrix_make(g->m.fixed * g->n.fixed, LM_F32);
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){threads, primitives, tilings});
  lm_cpu_gemm_prepare(all, g);
  lm_cpu_gemm(all, g, NULL, a, b, (char *)c);
  lm_cpu_gemms_destroy(all);
  return c;
}

// primitives: also for f32, as for bf16 on processors that multiply it.
static void gemms_check(uint32_t primitives) {
  lm_plan_gemm g = gemm_make(300, 260, 190, LM_F32);
  lm_gemm_tiling tiling = {.tile = {48, 80}};
  lm_gemm_tilings tilings = {&tiling, 1, 1}, none = {0};
  CHECK(lm_gemm_key_find(&g, &tiling.key));
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){1, primitives, &tilings});
  CHECK(equal(lm_cpu_gemm_tile(all, &g), tiling.tile));
  lm_cpu_gemms_destroy(all);
  char *a = lm_cpu_matrix_make(300 * 190, LM_F32);
  char *b = lm_cpu_matrix_make(190 * 260, LM_F32);
  float *one = multiply(&g, 1, primitives, &tilings, a, b);
  float *three = multiply(&g, 3, primitives, &tilings, a, b);
  float *usual = multiply(&g, 1, 0, &none, a, b);
  CHECK(!memcmp(one, three, sizeof(float) * 300 * 260));
  for (int i = 0; i < 300 * 260; i++)
    CHECK(fabsf(one[i] - usual[i]) < 1e-4f);
  float *all_memory[] = {one, three, usual, (float *)a, (float *)b};
  for (size_t i = 0; i < LM_COUNT(all_memory); i++)
    lm_free(all_memory[i]);
}

// Real runs and the real clock: the choice was measured and is a valid tile of the GEMM.
static void real_check(lm_arena *a) {
  lm_plan_gemm g = gemm_make(256, 256, 256, LM_F32);
  g.n_batch = 2;
  g.batch[0].size = fixed(2);
  g.batch[0].a = 256 * 256;
  g.batch[0].b = 0;
  g.batch[0].c = 256 * 256;
  g.batch[1].size = fixed(2);
  g.batch[1].a = 2 * 256 * 256;
  g.batch[1].b = 256 * 256;
  g.batch[1].sum = true;
  int measured;
  lm_gemm_tiling out = tune_one(a, &g, &(lm_tune_options){.threads = 2, .budget = 60}, &measured);
  CHECK(measured == 1 && out.gain >= 1);
  CHECK(out.tile.m > 0 && out.tile.m <= 256 && out.tile.n > 0 && out.tile.n <= 256);
}

static void nothing(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {}

// A kernel that is faster but computes wrong results does not replace the library.
static void wrong_check(lm_arena *a) {
  setenv("LMC_CPU", "x86-64-v2", 1); // a level at which the library is the default
  CHECK(!code_is_usual());
  lm_plan_gemm g = gemm_make(256, 256, 256, LM_F32);
  g.code = 1;
  lm_kernel_fn *const kernels[] = {nothing, nothing};
  int measured;
  lm_gemm_tiling out = tune_one(
      a, &g, &(lm_tune_options){.threads = 1, .kernels = kernels, .budget = 60}, &measured);
  CHECK(measured == 1 && !out.tile.code);
}

// Runs in a separate process, since oneDNN's ISA can be set only once.
static void aside(void (*check)(lm_arena *)) {
  pid_t child = fork();
  int status = 1;
  if (!child) {
    lm_arena *a = lm_arena_create();
    check(a);
    lm_arena_destroy(a);
    exit(0);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
  aside(wrong_check);
  lm_arena *a = lm_arena_create();
  choices_check(a);
  luck_check(a);
  code_check(a);
  gemms_check(0);
  gemms_check(1 << LM_F32);
  real_check(a);
  lm_arena_destroy(a);
  return 0;
}
