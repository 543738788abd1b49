// sapphire.h - code for a processor with AVX-512 and AMX, which this machine need not have: that a
// compiler accepts it, and its instructions. Skipped on processors other than x86-64 and with
// compilers that do not know the target.
#ifndef LM_TESTS_CODEGEN_SAPPHIRE_H
#define LM_TESTS_CODEGEN_SAPPHIRE_H
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "runtime/cpu/compiler.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/process.h"
#include "tests/runtime/check.h"

static inline bool sapphire_run(const char *const *argv, lm_buf *out) {
  pid_t pid;
  int failed, output;
  CHECK_OK(lm_process_output(&output));
  CHECK_OK(lm_process_start(argv, -1, output, &pid));
  CHECK_OK(lm_process_wait(pid, &failed));
  CHECK_OK(lm_process_output_read(output, 64 << 20, out));
  close(output);
  return !failed;
}

// The disassembled program with names of functions; false if it cannot be made.
static inline bool sapphire_compile(lm_arena *a, const char *text, lm_buf *listing) {
#ifdef __x86_64__
  lm_cpu_info cpu;
  char dir[] = "/tmp/lmc-sapphire-XXXXXX", objdump[512];
  lm_buf words = {0};
  CHECK_OK(lm_cpu_compiler_find(NULL, &cpu));
  CHECK(mkdtemp(dir));
  const char *c = lm_path_join(a, dir, "kernels.c"), *o = lm_path_join(a, dir, "kernels.o");
  const char *known[] = {cpu.compiler, "-march=sapphirerapids", "-E", "-x", "c", "/dev/null", NULL};
  const char *rest[] = {"-ULM_AMX_EMULATED", // as tests/emulate/amx defines it
                        "-O2",
                        "-mprefer-vector-width=512",
                        "-march=sapphirerapids",
                        "-c",
                        c,
                        "-o",
                        o,
                        NULL};
  const char *compile[LM_KERNEL_FLAGS + LM_COUNT(rest)] = {cpu.compiler};
  memcpy(lm_kernels_flags(&cpu, compile + 1), rest, sizeof rest);
  bool knows = sapphire_run(known, &words),
       lists = knows && lm_executable_find("objdump", objdump, sizeof objdump);
  const char *list[] = {objdump, "-d", "--no-show-raw-insn", o, NULL};
  CHECK_OK(lm_file_write_atomic(c, text, strlen(text)));
  words.n = 0;
  bool made = !knows || sapphire_run(compile, &words);
  if (!made)
    fprintf(stderr, "%.*s", (int)words.n, words.p);
  CHECK(made);
  if (lists)
    CHECK(sapphire_run(list, listing));
  const char *used[] = {c, o, dir};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    remove(used[i]);
  lm_buf_free(&words);
  return lists;
#else
  return false;
#endif
}

// The number of lines that contain both texts, in functions whose name begins with `prefix`.
static inline int sapphire_count(const lm_buf *listing, const char *function, const char *one,
                                 const char *other) {
  char head[128], line[512];
  int n = 0;
  bool inside = false;
  snprintf(head, sizeof head, "<%s", function);
  for (const char *p = listing->p; *p; p += strcspn(p, "\n"), p += *p == '\n') {
    snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
    size_t length = strlen(line);
    if (length && line[length - 1] == ':')
      inside = strstr(line, head) != NULL;
    n += inside && strstr(line, one) && strstr(line, other);
  }
  return n;
}
#endif
