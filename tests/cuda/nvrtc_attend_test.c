// nvrtc_attend_test.c - attention kernels as machine code: no kernel spills registers, and wgmma
// instructions are not serialized. Prints the resources of each kernel. Without arguments: bf16
// with heads of 64 and 128 and grouped queries for every architecture, and f32 for one. With an
// argument: every shape whose name contains it, for every architecture or for the second argument;
// "" selects all shapes, which takes minutes.
//
// Prints that it is skipped if there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h"

#include "codegen/cuda/cuda.h"
#include "tests/cuda/attend_case.h"

#define AXES(g, h, e) "b = 2, t = 1000, s = 1000, g = " #g ", h = " #h ", e = " #e
#define CASES(type, quick, quick_64)                                                               \
  {{type ", 128 wide", type, AXES(2, 4, 128), "", PLAIN, CAUSAL}, quick},                          \
      {{type ", 64 wide", type, AXES(4, 1, 64), "", PLAIN, CAUSAL}, quick_64},                     \
      {{type ", 80 wide", type, AXES(1, 3, 80), "", PLAIN, DOCUMENTS}, false},                     \
      {{type ", 96 wide", type, AXES(8, 2, 96), "", CAPPED, WINDOW}, false}, {                     \
    {type ", biased", type,     AXES(2, 2, 64), "param @bias : f32[g, h, s] = zeros\n",            \
     BIASED,          DOCUMENTS},                                                                  \
        false                                                                                      \
  }
static const struct {
  attend_case c;
  bool quick;
} cases[] = {CASES("bf16", true, true),
             CASES("f32", true, false),
             {{"bf16, 256 wide", "bf16", AXES(1, 10, 256), "", PLAIN, WINDOW}, false},
             {{"bf16, 192 wide", "bf16", AXES(1, 2, 192), "", PLAIN, CAUSAL}, false},
             {{"bf16, window, 128", "bf16", AXES(2, 3, 128), "", PLAIN, WINDOW}, false},
             {{"bf16, window, 64", "bf16", AXES(1, 4, 64), "", CAPPED, WINDOW}, false},
             {{"bf16, sink, 128", "bf16", AXES(2, 2, 128), SINK, PLAIN, CAUSAL, SUNK}, false},
             {{"tf32, 128 wide", "f32", AXES(2, 4, 128), "", PLAIN, CAUSAL}, true},
             {{"tf32, 64 wide", "f32", AXES(4, 1, 64), "", PLAIN, CAUSAL}, false}};

static void test_kernel(const lm_plan *plan, int i, const char *name, const char *arch) {
  lm_plan one = *plan;
  lm_cuda_code code;
  one.kernels += i;
  one.n_kernels = 1;
  CHECK_OK(lm_cuda_compile(&one, &(lm_cuda_compile_options){.arch = arch, .threads = 1}, &code));
  const lm_cuda_kernel *k = code.kernels;
  printf("%-16s %-8s %4d threads %4d registers %6lld bytes shared %5d spilled %6.2f s\n", name,
         arch, one.kernels->launch.threads, k->registers, (long long)one.kernels->launch.shared,
         k->spilled, code.seconds);
  fflush(stdout);
  CHECK(k->registers > 0 && !k->spilled && !k->hindered);
  lm_cuda_code_free(&code);
}

// Waits that are bounded, for debugging.
static void test_bounded(const lm_plan *plan, int i) {
  lm_plan one = *plan;
  lm_cuda_code code;
  one.kernels += i;
  one.n_kernels = 1;
  CHECK_OK(lm_cuda_compile(
      &one, &(lm_cuda_compile_options){.arch = "sm_90a", .threads = 1, .check_waits = true},
      &code));
  const lm_cuda_image *image = &code.images[code.kernels->image];
  CHECK(memmem(image->bytes, image->n, "__assertfail", strlen("__assertfail")));
  lm_cuda_code_free(&code);
}

// Reads scores while they are computed: the assembler must report that it serializes wgmma.
static void test_hindered(const lm_plan *plan, int i, lm_arena *a) {
  static const char wait[] = "lm_wgmma_wait(1);\n";
  lm_plan one = *plan;
  lm_cuda_code code;
  lm_plan_kernel k = plan->kernels[i];
  const char *at = NULL, *next = strstr(k.source, wait);
  for (; next; next = strstr(next + 1, wait))
    at = next; // the last one: for others the assembler may insert a wait
  if (!at)
    return;
  k.source = lm_arena_printf(a, "%.*s%s", (int)(at - k.source), k.source, at + strlen(wait));
  one.kernels = &k;
  one.n_kernels = 1;
  CHECK_OK(
      lm_cuda_compile(&one, &(lm_cuda_compile_options){.arch = "sm_90a", .threads = 1}, &code));
  CHECK(code.kernels->hindered);
  lm_cuda_code_free(&code);
}

static void test_case(const attend_case *c, const char *arch, bool hindered) {
  lm_buf text = {0};
  text_make(c, &text);
  lm_ctx *ctx = lm_ctx_create();
  lm_module *m = module_make(ctx, text.p, WITH_DELTA);
  lm_plan_options target = lm_cuda_options(arch, strstr(c->name, "tf32") != NULL);
  lm_plan *plan = lm_plan_build(m, &target);
  CHECK(plan);
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a')
      test_kernel(plan, i, c->name, arch);
  for (int i = 0; hindered && i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a')
      test_hindered(plan, i, m->arena);
  for (int i = 0; hindered && i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'a')
      test_bounded(plan, i);
  lm_ctx_destroy(ctx);
  lm_buf_free(&text);
}

int main(int argc, char **argv) {
  nvrtc_begin(false);
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    for (int k = 0; lm_cuda_archs[k]; k++) {
      // By its name only: sm_103 and sm_120 have the instructions of sm_100a and the shared memory
      // of it and of sm_89.
      bool quick = cases[i].quick && (!k || !strcmp(cases[i].c.type, "bf16")) &&
                   strcmp(lm_cuda_archs[k], "sm_103") != 0 &&
                   strcmp(lm_cuda_archs[k], "sm_120") != 0;
      if (argc > 1 ? strstr(cases[i].c.name, argv[1]) != NULL &&
                         (argc < 3 || !strcmp(lm_cuda_archs[k], argv[2]))
                   : quick)
        test_case(&cases[i].c, lm_cuda_archs[k],
                  argc < 2 && i == 1 && !strcmp(lm_cuda_archs[k], "sm_90a"));
    }
}
