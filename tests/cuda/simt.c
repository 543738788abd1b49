// simt.c - fibers and their schedule, barriers and exchanges, and shared memory with its shadow;
// see simt.h.
#define _GNU_SOURCE
#include "tests/cuda/simt_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "codegen/cuda/cuda.h"
#include "tests/sanitizer.h"

#define API __attribute__((visibility("default"), used))

// ---- fibers: on x86-64 a switch takes a dozen instructions, elsewhere it is swapcontext. The
// address sanitizer is notified of each switch.

#if LM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __asan_unpoison_memory_region(p, bytes) ((void)(p))
#define __sanitizer_start_switch_fiber(fake, stack, bytes) ((void)(fake))
#define __sanitizer_finish_switch_fiber(fake, stack, bytes) ((void)(fake))
#endif

#ifdef __x86_64__
// A jump, not a return, which the processor would predict from the calls of the other fiber. The
// red zone of the function that contains it is left alone.
static inline void simt_machine_switch(machine *from, machine *to) {
  __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpush %%rbp\n\tpush %%rbx\n\t"
                   "lea 1f(%%rip), %%rax\n\tpush %%rax\n\t"
                   "mov %%rsp, (%%rdi)\n\tmov (%%rsi), %%rsp\n\t"
                   "pop %%rax\n\tjmp *%%rax\n"
                   "1:\tpop %%rbx\n\tpop %%rbp\n\tlea 128(%%rsp), %%rsp"
                   : "+D"(from), "+S"(to)
                   :
                   : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                     "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                     "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}
static void machine_make(machine *c, char *stack, void (*entry)(void)) {
  // The stack of `entry` is aligned as a call leaves it; its return address is NULL, since it does
  // not return.
  void **sp = (void **)(stack + STACK - 80);
  sp[0] = (void *)entry;
  sp[1] = NULL;
  c->sp = sp;
}
#else
static void simt_machine_switch(machine *from, machine *to) {
  swapcontext(&from->u, &to->u);
}
static void machine_make(machine *c, char *stack, void (*entry)(void)) {
  getcontext(&c->u);
  c->u.uc_stack = (stack_t){.ss_sp = stack, .ss_size = STACK};
  c->u.uc_link = NULL;
  makecontext(&c->u, entry, 0);
}
#endif

static void context_make(context *c, char *stack, void (*entry)(void)) {
  c->fake = NULL;
  c->stack = stack;
  c->bytes = STACK;
  machine_make(&c->machine, stack, entry);
}

static void simt_switch(context *from, context *to) {
  __sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
  simt_machine_switch(&from->machine, &to->machine);
  __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
}

// ---- state

simt_state simt;

void simt_report_add(int line, const char *fmt, ...) {
  if (simt.n_reports++ >= REPORTS)
    return;
  va_list ap;
  va_start(ap, fmt);
  const char *kernel = simt_kernel_name();
  lm_buf_printf(&simt.report, "%s%sline %d, block %lld, thread %d: ", kernel ? kernel : "",
                kernel ? ", " : "", line, (long long)simt.block, simt.current);
  lm_buf_vprintf(&simt.report, fmt, ap);
  lm_buf_puts(&simt.report, "\n");
  va_end(ap);
}

API int32_t lm_simt_fault[2];
API int32_t lm_simt_adds = 1;
void simt_adds_set(bool adds) {
  lm_simt_adds = adds;
}
const int32_t *simt_fault(void) {
  return lm_simt_fault;
}

char *simt_report_take(void) {
  char *text = simt.report.n ? lm_strdup(simt.report.p) : NULL;
  lm_buf_free(&simt.report);
  simt.report = (lm_buf){0};
  simt.n_reports = 0;
  return text;
}

void simt_schedule_set(simt_schedule s) {
  simt.schedule = s;
}
int64_t simt_kernels_run(void) {
  return simt.kernels;
}

// ---- schedule

static int ready_find(void) {
  size_t n = (size_t)simt.threads;
  size_t start = simt.schedule == SIMT_SHUFFLED ? simt_random() % n : 0;
  const uint8_t *at = simt.schedule == SIMT_BACKWARD ? memrchr(simt.wait, READY, n)
                                                     : memchr(simt.wait + start, READY, n - start);
  if (!at)
    at = memchr(simt.wait, READY, start);
  return at ? (int)(at - simt.wait) : -1;
}

// Switches from the current thread to one that is ready, or to the scheduler if none is.
static void leave(fiber *from) {
  int i = ready_find();
  if (i >= 0)
    simt.current = i;
  simt_switch(&from->context, i >= 0 ? &simt.fibers[i].context : &simt.scheduler);
}

// The scheduler enters the first thread of a block, which notes its stack.
static void fiber_main(void) {
  const void *stack = NULL;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(NULL, &stack, &bytes);
  if (!simt.scheduler.stack) {
    simt.scheduler.stack = stack;
    simt.scheduler.bytes = bytes;
  }
  simt.call(simt.args);
  fiber *me = &simt.fibers[simt.current];
  if (me->n_wgmmas)
    simt_report_add(me->wgmmas[0].line, "ends with GEMMs in flight");
  if (me->n_copies)
    simt_report_add(0, "ends with copies in flight");
  if (!me->begun && simt_global_is_early())
    simt_report_add(0, "ends without lm_grid_begin");
  simt.wait[simt.current] = DONE;
  leave(me);
  abort();
}

void simt_wait_for(wait_kind wait, int line) {
  fiber *f = &simt.fibers[simt.current];
  simt.wait[simt.current] = (uint8_t)wait;
  f->line = line;
  leave(f);
}

uint32_t simt_random(void) {
  simt.random = simt.random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(simt.random >> 33);
}

static void learn(uint32_t *known, const uint32_t *published, int n) {
  for (int i = 0; i < n; i++)
    if (published[i] > known[i])
      known[i] = published[i];
}

void simt_clocks_learn(uint32_t *known, const uint32_t *published) {
  learn(known, published, simt.threads);
  learn(known + ENGINE, published + ENGINE, BARRIERS);
}

static void clocks_clear(uint32_t *known) {
  memset(known, 0, (size_t)simt.threads * sizeof *known);
  memset(known + ENGINE, 0, BARRIERS * sizeof *known);
}

static void barrier_release(void) {
  int line = 0;
  for (int i = 0; i < simt.threads; i++) {
    const fiber *f = &simt.fibers[i];
    if (simt.wait[i] != AT_BARRIER)
      continue;
    if (line && f->line != line)
      simt_report_add(f->line, "meets threads that wait at another barrier, line %d", line);
    line = f->line;
    simt.wait[i] = READY;
  }
  for (int i = 0; i < simt.threads; i++)
    simt.base[i] = simt.fibers[i].clock++;
  for (int i = 0; i < simt.threads; i++)
    learn(simt.base + ENGINE, simt.known[i] + ENGINE, BARRIERS);
}

// After a warp barrier every thread of the mask knows what any of them knew.
static void warp_share_clocks(int warp, uint32_t mask) {
  uint32_t all[PARTIES];
  clocks_clear(all);
  for (int i = 0; i < WARP; i++) {
    if (!(mask >> i & 1))
      continue;
    simt_clocks_learn(all, simt.known[warp + i]);
    all[warp + i] = simt.fibers[warp + i].clock++;
  }
  for (int i = 0; i < WARP; i++)
    if (mask >> i & 1)
      simt_clocks_learn(simt.known[warp + i], all);
}

static void exchange_complete(int first) {
  uint32_t mask = simt.fibers[first].mask, votes = 0;
  int warp = first / WARP * WARP;
  uint64_t values[WARP] = {0};
  for (int i = 0; i < WARP; i++)
    if (mask >> i & 1) {
      values[i] = simt.fibers[warp + i].value;
      votes |= (values[i] ? 1u : 0u) << i;
    }
  warp_kind kind = simt.fibers[first].kind;
  if (kind == MMA || kind == MMA_F16)
    simt_mma_complete(warp, kind == MMA_F16);
  if (kind == MMA_TF32)
    simt_mma_tf32_complete(warp);
  if (kind == SYNC)
    warp_share_clocks(warp, mask);
  if (kind == MATRICES || kind == MATRICES_TRANSPOSED)
    simt_matrices_complete(warp, kind == MATRICES_TRANSPOSED);
  for (int i = 0; i < WARP; i++) {
    if (!(mask >> i & 1))
      continue;
    fiber *f = &simt.fibers[warp + i];
    if (f->line != simt.fibers[first].line)
      simt_report_add(f->line, "meets lanes that wait at line %d", simt.fibers[first].line);
    if (f->kind == EXCHANGE && !(f->from >= 0 && f->from < WARP && mask >> f->from & 1))
      simt_report_add(f->line, "shuffle from lane %d, which does not take part", f->from);
    else if (f->kind == EXCHANGE)
      f->value = values[f->from];
    else if (f->kind == VOTE)
      f->value = votes;
    simt.wait[warp + i] = READY;
  }
}

// True if all lanes of the exchange that thread i waits for have arrived.
static bool exchange_ready(int i) {
  const fiber *f = &simt.fibers[i];
  int warp = i / WARP * WARP;
  if (!(f->mask >> (i % WARP) & 1)) {
    simt_report_add(f->line, "takes part in an exchange of lanes %08x", f->mask);
    return true;
  }
  for (int k = 0; k < WARP; k++) {
    const fiber *g = &simt.fibers[warp + k];
    if (!(f->mask >> k & 1))
      continue;
    if (simt.wait[warp + k] != AT_WARP || g->mask != f->mask || g->kind != f->kind)
      return false;
  }
  return true;
}

static bool exchanges_complete(void) {
  bool any = false;
  for (int i = 0; i < simt.threads; i++)
    if (simt.wait[i] == AT_WARP && exchange_ready(i)) {
      exchange_complete(i);
      any = true;
    }
  for (int i = 0; i < simt.threads; i += GROUP)
    if (simt_group_ready(i)) {
      simt_group_complete(i);
      any = true;
    }
  for (int i = 0; i < simt.threads; i++)
    if (simt.wait[i] == AT_PHASE && simt_phase_passed(&simt.fibers[i])) {
      simt_phase_share_clocks(i);
      any = true;
    }
  return any;
}

// Returns false if no thread can continue.
static bool unblock(void) {
  int waiting = 0, at_barrier = 0, line = 0;
  if (exchanges_complete())
    return true;
  for (int i = 0; i < simt.threads; i++) {
    int wait = simt.wait[i];
    at_barrier += wait == AT_BARRIER;
    if (wait != AT_WARP && wait != AT_GROUP && wait != AT_PHASE)
      continue;
    if (!waiting++ || wait == AT_PHASE) {
      line = simt.fibers[i].line;
      simt.current = i;
    }
  }
  if (waiting && simt_box_deliver())
    return true;
  if (waiting) {
    simt_report_add(line, simt.wait[simt.current] == AT_PHASE ? "waits for a phase that never ends"
                                                              : "waits for lanes that never come");
    return false;
  }
  if (at_barrier)
    barrier_release();
  return at_barrier > 0;
}

static void block_run(void) {
  simt.scheduler.stack = NULL;
  simt.n_arrays = 0;
  simt.n_barriers = simt.n_boxes = 0;
  simt.takes = 0;
  memset(simt.base, 0, sizeof simt.base);
  simt.declared = 0;
  memset(simt.wait, DONE, sizeof simt.wait);
  memset(simt.wait, READY, (size_t)simt.threads);
  for (int i = 0; i < simt.threads; i++) {
    fiber *f = &simt.fibers[i];
    f->begun = false;
    f->clock = 1;
    f->fenced = 0;
    f->n_copies = f->group = f->n_wgmmas = f->wgmma_group = 0;
    clocks_clear(simt.known[i]);
    context_make(&f->context, simt.stacks + (size_t)i * STACK_STEP, fiber_main);
  }
  for (;;) {
    int i = ready_find();
    if (i < 0 && !unblock())
      break;
    if (i < 0)
      continue;
    simt.current = i;
    simt.running = true;
    simt_switch(&simt.scheduler, &simt.fibers[i].context);
    simt.running = false;
  }
  for (int i = 0; i < simt.threads; i++) // a thread that never returns
    if (simt.wait[i] != DONE)
      __asan_unpoison_memory_region(simt.stacks + (size_t)i * STACK_STEP, STACK);
  if (simt.n_boxes)
    simt_report_add(simt.boxes[0].line, "a box is in flight when the block ends");
}

static void *pages(size_t bytes) {
  void *p =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    LM_BUG("no memory for fibers");
  return p;
}

static void memory_make(void) {
  simt.stacks = pages((size_t)THREADS * STACK_STEP);
  simt.shared = pages(SHARED);
  simt.known = pages(THREADS * sizeof *simt.known);
  simt.shadows = pages(SHARED / GRAIN * sizeof *simt.shadows);
  wgmma *wgmmas = pages(THREADS * WGMMAS * sizeof *wgmmas);
  copy *copies = pages(THREADS * COPIES * sizeof *copies);
  for (int i = 0; i < THREADS; i++) {
    simt.fibers[i].wgmmas = wgmmas + (size_t)i * WGMMAS;
    simt.fibers[i].copies = copies + (size_t)i * COPIES;
  }
}

void simt_run(void (*call)(void *args), void *args, int64_t blocks, int threads) {
  LM_ASSERT(threads > 0 && threads <= THREADS);
  if (!simt.stacks)
    memory_make();
  simt.call = call;
  simt.args = args;
  simt.threads = threads;
  simt.blocks = blocks;
  simt.random = 1;
  simt.kernels++;
  simt.queue = NULL;
  simt.taken = 0;
  simt_global_begin();
  for (int64_t k = 0; k < blocks; k++) {
    simt.block = simt.schedule == SIMT_BACKWARD ? blocks - 1 - k : k;
    block_run();
  }
  if (simt.queue && *simt.queue)
    simt_report_add(0, "leaves %u in a queue", *simt.queue);
}

// ---- functions that kernels call

API int32_t lm_simt_thread(void) {
  return simt.current;
}
API int32_t lm_simt_threads(void) {
  return simt.threads;
}
API int64_t lm_simt_block(void) {
  return simt.block;
}
API int64_t lm_simt_grid(void) {
  return simt.blocks;
}
// Blocks run one after another here, and side by side on a GPU, where any of them may take the next
// item. So the schedules divide the items: among all blocks; to those that take first; at random.
API int32_t lm_simt_take(uint32_t *taken, int32_t n, int line) {
  int32_t before = (int32_t)*taken;
  bool last = simt.block == simt.blocks - 1;
  if (simt.blocks > n)
    simt_report_add(line, "takes one of %d items for %lld blocks", n, (long long)simt.blocks);
  *taken = before < n - 1 ? *taken + 1 : 0;
  simt.queue = taken;
  if (simt.schedule == SIMT_BACKWARD)
    return before + (int32_t)simt.blocks;
  if (simt.schedule == SIMT_FORWARD)
    return (int32_t)(simt.block + ++simt.takes * simt.blocks);
  return !last && simt_random() % 4 == 0 ? n : (int32_t)(simt.blocks + simt.taken++);
}
API void lm_simt_grid_begin(void) {
  simt.fibers[simt.current].begun = true;
}
API void lm_simt_barrier(int line) {
  simt_wait_for(AT_BARRIER, line);
}

uint64_t simt_exchange(warp_kind kind, uint32_t mask, uint64_t x, int32_t from, int line) {
  fiber *f = &simt.fibers[simt.current];
  f->kind = kind;
  f->mask = mask;
  f->value = x;
  f->from = from;
  simt_wait_for(AT_WARP, line);
  return f->value;
}
API void lm_simt_warp_sync(uint32_t mask, int line) {
  simt_exchange(SYNC, mask, 0, 0, line);
}
API uint64_t lm_simt_exchange(uint32_t mask, uint64_t x, int32_t from, int line) {
  return simt_exchange(EXCHANGE, mask, x, from, line);
}
API int32_t lm_simt_warp_uniform(int32_t x, int line) {
  int32_t first = (int32_t)lm_simt_exchange(~0u, (uint32_t)x, 0, line);
  if (x != first)
    simt_report_add(line, "has %d where the first lane of its warp has %d", x, first);
  return first;
}
API uint32_t lm_simt_vote(bool x, int line) {
  return (uint32_t)simt_exchange(VOTE, ~0u, x, 0, line);
}

API void *lm_simt_word(const void *p, int64_t bytes, int write) {
  if ((uintptr_t)p % (uintptr_t)bytes)
    simt_report_add(0, "%lld bytes at a misaligned address", (long long)bytes);
  simt_global_touch(p, (size_t)bytes, write, __builtin_return_address(0));
  return (void *)(uintptr_t)p;
}

// ---- shared memory

// Ends the arrays that another one of this name or at these addresses replaces.
static void arrays_end(const char *name, int64_t at, int64_t bytes) {
  int n = 0;
  for (int i = 0; i < simt.n_arrays; i++) {
    const array *a = &simt.arrays[i];
    bool apart = a->offset + a->bytes <= at || at + bytes <= a->offset;
    if (apart && strcmp(a->name, name) != 0)
      simt.arrays[n++] = *a;
  }
  simt.n_arrays = n;
}

static void *array_add(const char *name, int64_t at, int64_t bytes) {
  for (int i = 0; i < simt.n_arrays; i++) {
    const array *a = &simt.arrays[i];
    if (!strcmp(a->name, name) && a->offset == at && a->bytes == bytes)
      return simt.shared + at;
  }
  if (simt.n_arrays == ARRAYS || at + bytes > SHARED)
    LM_BUG("%s: too much shared memory", name);
  for (int64_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; i++)
    if (simt_array_at(i * GRAIN))
      simt.shadows[i].old = true;
    else
      simt.shadows[i] = (shadow){.write.thread = -1};
  arrays_end(name, at, bytes);
  simt.arrays[simt.n_arrays++] = (array){name, at, bytes};
  return simt.shared + at;
}

API void *lm_simt_shared(const char *name, int64_t bytes) {
  for (int i = 0; i < simt.n_arrays; i++)
    if (!strcmp(simt.arrays[i].name, name))
      return simt.shared + simt.arrays[i].offset;
  int64_t at = (simt.declared + 15) / 16 * 16;
  simt.declared = at + bytes;
  if (simt.declared > DECLARED)
    LM_BUG("%s: too much shared memory is declared", name);
  return array_add(name, at, bytes);
}
API void *lm_simt_pool(const char *name, int64_t at, int64_t bytes) {
  return array_add(name, DECLARED + at, bytes);
}
API uint32_t lm_simt_address(const void *p) {
  return (uint32_t)((const char *)p - simt.shared);
}

bool simt_ordered(const touch *before) {
  int t = before->thread;
  return t < 0 || t == simt.current || before->clock <= simt.base[t] ||
         before->clock <= simt.known[simt.current][t];
}

// Adds an access to a list without those that are ordered before it.
static void touch_note(touch *list, uint8_t *n, touch now) {
  int kept = 0;
  for (int i = 0; i < *n; i++)
    if (!simt_ordered(&list[i]))
      list[kept++] = list[i];
  if (kept < READERS)
    list[kept++] = now;
  *n = (uint8_t)kept;
}

// An access that is checked.
typedef struct access {
  access_kind kind;
  const array *a;
  int64_t byte;
  int line;
} access;
static const char *const access_words[] = {"reads", "writes", "adds to"};

static void access_report(const access *x, const char *why) {
  simt_report_add(x->line, "%s %s at byte %lld, %s", access_words[x->kind], x->a->name,
                  (long long)x->byte, why);
}

static void order_check(const access *x, const touch *before, int n, const char *did) {
  for (int i = 0; i < n; i++)
    if (!simt_ordered(&before[i])) {
      char why[64];
      snprintf(why, sizeof why, "which thread %d %s with no barrier since", before[i].thread, did);
      access_report(x, why);
    }
}

void simt_grain_check(shadow *s, access_kind kind, const array *a, int64_t byte, int line) {
  touch now = {(int16_t)simt.current, simt.fibers[simt.current].clock};
  access x = {kind, a, byte, line};
  if (s->coming)
    access_report(&x, "where a copy is in flight");
  if (kind != ACCESS_WRITE && (s->write.thread < 0 || s->old))
    access_report(&x, "which no thread wrote");
  if (!simt_ordered(&s->write) && s->write.thread >= ENGINE)
    access_report(&x, "which a TMA copy wrote with no wait since");
  else
    order_check(&x, &s->write, 1, "wrote");
  if (kind != ACCESS_READ)
    order_check(&x, s->read, s->readers, "read");
  if (kind != ACCESS_ADD)
    order_check(&x, s->add, s->adders, "added to");
  if (kind == ACCESS_READ)
    touch_note(s->read, &s->readers, now);
  if (kind == ACCESS_ADD)
    touch_note(s->add, &s->adders, now);
  if (kind != ACCESS_WRITE)
    return;
  s->write = now;
  s->readers = s->adders = 0;
  s->old = false;
}

const array *simt_array_at(int64_t at) {
  for (int i = 0; i < simt.n_arrays; i++)
    if (at >= simt.arrays[i].offset && at < simt.arrays[i].offset + simt.arrays[i].bytes)
      return &simt.arrays[i];
  return NULL;
}

// Checks the access; returns its offset in shared memory.
int64_t simt_access_check(const void *base, int64_t offset, int64_t bytes, access_kind kind,
                          int line) {
  int64_t at = (const char *)base - simt.shared;
  const array *a = simt_array_at(at);
  if (!a)
    LM_BUG("line %d: not an address in shared memory", line);
  int64_t byte = at - a->offset + offset;
  if (byte < 0 || byte + bytes > a->bytes) {
    simt_report_add(line, "%s %s at byte %lld of %lld", access_words[kind], a->name,
                    (long long)byte, (long long)a->bytes);
    byte = 0;
  }
  int64_t first = a->offset + byte;
  for (int64_t g = first / GRAIN; g < (first + bytes + GRAIN - 1) / GRAIN; g++)
    simt_grain_check(&simt.shadows[g], kind, a, g * GRAIN - a->offset, line);
  return first;
}

API void *lm_simt_access(const void *base, int64_t offset, int64_t bytes, int write, int line) {
  return simt.shared + simt_access_check(base, offset, bytes, (access_kind)write, line);
}
API uint32_t lm_simt_add(uint32_t *base, int64_t i, uint32_t x, int line) {
  int64_t at = simt_access_check(base, i * 4, 4, ACCESS_ADD, line);
  uint32_t *word = (uint32_t *)(void *)(simt.shared + at), before = *word;
  *word += x;
  return before;
}

// ---- plans

// The compiler that the environment names, called by a shell with options of the shim, since LMC_CC
// itself has none. Kernels need no library but libm, which this program has.
void simt_compiler_set(void) {
  const char *name = getenv("LMC_CC");
  if (!name || !*name)
    name = getenv("CC");
  if (!name || !*name)
    name = "cc";
  if (strstr(name, SIMT_COMPILER_FLAGS))
    return;
  lm_buf words = {0};
  lm_buf_printf(&words, "sh -c 'exec %s %s \"$@\"' cc", name, SIMT_COMPILER_FLAGS);
  setenv("LMC_CC", words.p, 1);
  lm_buf_free(&words);
}

typedef struct launch {
  void (*call)(char *const *buf, const int64_t *var);
  char *const *buf;
  const int64_t *var;
} launch;

static void launch_call(void *args) {
  const launch *l = args;
  l->call(l->buf, l->var);
}

API void lm_simt_launch(void (*call)(char *const *buf, const int64_t *var), char *const *buf,
                        const int64_t *var, int64_t blocks, int threads, const char *kernel,
                        const char *const *names, int n) {
  launch l = {call, buf, var};
  simt_buffers b = {kernel, names, buf, n, true};
  simt_buffers_set(&b);
  simt_run(launch_call, &l, blocks, threads);
  simt_buffers_set(NULL);
}

static int bufs_of(const lm_plan *plan, int kernel) {
  for (int f = 0; f < plan->n_funcs; f++)
    for (int i = 0; i < plan->funcs[f].n_steps; i++) {
      const lm_plan_step *s = &plan->funcs[f].steps[i];
      if (s->kind == LM_STEP_KERNEL && s->kernel == kernel)
        return s->n_bufs;
    }
  return 0;
}

// Writes the call that makes a tensor map, like runtime/cuda/map.c.
static void map_make(const lm_plan_map *m, lm_buf *b) {
  lm_buf_printf(b, "  lm_map m%d;\n  lm_simt_map(&m%d, buf[%d], (int64_t[]){", m->buf, m->buf,
                m->buf);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    const lm_plan_extent *x = &m->dim[i].size;
    lm_buf_printf(b, "%lld", (long long)x->fixed);
    for (int k = 0; k < x->n_dyn; k++)
      lm_buf_printf(b, " * var[%d]", x->dyn[k].var);
    lm_buf_puts(b, ", ");
  }
  lm_buf_puts(b, "}, (int64_t[]){");
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++)
    lm_buf_printf(b, "%lld, ", (long long)m->dim[i].stride);
  lm_buf_puts(b, "}, (int[]){");
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++)
    lm_buf_printf(b, "%d, ", m->dim[i].box);
  lm_buf_puts(b, "});\n");
}

// The names of the first n parameters, as strings of C.
static void names_put(const char *source, int n, lm_buf *out) {
  const char *at = strchr(strchr(source, ')') + 1, '('); // after LM_KERNEL(threads) and the name
  for (int i = 0; i < n; i++) {
    const char *end = at + 1 + strcspn(at + 1, ",)");
    const char *first = end;
    while (first[-1] != ' ' && first[-1] != '*')
      first--;
    lm_buf_printf(out, "%s\"%.*s\"", i ? ", " : "", (int)(end - first), first);
    at = end;
  }
}

static const char *wrapped(const lm_plan *plan, int i, lm_arena *arena) {
  const lm_plan_kernel *k = &plan->kernels[i];
  lm_buf b = {0};
  lm_buf_printf(&b,
                "extern int32_t lm_simt_fault[2], lm_simt_adds;\n#define %s %s_gpu\n#line 1 "
                "\"%s.cu\"\n%s#undef "
                "%s\n__attribute__((no_sanitize_thread)) static void %s_call(char "
                "*const *buf, const int64_t *var) {\n",
                k->name, k->name, k->name, k->source, k->name, k->name);
  for (int j = 0; j < k->launch.n_maps; j++)
    map_make(&k->launch.maps[j], &b);
  lm_buf_printf(&b, "  %s_gpu(", k->name);
  int n = bufs_of(plan, i);
  for (int j = 0; j < n; j++)
    lm_buf_printf(&b, "%s(void *)buf[%d]", j ? ", " : "", j);
  for (int j = 0; j < 32; j++)
    if (k->launch.extents >> j & 1)
      lm_buf_printf(&b, ", &var[%d]", j);
  for (int j = 0; j < k->launch.n_maps; j++)
    lm_buf_printf(&b, ", m%d", k->launch.maps[j].buf);
  if (k->launch.adds)
    lm_buf_puts(&b, ", lm_simt_adds");
  if (k->launch.appends)
    lm_buf_puts(&b, ", lm_simt_fault, 1");
  lm_buf_printf(&b,
                ");\n}\nextern void lm_simt_launch(void (*call)(char *const *buf, const int64_t "
                "*var), char *const *buf, const int64_t *var, int64_t blocks, int threads, const "
                "char *kernel, const char *const *names, int n);\n"
                "void %s(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n  "
                "static const char *const names[] = {",
                k->name);
  names_put(k->source, n, &b);
  lm_buf_printf(&b,
                "};\n  lm_simt_launch(%s_call, buf, var, (hi + %lld) / %lld, %d, \"%s\", names, "
                "%d);\n}\n",
                k->name, (long long)k->launch.per_block - 1, (long long)k->launch.per_block,
                k->launch.threads, k->name, n);
  const char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

// Generated GEMMs become kernels, which compute all of it as a GPU's do.
static void gemms_wrap(const lm_plan *plan, lm_plan_func *f) {
  for (int i = 0; i < f->n_steps; i++) {
    lm_plan_step *s = &f->steps[i];
    int kernel = lm_plan_step_kernel(s);
    if (s->kind != LM_STEP_GEMM || kernel < 0)
      continue;
    s->kind = LM_STEP_KERNEL;
    s->kernel = kernel;
    s->space = (lm_plan_extent){.fixed = plan->kernels[kernel].launch.blocks};
  }
}

void simt_plan_prepare(lm_plan *plan, lm_arena *arena) {
  for (int i = 0; i < plan->n_funcs; i++)
    gemms_wrap(plan, &plan->funcs[i]);
  for (int i = 0; i < plan->n_kernels; i++)
    plan->kernels[i].source = wrapped(plan, i, arena);
}

// GCC takes longer to optimize a kernel with announced accesses than the kernel runs.
static const char *prelude(lm_arena *arena) {
  return lm_arena_printf(arena, "#pragma GCC optimize(\"O0\")\n%s",
                         lm_cuda_prelude_simt_text(arena));
}

lm_plan_options simt_options_of(const char *arch, bool tf32) {
  static lm_codegen shim;
  simt_compiler_set();
  lm_plan_options o = lm_cuda_options(arch, tf32);
  shim = *o.codegen;
  shim.prelude = prelude;
  o.codegen = &shim;
  return o;
}
lm_plan_options simt_options(void) {
  return simt_options_of(NULL, false);
}
