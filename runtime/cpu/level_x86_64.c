// level_x86_64.c - see level.h.
#ifdef __x86_64__
#include "runtime/base/processors.h"
#include "runtime/cpu/level.h"

#include <dnnl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Levels of the x86-64 psABI: oneDNN's ISA, and how many entries of `known` below may be used.
static const struct {
  const char *name;
  dnnl_cpu_isa_t most;
  int known;
} LEVELS[] = {{"native", dnnl_cpu_isa_all, 7},
              {"x86-64-v2", dnnl_cpu_isa_sse41, 0},
              {"x86-64-v3", dnnl_cpu_isa_avx2, 2},
              {"x86-64-v4", dnnl_cpu_isa_avx512_core, 3}};

const char *lm_cpu_level_name(int level) {
  return level < (int)LM_COUNT(LEVELS) ? LEVELS[level].name : NULL;
}

bool lm_cpu_level_is_supported(int level) {
  return level >= 0 && level < lm_x86_64_level();
}

void lm_cpu_level_limit(int level) {
  if (level > 0)
    dnnl_set_max_cpu_isa(LEVELS[level].most);
}

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

void lm_cpu_level_read(int level, lm_cpu_info *out) {
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
    const char *flag;
    const char *name;
  } known[] = {{"avx2", "avx2"},        {"fma", "fma"},          {"avx512f", "avx512"},
               {"avx512_vnni", "vnni"}, {"avx512_bf16", "bf16"}, {"amx_tile", "amx"},
               {"amx_bf16", "amx-bf16"}};
  for (int i = 0, n = level < 0 ? 0 : LEVELS[level].known; i < n; i++)
    isa_add(out->isa, sizeof out->isa, lm_cpu_isa_has(flags, known[i].flag), known[i].name);
  if (level >= 0)
    snprintf(out->march, sizeof out->march, "%s", LEVELS[level].name);
  out->features = lm_hash(flags, strlen(flags), lm_hash(out->model, strlen(out->model), 0));
}

static bool library_has(unsigned isa) {
  return (dnnl_get_effective_cpu_isa() & isa) == isa;
}

bool lm_cpu_level_has_bf16(int level) {
  return library_has(dnnl_cpu_isa_avx512_core_bf16);
}

const char *lm_cpu_remark(void) {
  return "";
}

bool lm_cpu_tiles_ask(void) {
  enum {
    REQUEST = 0x1023, // ARCH_REQ_XCOMP_PERM
    TILE_DATA = 18    // XFEATURE_XTILEDATA
  };
  return !syscall(SYS_arch_prctl, REQUEST, TILE_DATA);
}

int lm_cpu_vector(const lm_cpu_info *cpu) {
  return lm_cpu_isa_has(cpu->isa, "avx512") ? 16 : lm_cpu_isa_has(cpu->isa, "avx2") ? 8 : 0;
}

lm_matrix_unit lm_cpu_matrix_unit(const lm_cpu_info *cpu) {
  return lm_cpu_isa_has(cpu->isa, "amx-bf16") && lm_cpu_tiles_ask() ? LM_MATRIX_AMX
                                                                    : LM_MATRIX_NONE;
}

extern const struct lm_tile_functions lm_tiles_1, lm_tiles_2, lm_tiles_3, lm_tiles_4, lm_tiles_5;

// Each set needs all instructions of a level.
int lm_cpu_tiles(const lm_cpu_info *cpu, const void **out) {
  static const struct {
    const void *set;
    int level;
  } sets[] = {{NULL, 0},        {&lm_tiles_1, 1}, {&lm_tiles_2, 2},
              {&lm_tiles_3, 3}, {&lm_tiles_4, 3}, {&lm_tiles_5, 3}};
  int set = 1;
  if (lm_cpu_isa_has(cpu->isa, "avx512"))
    set = lm_cpu_matrix_unit(cpu) ? 5 : lm_cpu_isa_has(cpu->isa, "bf16") ? 4 : 3;
  else if (lm_cpu_isa_has(cpu->isa, "avx2"))
    set = 2;
  if (!lm_cpu_level_is_supported(sets[set].level))
    set = 0;
  *out = sets[set].set;
  return set;
}

bool lm_cpu_prefers_code(const lm_cpu_info *cpu, lm_dtype operands) {
  return (operands == LM_BF16 && lm_cpu_matrix_unit(cpu)) || library_has(dnnl_cpu_isa_avx2);
}
#endif
