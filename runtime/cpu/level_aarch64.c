// level_aarch64.c - see level.h.
//
// Generated code uses NEON, which every aarch64 processor has, and the instructions for bf16
// (FEAT_BF16) where they are. Longer vectors (SVE) are not used. The compiler gets the name of an
// architecture instead of "native", so it may be one that runs on another machine.
#ifdef __aarch64__
#include "runtime/cpu/level.h"

#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

// Names that GCC and Clang take as -march.
static const struct {
  const char *name;
  bool bf16;
} LEVELS[] = {{"native", true}, {"armv8-a", false}, {"armv8.2-a+bf16", true}};
enum {
  BASE = 1, // of LEVELS
  BF16
};

// The bits of the auxiliary vector, which arm64's <asm/hwcap.h> also names.
static const unsigned long CPUID = 1ul << 11, BF16_INSTRUCTIONS = 1ul << 14;

const char *lm_cpu_level_name(int level) {
  return level < (int)LM_COUNT(LEVELS) ? LEVELS[level].name : NULL;
}

static bool has_instructions(void) {
  return getauxval(AT_HWCAP2) & BF16_INSTRUCTIONS;
}

bool lm_cpu_level_is_supported(int level) {
  return level != BF16 || has_instructions();
}

// oneDNN has no such levels for aarch64, and generated code computes nearly all GEMMs.
void lm_cpu_level_limit(int level) {}

// The main identification register, which Linux lets programs read, and the names of those whose
// numbers are in the manuals of the cores.
static uint32_t identification(void) {
  uint64_t midr = 0;
  if (getauxval(AT_HWCAP) & CPUID)
    __asm__("mrs %0, midr_el1" : "=r"(midr));
  return (uint32_t)midr;
}

static void model_name(uint32_t midr, char *out, size_t n) {
  static const struct {
    uint32_t implementer;
    uint32_t part;
    const char *name;
  } known[] = {{0x41, 0xd03, "Arm Cortex-A53"},  {0x41, 0xd05, "Arm Cortex-A55"},
               {0x41, 0xd07, "Arm Cortex-A57"},  {0x41, 0xd08, "Arm Cortex-A72"},
               {0x41, 0xd0b, "Arm Cortex-A76"},  {0x41, 0xd0c, "Arm Neoverse N1"},
               {0x41, 0xd40, "Arm Neoverse V1"}, {0x41, 0xd49, "Arm Neoverse N2"},
               {0x41, 0xd4f, "Arm Neoverse V2"}, {0x00, 0x051, "QEMU, emulated"}};
  uint32_t implementer = midr >> 24;
  uint32_t part = midr >> 4 & 0xfff;
  snprintf(out, n, "aarch64, implementer 0x%02x, part 0x%03x", implementer, part);
  for (size_t i = 0; i < LM_COUNT(known); i++)
    if (known[i].implementer == implementer && known[i].part == part)
      snprintf(out, n, "%s", known[i].name);
}

bool lm_cpu_level_has_bf16(int level) {
  return level >= 0 && LEVELS[level].bf16 && has_instructions();
}

void lm_cpu_level_read(int level, lm_cpu_info *out) {
  uint32_t midr = identification();
  bool bf16 = lm_cpu_level_has_bf16(level);
  model_name(midr, out->model, sizeof out->model);
  out->features = lm_hash(&midr, sizeof midr, bf16);
  if (level < 0)
    return;
  snprintf(out->isa, sizeof out->isa, "neon%s", bf16 ? " bf16" : "");
  snprintf(out->march, sizeof out->march, "%s", LEVELS[bf16 ? BF16 : BASE].name);
}

const char *lm_cpu_remark(void) {
  return "; lmc was tested on aarch64 under emulation only";
}

bool lm_cpu_tiles_ask(void) {
  return false;
}

int lm_cpu_vector(const lm_cpu_info *cpu) {
  return cpu->isa[0] ? 4 : 0;
}

lm_matrix_unit lm_cpu_matrix_unit(const lm_cpu_info *cpu) {
  return lm_cpu_isa_has(cpu->isa, "bf16") ? LM_MATRIX_BFMMLA : LM_MATRIX_NONE;
}

extern const struct lm_tile_functions lm_tiles_1, lm_tiles_2;

int lm_cpu_tiles(const lm_cpu_info *cpu, const void **out) {
  bool bf16 = lm_cpu_isa_has(cpu->isa, "bf16");
  *out = bf16 ? &lm_tiles_2 : &lm_tiles_1;
  return bf16 ? 2 : 1;
}

// Debian's oneDNN computes GEMMs by its reference there (gemm:ref).
bool lm_cpu_prefers_code(const lm_cpu_info *cpu, lm_dtype operands) {
  return true;
}
#endif
