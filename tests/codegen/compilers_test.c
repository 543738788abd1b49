// compilers_test.c - operations of a fused kernel under each installed C compiler: a product is
// rounded before it is added, and all compilers give the same bits, whatever else the kernel
// computes.
#include "tests/codegen/cache.h"
#include "runtime/cpu/process.h"
#include "tests/codegen/run.h"

enum {
  N = 1000
};

// Sums with products that are used once; and with products that must be rounded, since they are
// results.
static const char TEXT[] =
    "stage step\naxis n = 1000\n"
    "func @f(%x: f32[n], %y: f32[n], %z: f32[n]) -> (a: f32[n], b: f32[n], c: f32[n], d: f32[n], "
    "e: f32[n], g: f32[n]) {\n"
    "  %p = mul %x, %y\n  %a = add %p, %z\n  %o = mul %y, %z\n  %b = sub %x, %o\n  %q = mul %a, "
    "%a\n  %r = add %q, %x\n  %e = exp %r\n  %s = sin %r\n"
    "  %t = tanh %s\n  %l = log %e\n  %m = mod %r, %e\n  %u = pow %e, %x\n  return %a, %b, %r, %l, "
    "%t, %u\n}\n"
    "func @g(%x: f32[n], %y: f32[n], %z: f32[n]) -> (p: f32[n], o: f32[n], a: f32[n], b: f32[n]) "
    "{\n"
    "  %p = mul %x, %y\n  %a = add %p, %z\n  %o = mul %y, %z\n  %b = sub %x, %o\n  return %p, %o, "
    "%a, %b\n}\n";

static void arguments_fill(lm_exec *e, const lm_plan_func *f) {
  uint64_t state = 1;
  for (int i = 0; i < f->n_in; i++)
    for (int j = 0; j < N; j++)
      ((float *)lm_exec_port(e, &f->in[i]))[j] = (float)draw(&state);
}

static void results_check(lm_exec *e, const lm_plan_func *f, int sum, int difference) {
  const float *x = lm_exec_port(e, &f->in[0]);
  const float *y = lm_exec_port(e, &f->in[1]);
  const float *z = lm_exec_port(e, &f->in[2]);
  const float *a = lm_exec_port(e, &f->out[sum]);
  const float *b = lm_exec_port(e, &f->out[difference]);
  for (int j = 0; j < N; j++) {
    volatile float p = x[j] * y[j];
    volatile float o = y[j] * z[j];
    CHECK(a[j] == p + z[j] && b[j] == x[j] - o);
  }
}

// Appends the bits of every result.
static void function_run(lm_exec *e, const lm_plan *plan, const char *name, int sum, int difference,
                         lm_buf *out_bits) {
  const lm_plan_func *f = lm_plan_func_find(plan, name);
  arguments_fill(e, f);
  CHECK_OK(lm_exec_call(e, f, NULL));
  results_check(e, f, sum, difference);
  for (int i = 0; i < f->n_out; i++)
    lm_buf_add(out_bits, lm_exec_port(e, &f->out[i]), N * sizeof(float));
}

static void plan_run(const lm_plan *plan, lm_buf *out_bits) {
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  function_run(e, plan, "f", 0, 1, out_bits);
  function_run(e, plan, "g", 2, 3, out_bits);
  lm_exec_destroy(e);
}

int main(void) {
  static const char *const compilers[] = {"cc", "gcc", "clang"};
  cache_begin();
  lm_ctx *c = lm_ctx_create();
  lm_module *m = parse_and_run(c, TEXT, "decompose,cse,dce,fuse");
  lm_plan_options target = lm_cpu_options();
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  lm_buf first = {0};
  for (size_t i = 0; i < LM_COUNT(compilers); i++) {
    char path[512];
    lm_buf bits = {0};
    if (!lm_executable_find(compilers[i], path, sizeof path))
      continue;
    setenv("LMC_CC", compilers[i], 1);
    plan_run(plan, &bits);
    if (!first.n)
      lm_buf_add(&first, bits.p, bits.n);
    CHECK(bits.n == first.n && !memcmp(bits.p, first.p, bits.n));
    lm_buf_free(&bits);
  }
  lm_buf_free(&first);
  lm_ctx_destroy(c);
  return 0;
}
