// detect.c - see detect.h.
#include "runtime/cpu/detect.h"

#include "runtime/base/processors.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cpu/level.h"
#include "runtime/cpu/process.h"

static const char *level_name(void) {
  const char *name = getenv("LMC_CPU");
  return name && *name ? name : lm_cpu_level_name(0);
}

// -1 if there is none of that name.
static int level_find(const char *name) {
  for (int i = 0; lm_cpu_level_name(i); i++)
    if (!strcmp(name, lm_cpu_level_name(i)))
      return i;
  return -1;
}

// The level that LMC_CPU names, to which oneDNN is restricted; -1 if it is not one of this
// processor.
static int level_choose(void) {
  int level = level_find(level_name());
  if (level < 0 || !lm_cpu_level_is_supported(level))
    return -1;
  lm_cpu_level_limit(level);
  return level;
}

lm_status lm_cpu_march_check(const lm_cpu_info *cpu) {
  if (cpu->march[0])
    return NULL;
  if (level_find(level_name()) >= 0)
    return lm_fail(LM_ENV, "LMC_CPU is %s, which this processor does not support", level_name());
  lm_buf names = {0};
  for (int i = 0; lm_cpu_level_name(i); i++)
    lm_buf_printf(&names, "%s%s",
                  !i                         ? ""
                  : lm_cpu_level_name(i + 1) ? ", "
                                             : " or ",
                  lm_cpu_level_name(i));
  lm_status s = lm_fail(LM_ENV, "LMC_CPU is '%s'; expected %s", level_name(), names.p);
  lm_buf_free(&names);
  return s;
}

int lm_cpu_compiler_call(const lm_cpu_info *cpu, lm_arena *a, const char *out[LM_COMPILER_WORDS]) {
  int n = 0;
  out[n++] = cpu->compiler;
  for (const char *p = cpu->compiler_words; *p && n < LM_COMPILER_WORDS; p += strspn(p, " \t")) {
    size_t length = strcspn(p, " \t");
    out[n++] = lm_arena_strndup(a, p, length);
    p += length;
  }
  return n;
}

const char *lm_cpu_compiler_text(const lm_cpu_info *cpu, lm_arena *a) {
  return lm_arena_printf(a, "%s%s%s", cpu->compiler, cpu->compiler_words[0] ? " " : "",
                         cpu->compiler_words);
}

static lm_status version_ask(const lm_cpu_info *cpu, lm_arena *a, int output, lm_buf *out) {
  const char *argv[LM_COMPILER_WORDS + 2] = {0};
  argv[lm_cpu_compiler_call(cpu, a, argv)] = "--version";
  pid_t pid;
  int exit_status = 0;
  LM_TRY(lm_process_start(argv, -1, output, &pid));
  LM_TRY(lm_process_wait(pid, &exit_status));
  LM_TRY(lm_process_output_read(output, 1 << 20, out));
  if (!exit_status)
    return NULL;
  return lm_fail(LM_ENV, "%s --version exited with status %d%s%.*s", lm_cpu_compiler_text(cpu, a),
                 exit_status, out->n ? ":\n" : "", 1000, out->p);
}

static lm_status version_read(lm_cpu_info *cpu) {
  int output;
  lm_buf text = {0};
  LM_TRY(lm_process_output(&output));
  lm_arena *a = lm_arena_create();
  lm_status s = version_ask(cpu, a, output, &text);
  if (!s)
    snprintf(cpu->compiler_version, sizeof cpu->compiler_version, "%.*s",
             (int)strcspn(text.p, "\n"), text.p);
  close(output);
  lm_arena_destroy(a);
  lm_buf_free(&text);
  return s;
}

static const char *compiler_name(void) {
  const char *name = getenv("LMC_CC");
  if (!name || !*name)
    name = getenv("CC");
  return name && *name ? name : "cc";
}

// A name with blanks is one path if a program of that name exists.
static bool compiler_split(const char *name, lm_cpu_info *out) {
  static const char BLANKS[] = " \t";
  if (lm_executable_find(name, out->compiler, sizeof out->compiler))
    return true;
  char first[sizeof out->compiler];
  name += strspn(name, BLANKS);
  size_t n = strcspn(name, BLANKS);
  size_t rest = n + strspn(name + n, BLANKS);
  bool fits = n < sizeof first && strlen(name + rest) < sizeof out->compiler_words;
  if (!fits)
    return false;
  snprintf(first, sizeof first, "%.*s", (int)n, name);
  snprintf(out->compiler_words, sizeof out->compiler_words, "%s", name + rest);
  return lm_executable_find(first, out->compiler, sizeof out->compiler);
}

lm_status lm_cpu_compiler_find(lm_cpu_info *out) {
  const char *name = compiler_name();
  out->compiler_words[0] = 0;
  if (compiler_split(name, out))
    return version_read(out);
  out->compiler[0] = 0;
  return lm_fail(LM_ENV, "no C compiler: '%s' is not in PATH; install gcc or clang, or set LMC_CC",
                 name);
}

bool lm_cpu_has_bf16(void) {
  return lm_cpu_level_has_bf16(level_choose()); // before the first query, which fixes oneDNN's ISA
}

int lm_cpu_processors(void) {
  return (int)sysconf(_SC_NPROCESSORS_CONF);
}

void lm_cpu_detect(lm_cpu_info *out) {
  *out = (lm_cpu_info){.cores = lm_processors()};
  const dnnl_version_t *v = dnnl_version();
  snprintf(out->onednn, sizeof out->onednn, "%d.%d.%d", v->major, v->minor, v->patch);
  lm_cpu_level_read(level_choose(), out);
}

void lm_cpu_target_find(lm_target *out) {
  lm_cpu_info cpu;
  lm_cpu_detect(&cpu);
  *out = lm_target_any(LM_TARGET_CPU);
  snprintf(out->name, sizeof out->name, "cpu");
  snprintf(out->title, sizeof out->title, "%.*s", (int)sizeof out->title - 1, cpu.model);
  out->is_here = true;
  out->units = lm_cpu_processors();
  out->memory = lm_memory_of_machine();
  out->vector = lm_cpu_vector(&cpu);
  out->matrix = lm_cpu_matrix_unit(&cpu);
  out->math[LM_BF16].native = lm_cpu_has_bf16();
}
