// sass.c - see sass.h. An instruction has 16 bytes: the operation in bits 0 to 11, the predicate in
// bits 12 to 15, 7 for none.
#include "runtime/cuda/sass.h"

#include <elf.h>
#include <string.h>

enum {
  INSTRUCTION = 16,
  MACHINE = 190, // EM_CUDA
  OPERATION = 0xfff,
  ALWAYS = 7,
  LDC = 0xb82, // a parameter of the kernel, or where its stack begins
  ULDC = 0xab9,
  LDCU = 0x7ac,
  S2R = 0x919, // the number of the thread or block
  S2UR = 0x9c3,
  VIADD = 0x836, // the stack pointer, of kernels with arrays
  IADD3 = 0x810,
  ACQBULK = 0x82e,
  LDG = 0x181, // in bits 0 to 8
  LDG_MASK = 0x1ff,
  LDG_CONSTANT = 1 << 15 // of the upper 8 bytes
};

typedef struct code {
  const char *at;
  size_t bytes;
} code;

bool lm_sass_is(const char *image, size_t n) {
  Elf64_Ehdr head;
  if (n < sizeof head)
    return false;
  memcpy(&head, image, sizeof head);
  return !memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_machine == MACHINE;
}

// The bytes of section i, which are in the image; none if there is no such section.
static code section(const char *image, size_t n, const Elf64_Ehdr *head, int i, Elf64_Shdr *out) {
  size_t at = (size_t)i * sizeof *out;
  *out = (Elf64_Shdr){0};
  if (head->e_shoff > n || at + sizeof *out > n - head->e_shoff)
    return (code){0};
  memcpy(out, image + head->e_shoff + at, sizeof *out);
  if (out->sh_offset > n || out->sh_size > n - out->sh_offset)
    return (code){0};
  return (code){image + out->sh_offset, out->sh_size};
}

static code kernel_find(const char *image, size_t n, const char *kernel) {
  static const char TEXT[] = ".text.";
  Elf64_Ehdr head;
  Elf64_Shdr s;
  memcpy(&head, image, sizeof head);
  code names = section(image, n, &head, head.e_shstrndx, &s);
  size_t bytes = strlen(TEXT) + strlen(kernel) + 1;
  for (int i = 0; i < head.e_shnum; i++) {
    code c = section(image, n, &head, i, &s);
    const char *name = names.at + s.sh_name;
    bool fits = c.at && s.sh_name < names.bytes && bytes <= names.bytes - s.sh_name;
    if (fits && !memcmp(name, TEXT, strlen(TEXT)) && !strcmp(name + strlen(TEXT), kernel))
      return c;
  }
  return (code){0};
}

static bool is_harmless(uint64_t operation) {
  return operation == LDC || operation == ULDC || operation == LDCU || operation == S2R ||
         operation == S2UR || operation == VIADD || operation == IADD3;
}

bool lm_sass_begins_first(const char *image, size_t n, const char *kernel) {
  code c = lm_sass_is(image, n) ? kernel_find(image, n, kernel) : (code){0};
  bool waits = false;
  for (size_t i = 0; i + INSTRUCTION <= c.bytes; i += INSTRUCTION) {
    uint64_t low, high;
    memcpy(&low, c.at + i, sizeof low);
    memcpy(&high, c.at + i + sizeof low, sizeof high);
    uint64_t operation = low & OPERATION;
    if (!waits && operation != ACQBULK && !is_harmless(operation))
      return false;
    waits |= operation == ACQBULK && (low >> 12 & 15) == ALWAYS;
    if ((operation & LDG_MASK) == LDG && high & LDG_CONSTANT)
      return false;
  }
  return waits;
}
