// units_test.c - a kernel gives the same bits with any other kernels in its translation
// unit: alone, beside all others, and beside some in another order, under each installed compiler.
// Build: plain
#include "tests/codegen/cache.h"
#include "runtime/cpu/process.h"
#include "tests/codegen/run.h"

enum {
  N = 1000,
  RESULTS = 2
};

// Each computes %r from %x and %y. They call the same functions of the prelude, so that a compiler
// that counts calls would inline a function in a small unit only.
static const char *const BODIES[] = {
    "%a = mul %x, %x\n%r = log %a\n",
    "%a = mul %x, %y\n%b = exp %a\n%r = log %b\n",
    "%a = exp %x\n%b = add %a, %y\n%c = mul %b, %b\n%d = log %c\n%r = tanh %d\n",
    "%a = erf %x\n%b = tanh %y\n%r = add %a, %b\n",
    "%a = erf %y\n%b = mul %a, %x\n%r = erf %b\n",
    "%a = mul %x, %x\n%r = pow %a, %y\n",
    "%a = exp %y\n%b = pow %a, %x\n%c = log %b\n%r = mul %c, %x\n",
    "%a = sin %x\n%b = cos %y\n%c = mul %a, %b\n%r = mod %c, %y\n",
    "%a = mul %y, %y\n%b = log1p %a\n%c = sin %b\n%r = sub %c, %x\n",
    "%a = mod %x, %y\n%b = cos %a\n%c = mul %b, %b\n%r = log1p %c\n",
};
enum {
  FUNCTIONS = LM_COUNT(BODIES)
};

// A module with the functions `which[0..n)`. Each returns %r and its sum.
static void module_print(const int *which, int n, lm_buf *out) {
  lm_buf_puts(out, "stage step\naxis n = 1000\n");
  for (int i = 0; i < n; i++)
    lm_buf_printf(out,
                  "func @f%d(%%x: f32[n], %%y: f32[n]) -> (r: f32[n], s: f32) {\n%s"
                  "%%s = sum %%r over(n)\nreturn %%r, %%s\n}\n",
                  which[i], BODIES[which[i]]);
}

static void function_run(lm_exec *e, const lm_plan *plan, int which, float (*out)[N]) {
  char name[16];
  snprintf(name, sizeof name, "f%d", which);
  const lm_plan_func *f = lm_plan_func_find(plan, name);
  uint64_t state = 1;
  CHECK(f && f->n_out == RESULTS);
  for (int i = 0; i < f->n_in; i++)
    for (int j = 0; j < N; j++)
      ((float *)lm_exec_port(e, &f->in[i]))[j] = 3 * (float)draw(&state);
  CHECK_OK(lm_exec_call(e, f, NULL));
  memcpy(out[0], lm_exec_port(e, &f->out[0]), sizeof out[0]);
  memcpy(out[1], lm_exec_port(e, &f->out[1]), sizeof(float));
}

// Compiles the functions together, in a cache that holds nothing yet, and runs each.
static void unit_run(const int *which, int n, float (*out)[RESULTS][N]) {
  static int serial;
  char folder[512];
  lm_buf text = {0};
  module_print(which, n, &text);
  const char *all = getenv("LMC_CACHE");
  lm_arena *a = lm_arena_create();
  const char *base = lm_arena_strndup(a, all, strlen(all));
  snprintf(folder, sizeof folder, "%s/%d", base, serial++);
  setenv("LMC_CACHE", folder, 1);
  lm_ctx *c = lm_ctx_create();
  lm_module *m = parse_and_run(c, text.p, "decompose,cse,dce,fuse");
  lm_plan_options target = lm_cpu_options();
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  for (int i = 0; i < n; i++)
    function_run(e, plan, which[i], out[which[i]]);
  lm_exec_destroy(e);
  lm_ctx_destroy(c);
  setenv("LMC_CACHE", base, 1);
  lm_arena_destroy(a);
  lm_buf_free(&text);
}

static float want[FUNCTIONS][RESULTS][N], got[FUNCTIONS][RESULTS][N];

static void compare(const char *compiler, const int *which, int n) {
  memset(got, 0, sizeof got);
  unit_run(which, n, got);
  for (int i = 0; i < n; i++) {
    if (!memcmp(got[which[i]], want[which[i]], sizeof got[0]))
      continue;
    fprintf(stderr, "%s: @f%d gives other bits beside %d functions\n", compiler, which[i], n - 1);
    exit(1);
  }
}

static void compiler_check(const char *compiler) {
  int order[FUNCTIONS];
  for (int i = 0; i < FUNCTIONS; i++)
    order[i] = i;
  memset(want, 0, sizeof want);
  unit_run(order, FUNCTIONS, want);
  for (int i = 0; i < FUNCTIONS; i++)
    compare(compiler, &i, 1);
  for (int i = 0; i < FUNCTIONS; i++)
    order[i] = FUNCTIONS - 1 - i;
  compare(compiler, order, FUNCTIONS);
  compare(compiler, order, FUNCTIONS / 2);
  compare(compiler, order + FUNCTIONS / 2, FUNCTIONS - FUNCTIONS / 2);
}

int main(void) {
  static const char *const compilers[] = {"gcc", "clang"};
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(compilers); i++) {
    char path[512];
    if (!lm_executable_find(compilers[i], path, sizeof path))
      continue;
    setenv("LMC_CC", compilers[i], 1);
    compiler_check(compilers[i]);
  }
  return 0;
}
