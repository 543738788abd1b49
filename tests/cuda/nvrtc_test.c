// nvrtc_test.c - every kernel of tests/ir/llama.lmir as a training step, and of small programs of
// each form, for every architecture; the second time from the cache. Prints that it is skipped if
// there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h"

#include "codegen/cuda/cuda.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

static lm_module *module_of(lm_ctx *c, const char *path) {
  lm_buf text = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &text));
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text.p, text.n));
  CHECK(m);
  lm_buf_free(&text);
  lm_plan_options target = lm_cuda_options(NULL, false);
  CHECK(lm_pipeline_run(m, LM_STAGE_KERNEL,
                        &(lm_pass_env){.target = &target.target, .codegen = target.codegen}));
  return m;
}

// From sm_90 on a kernel that follows another one can begin early. Others read constants.
static void test_early(const lm_plan *plan, const char *arch, const lm_cuda_code *code) {
  lm_arena *a = lm_arena_create();
  const bool *early = lm_cuda_early_find(plan, arch, a);
  bool waits = strcmp(arch, "sm_80") != 0 && strcmp(arch, "sm_89") != 0;
  int n_early = 0, constant = 0;
  for (int i = 0; i < plan->n_kernels; i++) {
    CHECK(!early[i] || code->kernels[i].begins_first);
    n_early += early[i];
    constant += !code->kernels[i].begins_first;
  }
  CHECK(waits ? n_early && constant : !n_early && constant == plan->n_kernels);
  lm_arena_destroy(a);
}

static void test_arch(const lm_plan *plan, const char *arch, const bool *narrow) {
  lm_cuda_code code;
  lm_cuda_compile_options o = {.arch = arch, .narrow = narrow};
  CHECK_OK(lm_cuda_compile(plan, &o, &code));
  CHECK(code.compiled == plan->n_kernels && code.n_images >= 1);
  for (int i = 0; i < code.n_kernels; i++) {
    CHECK(code.kernels[i].registers > 0);
    CHECK(code.kernels[i].spilled <= 16); // a call to a slow division may spill
  }
  test_early(plan, arch, &code);
  printf("%s: %d kernels in %.2f s\n", arch, code.compiled, code.seconds);
  lm_cuda_code_free(&code);
  CHECK_OK(lm_cuda_compile(plan, &o, &code));
  CHECK(!code.compiled);
  for (int i = 0; i < code.n_kernels; i++)
    CHECK(code.kernels[i].registers > 0);
  lm_cuda_code_free(&code);
}

// Machine code that reads memory before the wait, on one path, or as constant is found.
static void test_begins_first(lm_plan *plan) {
  static const struct {
    const char *operand, *text;
    bool begins_first;
  } cases[] = {{"", "lm_grid_begin();\nr[lm_thread()] = a[0];", true},
               {"", "float x = a[0];\nlm_grid_begin();\nr[lm_thread()] = x;", false},
               {"", "if (lm_thread()) lm_grid_begin();\nr[lm_thread()] = a[0];", false},
               {"LM_READ_ONLY", "lm_grid_begin();\nr[lm_thread()] = a[0];", false},
               {"", "r[lm_thread()] = a[0];", false}};
  lm_plan_kernel *k = &plan->kernels[0];
  lm_plan one = *plan;
  one.n_kernels = 1;
  one.n_funcs = 0;
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_buf text = {0};
    lm_cuda_code code;
    lm_buf_printf(&text, "LM_KERNEL(64) %s(const float *%s a, float *r) {\n%s\n}\n", k->name,
                  cases[i].operand, cases[i].text);
    k->source = text.p;
    CHECK_OK(lm_cuda_compile(&one, &(lm_cuda_compile_options){.arch = "sm_90a"}, &code));
    CHECK(code.kernels[0].begins_first == cases[i].begins_first);
    lm_cuda_code_free(&code);
    lm_buf_free(&text);
  }
}

static void test_errors(lm_plan *plan) {
  lm_cuda_code code;
  CHECK_FAILS(lm_cuda_compile(plan, &(lm_cuda_compile_options){.arch = "sm_20"}, &code), LM_USER,
              "unknown target sm_20");
  plan->kernels[0].source = "LM_KERNEL(32) broken(";
  CHECK_FAILS(lm_cuda_compile(plan, &(lm_cuda_compile_options){.arch = "sm_80"}, &code),
              LM_BUG_STATUS, "cannot compile");
}

int main(void) {
  nvrtc_begin(true);
  lm_ctx *c = lm_ctx_create();
  lm_module *m = module_of(c, "tests/ir/llama.lmir");
  lm_plan_options target = lm_cuda_options(NULL, false);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  bool *narrow = lm_calloc((size_t)plan->n_kernels, sizeof *narrow);
  for (int i = 0; lm_cuda_archs[i]; i++)
    if (!nvrtc_leaves_out(lm_cuda_archs[i]))
      test_arch(plan, lm_cuda_archs[i], narrow);
  for (int i = 0; i < plan->n_kernels; i++)
    narrow[i] = true;
  test_arch(plan, "sm_90a", narrow);
  test_begins_first(plan);
  test_errors(plan);
  lm_free(narrow);
  lm_ctx_destroy(c);
}
