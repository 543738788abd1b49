// golden_test.c - the IR before and after passes. A file of tests/passes/ holds
//   // passes: simplify,dce
//   // a description of the case
//   the text of a module
//   // gives:
//   the text after the passes
// `// passes: epilogue,dce for sm_90a` runs them for a target; `cpu` is a processor with vectors of
// 8 floats and a matrix unit for bf16. `// passes: analyze,fp8 with current` gives pass fp8 the
// scaling (current, delayed, blocks, mx). With -r the test rewrites the text after the passes.
#include <dirent.h>
#include <stdlib.h>
#include "codegen/cpu/cpu.h"
#include "codegen/cuda/cuda.h"
#include "compiler/passes/fp8/fp8.h"
#include "tests/numeric/grad_check.h"

static const char mark[] = "// gives:\n";

// Cuts " with SCALING" off the list of passes; false without it.
static bool fp8_of(char *passes, lm_fp8 *out) {
  static const char *const names[] = {[LM_FP8_CURRENT] = "current",
                                      [LM_FP8_DELAYED] = "delayed",
                                      [LM_FP8_BLOCKS] = "blocks",
                                      [LM_FP8_MX] = "mx"};
  char *with = strstr(passes, " with ");
  if (!with)
    return false;
  *out = (lm_fp8){.forward = LM_E4M3, .backward = LM_E5M2, .scaling = LM_COUNT(names)};
  for (int i = 0; i < (int)LM_COUNT(names); i++)
    if (!strcmp(with + strlen(" with "), names[i]))
      out->scaling = (lm_fp8_scaling)i;
  CHECK((size_t)out->scaling < LM_COUNT(names));
  *with = 0;
  return true;
}

static void run(lm_module *m, const char *text) {
  static const char head[] = "// passes: ";
  CHECK(!strncmp(text, head, strlen(head)));
  char *passes =
      lm_arena_strndup(m->arena, text + strlen(head), strcspn(text + strlen(head), "\n"));
  lm_fp8 fp8;
  bool casts = fp8_of(passes, &fp8);
  char *arch = strstr(passes, " for ");
  lm_plan_options o = {0};
  if (arch) {
    *arch = 0;
    bool cpu = !strcmp(arch + strlen(" for "), "cpu");
    o = cpu ? lm_cpu_options() : lm_cuda_options(arch + strlen(" for "), false);
    if (cpu)
      lm_cpu_panels(8, LM_MATRIX_AMX, o.target.choices.panel);
  }
  must_run_for(m, passes,
               &(lm_pass_env){.target = arch ? &o.target : NULL,
                              .codegen = o.codegen,
                              .fp8 = casts ? &fp8 : NULL,
                              .fp8_attention = &(lm_loc){0}}); // only that pass reads it
}

static void golden(const char *path, bool rewrite) {
  lm_buf file = {0}, printed = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &file));
  lm_ctx *c = lm_ctx_create();
  const char *at = strstr(file.p, mark);
  if (!at)
    fprintf(stderr, "%s: expected a line '// gives:', found none\n", path);
  CHECK(at);
  size_t n = (size_t)(at - file.p) + strlen(mark);
  lm_module *m = must_parse(c, path, file.p, n);
  run(m, file.p);
  lm_buf_add(&printed, file.p, n);
  lm_module_print(m, &printed);
  bool same = !strcmp(file.p, printed.p);
  if (!same && rewrite)
    CHECK_OK(lm_file_write_atomic(path, printed.p, printed.n));
  else if (!same)
    fprintf(stderr, "%s: expected the text after '// gives:', got\n%s", path, printed.p + n);
  CHECK(same || rewrite);
  lm_buf_free(&file);
  lm_buf_free(&printed);
  lm_ctx_destroy(c);
}

int main(int argc, char **argv) {
  bool rewrite = argc > 1 && !strcmp(argv[1], "-r");
  DIR *d = opendir("tests/passes");
  CHECK(d);
  for (struct dirent *e; (e = readdir(d));) {
    size_t n = strlen(e->d_name);
    char path[512];
    snprintf(path, sizeof path, "tests/passes/%s", e->d_name);
    if (n > 5 && !strcmp(e->d_name + n - 5, ".lmir"))
      golden(path, rewrite);
  }
  closedir(d);
}
