// attend_amx_test.c - attention in bf16 as a processor with a matrix unit (AMX) computes it,
// emulated, against the interpreter: loss and derivatives, odd sizes, masks, scores, grouped heads;
// and all of it compiles for such a processor. With LM_TEST_AMX in the environment, by the
// instructions themselves (tests/emulate).
// Build: plain
#include "tests/codegen/cache.h"
#include <unistd.h>

#include "codegen/cpu/cpu.h"

static double worst;

static bool has_unit(void) {
  return getenv("LM_TEST_AMX") != NULL;
}

static const char *emulated_prelude(lm_arena *a) {
  return lm_arena_printf(a, "#define LM_AMX_EMULATED\n%s", lm_cpu_prelude_text(a));
}

static lm_plan_options emulated_options(void) {
  static lm_codegen emulated;
  lm_plan_options o = lm_cpu_options();
  emulated = *o.codegen;
  emulated.prelude = emulated_prelude;
  if (!has_unit())
    o.codegen = &emulated;
  return o;
}

#define RUN_OPTIONS emulated_options
#define RUN_CREATE(plan, o, out) lm_cpu_exec_create(plan, o, out)
#define RUN_PREPARE(plan, arena) ((void)0)
#define RUN_TIMES 2
#define RUN_BEFORE(time) ((void)0)
#define RUN_AFTER(name) ((void)0)
#define RUN_THREADS test_threads(2)
#define RUN_ERROR(dtype, error) (worst = error > worst ? error : worst)
#define RUN_SLACK 1
#include "tests/attend/bare.h"
#include "tests/codegen/sapphire.h"
#include "tests/cuda/attend_case.h"
static const attend_case cases[] = {
    {"causal", "bf16", "b = 2, t = 70, s = 70, g = 2, h = 2, e = 32", "", PLAIN, CAUSAL, NULL},
    {"documents", "bf16", "b = 2, t = 64, s = 64, g = 1, h = 3, e = 24", "", CAPPED, DOCUMENTS,
     NULL},
    {"window", "bf16", "b = 1, t = 101, s = 101, g = 2, h = 1, e = 5",
     "param @bias : f32[g, h, s] = zeros\n", BIASED, WINDOW, NULL},
    {"factor", "bf16", "b = 1, t = 40, s = 40, g = 2, h = 2, e = 72", "", PLAIN, DOCUMENTS, FACTOR},
};

static char *text_of(lm_ctx *c, const attend_case *x) {
  lm_buf b = {0};
  text_make(x, &b);
  char *text = bare_text(c, module_make(c, b.p, NULL));
  lm_buf_free(&b);
  return text;
}

// Weights and their cotangents are rounded to bf16: the error of a sum is a fraction of 2^-9 of its
// terms.
static void check(const attend_case *x) {
  lm_ctx *c = lm_ctx_create();
  run_both(text_of(c, x), &(run_options){.name = x->name, .tolerance = 1e-2, .seed = 7});
  lm_ctx_destroy(c);
}

// For the real processor: GEMMs use its instructions; the softmax and the loop over the elements of
// a tile use whole vectors, without going through memory.
static void compiled_check(const attend_case *x) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = parse_and_run(c, text_of(c, x), "decompose,cse,dce,fuse");
  lm_plan_options target = lm_cpu_options();
  lm_plan *plan = lm_plan_build(m, &target);
  lm_buf text = {0}, listing = {0};
  lm_buf_puts(&text, plan->prelude);
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a')
      lm_buf_puts(&text, plan->kernels[i].source);
  if (sapphire_compile(c->arena, text.p, &listing)) {
    static const char *const functions[] = {"lm_dot_bf16", "lm_sum_s_bf16", "lm_sum_t_bf16"};
    for (size_t i = 0; i < LM_COUNT(functions); i++)
      CHECK(sapphire_count(&listing, functions[i], "tdpbf16ps", "tmm") >= 4);
    CHECK(sapphire_count(&listing, "lm_sum_", "vcvtne2ps2bf16", "zmm") >= 2);
    CHECK(sapphire_count(&listing, "lm_softmax", "vfmadd", "zmm") >= 10 &&
          !sapphire_count(&listing, "lm_softmax", "zmm", "(%rsp)"));
    CHECK(sapphire_count(&listing, "a", "vpslld $0x17", "zmm") >= 2 &&
          !sapphire_count(&listing, "a", "vpslld $0x17", "ymm"));
  }
  lm_buf_free(&text);
  lm_buf_free(&listing);
  lm_ctx_destroy(c);
}

int main(void) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    check(&cases[i]);
  for (size_t i = 0; i < LM_COUNT(cases) && !has_unit(); i += 3)
    compiled_check(&cases[i]);
  CHECK(worst > 1e-5 && worst < 8e-3);
}
