// nvrtc_count_test.c - instructions of functions, as the cost model counts them
// (codegen/common/ops.c), against machine code for sm_90a: kernels that apply a function once and
// five times differ by four applications to each element of a vector.
//
// Prints that it is skipped if there is no NVRTC.
// Build: plain
#include "tests/cuda/nvrtc.h"

#include <elf.h>

#include "codegen/cuda/cuda.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

enum {
  FEW = 1,
  MANY = 5,
  INSTRUCTION = 16,
  // The call of the slow path of a division or a root, which only denormal and infinite operands
  // take.
  CALL_SITE = 6
};

// A multiplication and an addition, which the compiler makes one instruction.
#define CONTRACTED "mul, add"

static const struct {
  const char *name;
  bool two; // operands
} functions[] = {{"exp"},   {"log"},   {"tanh"},      {"logistic"},  {"erf"}, {"sqrt"},
                 {"rsqrt"}, {"log1p"}, {"div", true}, {"mul", true}, {"sin"}, {CONTRACTED, true}};

// What a kernel applies: a function, or a code to which it rounds and from which it reads.
typedef struct applied {
  const char *type, *name, *arch;
  int vector; // elements
  bool two, code;
} applied;

// The functions of the type; vectors have 16 bytes.
static const struct {
  const char *name;
  int vector;
} types[] = {{"f32", 4}, {"bf16", 8}};

// Codes: e8m0 and the maps encode positive numbers, so that each is multiplied by one.
static const char *const codes[] = {"e4m3", "e5m2", "e8m0", "dyn8", "udyn8"};
static const char *const archs[] = {"sm_80", "sm_90a"};

static void application_put(lm_buf *text, const applied *x, int i) {
  if (!strcmp(x->name, CONTRACTED))
    lm_buf_printf(text, "  %%p%d = mul %%w, %%v%d\n  %%v%d = add %%p%d, %%w\n", i, i, i + 1, i);
  else if (!x->code)
    lm_buf_printf(text, "  %%v%d = %s %s%%v%d\n", i + 1, x->name, x->two ? "%w, " : "", i);
  else
    lm_buf_printf(text,
                  "  %%c%d = cast %%v%d : %s[n]\n  %%d%d = cast %%c%d : f32[n]\n"
                  "  %%v%d = mul %%d%d, %%w\n",
                  i, i, x->name, i, i, i + 1, i);
}

static const lm_plan *plan_of(lm_ctx *ctx, const applied *x, int times) {
  lm_buf text = {0};
  lm_buf_printf(&text,
                "stage step\naxis n = 4096\nfunc @f(%%v0: %s[n], %%w: %s[n]) -> (y: %s[n]) {\n",
                x->type, x->type, x->type);
  for (int i = 0; i < times; i++)
    application_put(&text, x, i);
  lm_buf_printf(&text, "  %%z = add %%v%d, %%w\n  return %%z\n}\n", times);
  lm_module *m = lm_module_parse(ctx, lm_source_add(ctx, "test", text.p, text.n));
  CHECK(m);
  lm_buf_free(&text);
  lm_plan_options *o = LM_NEW(m->arena, lm_plan_options);
  *o = lm_cuda_options(x->arch, false);
  CHECK(lm_pipeline_run(m, LM_STAGE_KERNEL,
                        &(lm_pass_env){.target = &o->target, .codegen = o->codegen}));
  const lm_plan *plan = lm_plan_build(m, o);
  CHECK(plan && plan->n_kernels == 1);
  return plan;
}

// Bytes of the code of the only kernel of an ELF image.
static double code_bytes(const lm_cuda_image *image) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image->bytes;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image->bytes + head->e_shoff);
  const char *names = image->bytes + sections[head->e_shstrndx].sh_offset;
  for (int i = 0; i < head->e_shnum; i++)
    if (!strncmp(names + sections[i].sh_name, ".text.", 6))
      return (double)sections[i].sh_size;
  return 0;
}

// The code of the kernel, and the instructions that the generator counts for each element.
static double measure(const applied *x, int times, double *out_counted) {
  lm_ctx *ctx = lm_ctx_create();
  const lm_plan *plan = plan_of(ctx, x, times);
  lm_cuda_code code;
  CHECK_OK(lm_cuda_compile(plan, &(lm_cuda_compile_options){.arch = x->arch, .threads = 1}, &code));
  double bytes = code_bytes(&code.images[code.kernels[0].image]);
  *out_counted = plan->funcs[0].steps[0].instructions / 4096;
  CHECK(bytes > 0);
  lm_cuda_code_free(&code);
  lm_ctx_destroy(ctx);
  return bytes;
}

static bool test_function(const applied *x) {
  double few, many;
  double bytes = measure(x, MANY, &many) - measure(x, FEW, &few);
  double has = bytes / INSTRUCTION / x->vector / (MANY - FEW);
  double counted = (many - few) / (MANY - FEW);
  double site = x->code ? 1 : CALL_SITE;
  bool fits = counted <= 1.15 * has + 1 && counted >= 0.85 * has - site;
  fits &= strcmp(x->name, CONTRACTED) || counted == has;
  printf("%-6s %-4s %-10s counted %5.1f, code has %5.1f%s\n", x->arch, x->type, x->name, counted,
         has, fits ? "" : ": too far");
  return fits;
}

int main(void) {
  nvrtc_begin(true);
  int failed = 0;
  for (size_t type = 0; type < LM_COUNT(types); type++)
    for (size_t f = 0; f < LM_COUNT(functions); f++)
      failed += !test_function(&(applied){.type = types[type].name,
                                          .vector = types[type].vector,
                                          .name = functions[f].name,
                                          .two = functions[f].two,
                                          .arch = "sm_90a"});
  for (size_t a = 0; a < LM_COUNT(archs); a++)
    for (size_t k = 0; k < LM_COUNT(codes); k++)
      failed += !test_function(&(applied){.type = "f32",
                                          .vector = types[0].vector,
                                          .name = codes[k],
                                          .code = true,
                                          .arch = archs[a]});
  return failed != 0;
}
