// simt_global.c - races in global memory during one launch of the shim.
//
// Kernels are compiled with -fsanitize=thread and without its run-time library: the compiler then
// calls a function before each access to memory, and those functions are defined here. The shadow
// holds, for each word of four bytes, the last accesses of the launch. Two accesses of one byte by
// different threads, at least one of them a write, are a race unless the vector clocks order them
// (simt_state.h); threads of different blocks are never ordered. Atomic operations would be calls
// of the shim, which the compiler does not announce, so they are exempt; no kernel has any in
// global memory.
#define _GNU_SOURCE
#include "tests/cuda/simt_state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sanitizer.h"

#define API __attribute__((visibility("default"), used))

enum {
  WORD = 4,
  PAGE = 4096,
  WORDS = PAGE / WORD,
  SLOTS = 2,
  PAGES_KEPT = 1024,
  PAIRS = 64
};

typedef struct touched {
  uint32_t block, clock;
  uint32_t code; // the low half of the address of the kernel's code
  int16_t thread;
  uint8_t bytes; // one bit for each byte of the word; 0: the slot is free
} touched;

typedef struct word {
  uint32_t launch; // of the accesses; accesses of earlier launches do not count
  touched write[SLOTS], read[SLOTS];
} word;

typedef struct shadow_page {
  uintptr_t number;
  word words[WORDS];
} shadow_page;

// Pairs of code locations that were reported, so that a race of all elements is one report.
typedef struct pair {
  uint32_t now, before;
} pair;

static struct {
  shadow_page **table; // by the hash of the page number; the size is a power of two
  size_t size, used;
  shadow_page *last;
  uint32_t launch;
  const simt_buffers *buffers;
  simt_watch *watch;
  pair pairs[PAIRS];
  int n_pairs;
} global;

// ---- the shadow

static size_t slot_of(uintptr_t number) {
  size_t at = (size_t)(number * 0x9e3779b97f4a7c15u >> 20) & (global.size - 1);
  while (global.table[at] && global.table[at]->number != number)
    at = (at + 1) & (global.size - 1);
  return at;
}

static void table_grow(void) {
  shadow_page **old = global.table;
  size_t size = global.size;
  global.size = size ? 2 * size : 256;
  global.table = lm_calloc(global.size, sizeof *global.table);
  for (size_t i = 0; i < size; i++)
    if (old[i])
      global.table[slot_of(old[i]->number)] = old[i];
  lm_free(old);
}

static shadow_page *page_of(uintptr_t number) {
  if (global.last && global.last->number == number)
    return global.last;
  if (2 * global.used >= global.size)
    table_grow();
  shadow_page **p = &global.table[slot_of(number)];
  if (!*p) {
    *p = lm_calloc(1, sizeof **p);
    (*p)->number = number;
    global.used++;
  }
  return global.last = *p;
}

static void pages_free(void) {
  for (size_t i = 0; i < global.size; i++)
    lm_free(global.table[i]);
  lm_free(global.table);
  global.table = NULL;
  global.last = NULL;
  global.size = global.used = 0;
}

void simt_buffers_set(const simt_buffers *b) {
  global.buffers = b;
}

bool simt_global_is_early(void) {
  return global.buffers && global.buffers->early;
}

void simt_watch_set(simt_watch *fn) {
  global.watch = fn;
}

const char *simt_kernel_name(void) {
  return global.buffers ? global.buffers->kernel : NULL;
}

void simt_global_begin(void) {
  static bool registered;
  if (!registered)
    atexit(pages_free);
  registered = true;
  if (global.used > PAGES_KEPT)
    pages_free();
  global.launch++;
  global.n_pairs = 0;
}

// ---- reports

// The line of the kernel's text at that address, by the compiler's line table; 0 if it is unknown.
static int line_of(const void *code) {
  Dl_info at;
  char command[512], answer[512] = "";
  if (!dladdr(code, &at))
    return 0;
  const char *file = at.dli_fname;
  bool self = !strncmp(file, "/proc/self/", strlen("/proc/self/"));
  lm_buf path = {0};
  if (self)
    lm_buf_printf(&path, "/proc/%d/%s", (int)getpid(), file + strlen("/proc/self/"));
  else
    lm_buf_puts(&path, file);
  // The address is the next instruction's.
  snprintf(command, sizeof command, "addr2line -e %s %#lx 2>&1", path.p,
           (unsigned long)((const char *)code - (const char *)at.dli_fbase - 1));
  lm_buf_free(&path);
  FILE *pipe = popen(command, "r");
  if (pipe && !fgets(answer, sizeof answer, pipe))
    answer[0] = 0;
  if (pipe)
    pclose(pipe);
  const char *colon = strrchr(answer, ':');
  return colon ? atoi(colon + 1) : 0;
}

// The parameter of the kernel that contains the address, and the offset in it.
static void location_print(uintptr_t at, lm_buf *out) {
  const simt_buffers *b = global.buffers;
  int best = -1;
  for (int i = 0; b && i < b->n; i++)
    if ((uintptr_t)b->at[i] <= at && (best < 0 || b->at[i] >= b->at[best]))
      best = i;
  if (best < 0)
    lm_buf_printf(out, "global memory at %#lx", (unsigned long)at);
  else
    lm_buf_printf(out, "%s at byte %llu (%#lx)", b->names[best],
                  (unsigned long long)(at - (uintptr_t)b->at[best]), (unsigned long)at);
}

static bool pair_known(pair p) {
  for (int i = 0; i < global.n_pairs; i++)
    if (global.pairs[i].now == p.now && global.pairs[i].before == p.before)
      return true;
  if (global.n_pairs < PAIRS)
    global.pairs[global.n_pairs++] = p;
  return false;
}

static void race_report(uintptr_t at, const touched *before, bool wrote, bool write,
                        const void *code) {
  lm_buf location = {0};
  // Both accesses are in one library, which is smaller than 2 GiB.
  const char *other = (const char *)code + (int32_t)(before->code - (uint32_t)(uintptr_t)code);
  if (pair_known((pair){(uint32_t)(uintptr_t)code, before->code}))
    return;
  location_print(at, &location);
  simt_report_add(line_of(code), "%s %s, which thread %d of block %u %s at line %d %s",
                  write ? "writes" : "reads", location.p, before->thread, before->block,
                  wrote ? "wrote" : "read", line_of(other),
                  before->block == (uint32_t)simt.block ? "with no barrier since"
                                                        : "in the same launch");
  lm_buf_free(&location);
}

static void early_report(uintptr_t at, bool write, const void *code) {
  lm_buf location = {0};
  if (pair_known((pair){(uint32_t)(uintptr_t)code, 0}))
    return;
  location_print(at, &location);
  simt_report_add(line_of(code), "%s %s before lm_grid_begin", write ? "writes" : "reads",
                  location.p);
  lm_buf_free(&location);
}

// ---- accesses

static bool is_ordered(const touched *a) {
  return a->block == (uint32_t)simt.block && simt_ordered(&(touch){a->thread, a->clock});
}

static void slots_check(const touched *slots, bool wrote, const touched *now, bool write,
                        uintptr_t at, const void *code) {
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].bytes & now->bytes && !is_ordered(&slots[i]))
      race_report(at, &slots[i], wrote, write, code);
}

// Forgets accesses that are ordered before this one, which touches all of their bytes: whatever
// races with them races with this one, too. Without a free slot the last one is lost.
static void slots_note(touched *slots, const touched *now) {
  int n = 0;
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].bytes & ~now->bytes || (slots[i].bytes && !is_ordered(&slots[i])))
      slots[n++] = slots[i];
  for (int i = n; i < SLOTS; i++)
    slots[i].bytes = 0;
  slots[n < SLOTS ? n : SLOTS - 1] = *now;
}

static void word_touch(word *w, uintptr_t at, unsigned bytes, bool write, const void *code) {
  touched now = {(uint32_t)simt.block, simt.fibers[simt.current].clock, (uint32_t)(uintptr_t)code,
                 (int16_t)simt.current, (uint8_t)bytes};
  if (w->launch != global.launch)
    *w = (word){.launch = global.launch};
  slots_check(w->write, true, &now, write, at, code);
  if (!write) {
    slots_note(w->read, &now);
    return;
  }
  slots_check(w->read, false, &now, write, at, code);
  slots_note(w->write, &now);
}

static bool is_private(uintptr_t at) {
  return at - (uintptr_t)simt.stacks < (uintptr_t)THREADS * STACK_STEP ||
         at - (uintptr_t)simt.shared < SHARED;
}

void simt_global_touch(const void *p, size_t bytes, bool write, const void *code) {
  uintptr_t at = (uintptr_t)p, end = at + bytes;
  if (!simt.running || is_private(at))
    return;
  if (global.watch)
    global.watch(p, bytes, write);
  if (!simt.fibers[simt.current].begun && simt_global_is_early())
    early_report(at, write, code);
  while (at < end) {
    uintptr_t first = at % WORD;
    uintptr_t n = WORD - first < end - at ? WORD - first : end - at;
    shadow_page *q = page_of(at / PAGE);
    word_touch(&q->words[at % PAGE / WORD], at, (unsigned)((1u << n) - 1u) << first, write, code);
    at += n;
  }
}

// ---- functions that the compiler calls; the thread sanitizer's library defines it in a separate
// program

#if !LM_THREAD_SANITIZER
#define CODE __builtin_return_address(0)
#define ACCESSES(n)                                                                                \
  API void __tsan_read##n(void *p) {                                                               \
    simt_global_touch(p, n, false, CODE);                                                          \
  }                                                                                                \
  API void __tsan_write##n(void *p) {                                                              \
    simt_global_touch(p, n, true, CODE);                                                           \
  }                                                                                                \
  API void __tsan_unaligned_read##n(void *p) {                                                     \
    simt_global_touch(p, n, false, CODE);                                                          \
  }                                                                                                \
  API void __tsan_unaligned_write##n(void *p) {                                                    \
    simt_global_touch(p, n, true, CODE);                                                           \
  }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

// GCC declares these functions itself, with these types.
API void __tsan_read_range(void *p, long bytes) {
  simt_global_touch(p, (size_t)bytes, false, CODE);
}
API void __tsan_write_range(void *p, long bytes) {
  simt_global_touch(p, (size_t)bytes, true, CODE);
}
API void __tsan_init(void) {}
API void __tsan_func_entry(void *caller) {}
API void __tsan_func_exit(void *unused) {}
// Clang announces copies in this way.
API void *__tsan_memcpy(void *to, const void *from, unsigned long bytes) {
  simt_global_touch(from, bytes, false, CODE);
  simt_global_touch(to, bytes, true, CODE);
  return memcpy(to, from, bytes);
}
API void *__tsan_memset(void *to, int x, unsigned long bytes) {
  simt_global_touch(to, bytes, true, CODE);
  return memset(to, x, bytes);
}
#endif
