// detect.c - see detect.h.
#include "runtime/cpu/detect.h"

#include "runtime/base/processors.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include "runtime/cpu/process.h"

// Copies the text after "KEY<blanks>: " in the first line that begins with KEY, up to the line's
// end.
static void cpuinfo_field(const char *text, const char *key, char *out, size_t n) {
  out[0] = 0;
  for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    if (strncmp(line, key, strlen(key)))
      continue;
    const char *colon = strchr(line, ':');
    if (!colon)
      return;
    colon += 1 + strspn(colon + 1, " ");
    snprintf(out, n, "%.*s", (int)strcspn(colon, "\n"), colon);
    return;
  }
}

static void isa_add(char *isa, size_t n, bool has, const char *name) {
  size_t used = strlen(isa);
  if (has)
    snprintf(isa + used, n - used, "%s%s", used ? " " : "", name);
}

static bool has_flag(const char *flags, const char *name) {
  size_t n = strlen(name);
  for (const char *p = flags; (p = strstr(p, name)); p += n)
    if ((p == flags || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
      return true;
  return false;
}

// Levels of the x86-64 psABI: oneDNN's ISA, and how many entries of `known` below may be used.
static const struct {
  const char *name;
  dnnl_cpu_isa_t most;
  int known;
} LEVELS[] = {{"native", dnnl_cpu_isa_all, 7},
              {"x86-64-v2", dnnl_cpu_isa_sse41, 0},
              {"x86-64-v3", dnnl_cpu_isa_avx2, 2},
              {"x86-64-v4", dnnl_cpu_isa_avx512_core, 3}};

static const char *level_name(void) {
  const char *name = getenv("LMC_CPU");
  return name && *name ? name : LEVELS[0].name;
}

static bool level_supported(size_t i) {
#ifdef __x86_64__
  return i == 0 || (i == 1 && __builtin_cpu_supports("x86-64-v2")) ||
         (i == 2 && __builtin_cpu_supports("x86-64-v3")) ||
         (i == 3 && __builtin_cpu_supports("x86-64-v4"));
#else
  return i == 0;
#endif
}

// The allowed part of the processor, as a number of entries of `known`.
static int level_choose(lm_cpu_info *out) {
  for (size_t i = 0; i < LM_COUNT(LEVELS); i++)
    if (!strcmp(level_name(), LEVELS[i].name) && level_supported(i)) {
      snprintf(out->march, sizeof out->march, "%s", LEVELS[i].name);
      if (i)
        dnnl_set_max_cpu_isa(LEVELS[i].most);
      return LEVELS[i].known;
    }
  return 0;
}

lm_status lm_cpu_march_check(const lm_cpu_info *cpu) {
  if (cpu->march[0])
    return NULL;
  for (size_t i = 0; i < LM_COUNT(LEVELS); i++)
    if (!strcmp(level_name(), LEVELS[i].name))
      return lm_fail(LM_ENV, "LMC_CPU is %s, which this processor does not support", level_name());
  return lm_fail(LM_ENV, "LMC_CPU is '%s'; expected native, x86-64-v2, x86-64-v3 or x86-64-v4",
                 level_name());
}

static void processor_find(lm_cpu_info *out) {
  lm_buf text = {0};
  char flags[8192] = "";
  lm_status s = lm_file_read("/proc/cpuinfo", 64 << 20, &text);
  lm_status_free(s);
  if (!s) {
    cpuinfo_field(text.p, "model name", out->model, sizeof out->model);
    cpuinfo_field(text.p, "flags", flags, sizeof flags);
  }
  lm_buf_free(&text);
  static const struct {
    const char *flag, *name;
  } known[] = {{"avx2", "avx2"},        {"fma", "fma"},          {"avx512f", "avx512"},
               {"avx512_vnni", "vnni"}, {"avx512_bf16", "bf16"}, {"amx_tile", "amx"},
               {"amx_bf16", "amx-bf16"}};
  for (int i = 0, n = level_choose(out); i < n; i++)
    isa_add(out->isa, sizeof out->isa, has_flag(flags, known[i].flag), known[i].name);
  out->features = lm_hash(flags, strlen(flags), lm_hash(out->model, strlen(out->model), 0));
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
  lm_cpu_info cpu;
  level_choose(&cpu); // before the first query, which fixes oneDNN's ISA
  unsigned isa = dnnl_get_effective_cpu_isa(), bf16 = dnnl_cpu_isa_avx512_core_bf16;
  return (isa & bf16) == bf16;
}

bool lm_cpu_tiles_ask(void) {
#ifdef __x86_64__
  enum {
    REQUEST = 0x1023, // ARCH_REQ_XCOMP_PERM
    TILE_DATA = 18    // XFEATURE_XTILEDATA
  };
  return !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
#else
  return false;
#endif
}

int lm_cpu_vector(const lm_cpu_info *cpu) {
  return has_flag(cpu->isa, "avx512") ? 16 : has_flag(cpu->isa, "avx2") ? 8 : 0;
}
bool lm_cpu_has_tiles(const lm_cpu_info *cpu) {
  return has_flag(cpu->isa, "amx-bf16") && lm_cpu_tiles_ask();
}

int lm_cpu_processors(void) {
  return (int)sysconf(_SC_NPROCESSORS_CONF);
}

bool lm_cpu_prefers_code(const lm_cpu_info *cpu, lm_dtype operands) {
  if (operands == LM_BF16 && lm_cpu_has_tiles(cpu))
    return true;
  unsigned isa = dnnl_get_effective_cpu_isa();
  unsigned wide = (dnnl_cpu_isa_avx512_core | dnnl_cpu_isa_avx512_mic) & ~dnnl_cpu_isa_avx2;
  return (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 && !(isa & wide);
}

void lm_cpu_detect(lm_cpu_info *out) {
  *out = (lm_cpu_info){.cores = lm_processors()};
  const dnnl_version_t *v = dnnl_version();
  snprintf(out->onednn, sizeof out->onednn, "%d.%d.%d", v->major, v->minor, v->patch);
  processor_find(out);
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
  out->tiles = lm_cpu_has_tiles(&cpu);
  out->math[LM_BF16].native = lm_cpu_has_bf16();
}
