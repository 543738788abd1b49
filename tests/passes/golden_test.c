// golden_test.c - what passes make of IR. A file of tests/passes/ is
//   // passes: simplify,dce            or, where a pass asks for the target: // passes:
//   epilogue,dce for sm_90a
//                                      (cpu: a processor with vectors of 8 floats and a matrix unit
//                                      for bf16)
//   // what the case is about
//   the module's text
//   // gives:
//   the text after the passes
// With -r the expectations are written anew.
#include <dirent.h>
#include "codegen/cpu/cpu.h"
#include "codegen/cuda/cuda.h"
#include "tests/numeric/grad_check.h"

static const char mark[] = "// gives:\n";

static void run(lm_module *m, const char *text) {
  static const char head[] = "// passes: ";
  CHECK(!strncmp(text, head, strlen(head)));
  char *passes =
      lm_arena_strndup(m->arena, text + strlen(head), strcspn(text + strlen(head), "\n"));
  char *arch = strstr(passes, " for ");
  lm_plan_options o = {0};
  if (arch) {
    *arch = 0;
    bool cpu = !strcmp(arch + strlen(" for "), "cpu");
    o = cpu ? lm_cpu_options() : lm_cuda_options(arch + strlen(" for "), false);
    if (cpu)
      lm_cpu_panels(8, true, o.target.choices.panel);
  }
  must_run_for(m, passes, &(lm_pass_env){.target = arch ? &o.target : NULL, .codegen = o.codegen});
}

static void golden(const char *path, bool rewrite) {
  lm_buf file = {0}, said = {0};
  CHECK_OK(lm_file_read(path, 1 << 20, &file));
  lm_ctx *c = lm_ctx_create();
  const char *at = strstr(file.p, mark);
  if (!at)
    fprintf(stderr, "%s has no '// gives:'\n", path);
  CHECK(at);
  size_t n = (size_t)(at - file.p) + strlen(mark);
  lm_module *m = must_parse(c, path, file.p, n);
  run(m, file.p);
  lm_buf_add(&said, file.p, n);
  lm_module_print(m, &said);
  bool same = !strcmp(file.p, said.p);
  if (!same && rewrite)
    CHECK_OK(lm_file_write_atomic(path, said.p, said.n));
  else if (!same)
    fprintf(stderr, "%s gives\n%s", path, said.p + n);
  CHECK(same || rewrite);
  lm_buf_free(&file);
  lm_buf_free(&said);
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
