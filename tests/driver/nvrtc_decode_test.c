// nvrtc_decode_test.c - the kernels that decode a token, those of several steps and those of GEMMs
// that compute their operand among them, as machine code: none spills registers, and blocks of 256
// threads have at most 128. Prints the registers of each.
//
//   nvrtc_decode_test [ARCHITECTURE …]
//
// By default one model for one architecture; with architectures, two models for each of them.
// Prints that it is skipped if there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h"

#include <string.h>

#include "driver/session.h"
#include "tests/runtime/check.h"

enum {
  POSITIONS = 2048
};

typedef struct model {
  const char *name, *set;
} model;
static const model models[] = {
    {"180M", "seed = 1"},
    {"1B", "model = Llama(depth = 16, d = 2048, ff = 8192, heads = 32, kv = 8, e = 64, vocab = "
           "32_000)"},
};

static void decode_open(lm_session *s, lm_ctx *c, const model *m, const char *arch,
                        lm_compiled *out) {
  const char *const sets[] = {m->set};
  lm_recipe_choice choice = {.path = "examples/bench-180m.lm", .overrides = {sets, 1}};
  CHECK_OK(lm_target_find(arch, &s->target));
  CHECK_OK(lm_session_open(s, c, NULL, &choice));
  CHECK_OK(lm_session_sizes(s));
  lm_compile_spec spec = lm_session_spec(s, LM_LOWER_DECODE, POSITIONS);
  spec.run.rows = spec.run.seq = 1;
  CHECK_OK(lm_compile(&s->project, &spec, out));
}

// By kernel: the label of the first step of @decode that it computes; NULL: none.
static const char **labels_of(const lm_plan *plan, lm_arena *a) {
  const char **out = LM_NEW_N(a, const char *, plan->n_kernels + 1);
  const lm_plan_func *f = lm_plan_func_get(plan, LM_FUNC_DECODE, 0);
  CHECK(f);
  for (int i = 0; i < f->n_steps; i++) {
    int k = lm_plan_step_kernel(&f->steps[i]);
    if (k >= 0 && !out[k])
      out[k] = f->steps[i].label;
  }
  return out;
}

// The plan with the kernels of @decode alone.
static lm_plan kernels_of(const lm_plan *plan, const char *const *labels, lm_arena *a) {
  lm_plan out = *plan;
  out.kernels = LM_NEW_N(a, lm_plan_kernel, plan->n_kernels);
  out.n_kernels = 0;
  for (int i = 0; i < plan->n_kernels; i++)
    if (labels[i])
      out.kernels[out.n_kernels++] = plan->kernels[i];
  return out;
}

static void test_kernels(const model *m, const char *arch) {
  lm_ctx *c = lm_ctx_create();
  lm_session s = {0};
  lm_compiled compiled;
  lm_cuda_code code;
  decode_open(&s, c, m, arch, &compiled);
  const char **labels = labels_of(compiled.plan, c->arena);
  lm_plan plan = kernels_of(compiled.plan, labels, c->arena);
  CHECK_OK(lm_cuda_compile(&plan, &(lm_cuda_compile_options){.arch = arch, .threads = 1}, &code));
  int merged = 0, fused = 0, most = 0;
  for (int i = 0, k = 0; i < code.n_kernels; i++, k++) {
    const lm_cuda_kernel *x = &code.kernels[i];
    while (!labels[k])
      k++;
    if (getenv("SHOW"))
      printf("%s", plan.kernels[i].source);
    printf("%-4s %-7s %4d threads %4d registers %6d bytes shared  %s\n", m->name, arch,
           plan.kernels[i].launch.threads, x->registers, x->shared, labels[k]);
    CHECK(x->registers > 0 && !x->spilled && !x->hindered);
    CHECK(plan.kernels[i].launch.threads != 256 || x->registers <= 128);
    merged += strstr(labels[k], " more") != NULL;
    fused += strstr(labels[k], " of ") != NULL;
    most = x->registers > most ? x->registers : most;
  }
  printf("%-4s %-7s %d kernels, %d of several steps, %d GEMMs with their operand, at most %d "
         "registers, %.1f s\n",
         m->name, arch, code.n_kernels, merged, fused, most, code.seconds);
  CHECK(merged == 2 && fused == 5);
  lm_cuda_code_free(&code);
  lm_session_close(&s);
  lm_ctx_destroy(c);
}

int main(int argc, char **argv) {
  nvrtc_begin(false);
  for (int i = 1; i < argc; i++)
    for (size_t k = 0; k < LM_COUNT(models); k++)
      test_kernels(&models[k], argv[i]);
  if (argc == 1)
    test_kernels(&models[0], "sm_90a");
}
