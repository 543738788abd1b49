// simt.c - see simt.h: fibers and their schedule, barriers and exchanges, and shared memory with its shadow.
#include "tests/cuda/simt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "codegen/cuda/cuda.h"

enum { THREADS = 1024, WARP = 32, STACK = 256 << 10, SHARED = 228 << 10, ARRAYS = 32, GRAIN = 2, REPORTS = 20,
       COPIES = 256, READERS = 4, BARRIERS = 32, GROUP = 128, PRODUCTS = 64 };

#define API __attribute__((visibility("default"), used))

// ---- fibers: on x86-64 a switch is a dozen instructions, elsewhere the library's. The address sanitizer is told of each.

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
#define __sanitizer_start_switch_fiber(fake, stack, bytes) ((void)(fake))
#define __sanitizer_finish_switch_fiber(fake, stack, bytes) ((void)(fake))
#endif

#ifdef __x86_64__
typedef struct machine { void *sp; } machine;
void simt_machine_switch(machine *from, machine *to);
__asm__(".text\n.type simt_machine_switch, @function\nsimt_machine_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov (%rsi), %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n.size simt_machine_switch, .-simt_machine_switch\n");
static void machine_make(machine *c, char *stack, void (*entry)(void)) {
  void **sp = (void **)(stack + STACK - 72);   // so that entry finds the stack as a call leaves it
  *sp-- = NULL;                        // where entry would return to, which it does not
  *sp-- = (void *)entry;
  for (int i = 0; i < 6; i++) *sp-- = NULL;
  c->sp = sp + 1;
}
#else
typedef struct machine { ucontext_t u; } machine;
static void simt_machine_switch(machine *from, machine *to) { swapcontext(&from->u, &to->u); }
static void machine_make(machine *c, char *stack, void (*entry)(void)) {
  getcontext(&c->u);
  c->u.uc_stack = (stack_t){.ss_sp = stack, .ss_size = STACK};
  c->u.uc_link = NULL;
  makecontext(&c->u, entry, 0);
}
#endif

typedef struct context { machine machine; void *fake; const void *stack; size_t bytes; } context;

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

typedef enum { READY, AT_BARRIER, AT_WARP, AT_GROUP, AT_PHASE, DONE } wait_kind;
typedef enum { SYNC, EXCHANGE, VOTE, MMA, MATRICES, MATRICES_TURNED } warp_kind;

// A wgmma that was issued: registers of a are taken then, all else is read when it happens.
typedef struct product { float *d; int n; bool add, a_shared, b_turned; uint32_t a[4]; uint64_t a_at, b_at; int group, line; } product;

typedef struct copy { int64_t to; const void *from; bool valid; int group; } copy;

typedef struct fiber {
  context context;
  wait_kind wait;
  int line;                            // where it waits
  warp_kind kind;
  uint32_t mates;                      // of the exchange it waits for
  uint64_t value; int32_t from;
  uint32_t clock, fenced;              // counts releases; writes up to `fenced` are seen by the tensor cores' own path
  int phase_barrier; uint32_t parity;  // of the phase that it waits for
  product products[PRODUCTS]; int n_products, products_group, products_left;
  float *d; uint32_t *r; const uint32_t *a, *b;   // operands of a tensor-core operation
  int64_t place;                       // of a matrix row in shared memory
  copy copies[COPIES]; int n_copies, group;       // not yet waited for; the group that is being filled
} fiber;

// Who touched two bytes last, and when by its own clock. An access is ordered after another if its thread knows of that time,
// through barriers of the block or of warps and through phases of mbarriers: vector clocks. Of readers the first few are kept.
typedef struct touch { int16_t thread; uint32_t clock; } touch;
typedef struct shadow { touch write, read[READERS]; uint8_t readers; bool coming; } shadow;   // coming: by a copy under way

typedef struct phase_barrier { int64_t place; int count, missing; uint32_t phase; } phase_barrier;

typedef struct array { const char *name; int64_t offset, bytes; } array;

static struct {
  simt_schedule schedule;
  uint64_t random;
  char *stacks;
  fiber fibers[THREADS];
  context scheduler;
  int threads, current;
  int64_t block, blocks;
  void (*call)(void *args);
  void *args;
  uint32_t base[THREADS];              // what the last barrier of the block told every thread of each
  uint32_t (*known)[THREADS];          // by thread: what it has learned since
  phase_barrier barriers[BARRIERS]; int n_barriers;
  uint32_t gathered[BARRIERS][THREADS], told[BARRIERS][THREADS];   // by those who arrived; to those who wait
  char *shared;
  shadow *shadows;
  array arrays[ARRAYS]; int n_arrays;
  int64_t shared_bytes;
  lm_buf report; int n_reports;
  int64_t kernels;
} sim;

static void complain(int line, const char *fmt, ...) LM_PRINTF(2, 3);
static void complain(int line, const char *fmt, ...) {
  if (sim.n_reports++ >= REPORTS) return;
  va_list ap;
  va_start(ap, fmt);
  lm_buf_printf(&sim.report, "line %d, block %lld, thread %d: ", line, (long long)sim.block, sim.current);
  lm_buf_vprintf(&sim.report, fmt, ap);
  lm_buf_puts(&sim.report, "\n");
  va_end(ap);
}

char *simt_report_take(void) {
  char *text = sim.report.n ? lm_strdup(sim.report.p) : NULL;
  lm_buf_free(&sim.report);
  sim.report = (lm_buf){0};
  sim.n_reports = 0;
  return text;
}

void simt_schedule_set(simt_schedule s) { sim.schedule = s; }
int64_t simt_kernels_run(void) { return sim.kernels; }

// ---- schedule

static void fiber_main(void) {
  __sanitizer_finish_switch_fiber(NULL, &sim.scheduler.stack, &sim.scheduler.bytes);
  sim.call(sim.args);
  sim.fibers[sim.current].wait = DONE;
  simt_switch(&sim.fibers[sim.current].context, &sim.scheduler);
  abort();
}

static void wait_for(wait_kind wait, int line) {
  fiber *f = &sim.fibers[sim.current];
  f->wait = wait;
  f->line = line;
  simt_switch(&f->context, &sim.scheduler);
}

static uint64_t random_next(void) {
  sim.random = sim.random * 6364136223846793005u + 1442695040888963407u;
  return sim.random >> 33;
}

static void barrier_release(void) {
  int line = 0;
  for (int i = 0; i < sim.threads; i++) {
    fiber *f = &sim.fibers[i];
    if (f->wait != AT_BARRIER) continue;
    if (line && f->line != line) complain(f->line, "meets threads that wait at another barrier, line %d", line);
    line = f->line;
    f->wait = READY;
  }
  for (int i = 0; i < sim.threads; i++) sim.base[i] = sim.fibers[i].clock++;
}

// What the threads of a warp know, they all know.
static void warp_tell(int warp, uint32_t mates) {
  uint32_t all[THREADS];
  memset(all, 0, sizeof all);
  for (int i = 0; i < WARP; i++) {
    if (!(mates >> i & 1)) continue;
    for (int t = 0; t < sim.threads; t++)
      if (sim.known[warp + i][t] > all[t]) all[t] = sim.known[warp + i][t];
    all[warp + i] = sim.fibers[warp + i].clock++;
  }
  for (int i = 0; i < WARP; i++)
    if (mates >> i & 1) memcpy(sim.known[warp + i], all, sizeof all[0] * (size_t)sim.threads);
}

// ---- tensor cores: fragments as PTX lays them out

static float bf16_of(uint32_t word, int half) {
  uint32_t u = half ? word & 0xffff0000u : word << 16;
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

// mma.m16n8k16: with g = lane / 4, q = lane % 4, a[0..3] hold rows g, g + 8, g, g + 8 at columns 2q, 2q, 2q + 8, 2q + 8;
// b[0..1] rows 2q, 2q + 8 of column g.
static void mma_complete(int warp) {
  float a[16][16], b[16][8];
  for (int l = 0; l < WARP; l++) {
    const fiber *f = &sim.fibers[warp + l];
    int g = l / 4, q = l % 4;
    for (int i = 0; i < 4; i++)
      for (int h = 0; h < 2; h++) a[g + i % 2 * 8][2 * q + h + i / 2 * 8] = bf16_of(f->a[i], h);
    for (int i = 0; i < 2; i++)
      for (int h = 0; h < 2; h++) b[2 * q + h + i * 8][g] = bf16_of(f->b[i], h);
  }
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][col];
      sim.fibers[warp + l].d[i] += sum;
    }
}

// ldmatrix.x4: lane l gives row l % 8 of matrix l / 8 and receives, of each, elements 2 (l % 4) and the next of row l / 4; turned:
// of column l / 4.
static void matrices_complete(int warp, bool turned) {
  for (int l = 0; l < WARP; l++)
    for (int i = 0; i < 4; i++) {
      uint16_t half[2];
      for (int h = 0; h < 2; h++) {
        int line = turned ? l % 4 * 2 + h : l / 4, at = turned ? l / 4 : l % 4 * 2 + h;
        memcpy(&half[h], sim.shared + sim.fibers[warp + 8 * i + line].place + 2 * at, sizeof half[h]);
      }
      sim.fibers[warp + l].r[i] = half[0] | (uint32_t)half[1] << 16;
    }
}

static void exchange_complete(int first) {
  uint32_t mates = sim.fibers[first].mates, votes = 0;
  int warp = first / WARP * WARP;
  uint64_t values[WARP] = {0};
  for (int i = 0; i < WARP; i++)
    if (mates >> i & 1) {
      values[i] = sim.fibers[warp + i].value;
      votes |= (values[i] ? 1u : 0u) << i;
    }
  warp_kind kind = sim.fibers[first].kind;
  if (kind == MMA) mma_complete(warp);
  if (kind == SYNC) warp_tell(warp, mates);
  if (kind == MATRICES || kind == MATRICES_TURNED) matrices_complete(warp, kind == MATRICES_TURNED);
  for (int i = 0; i < WARP; i++) {
    if (!(mates >> i & 1)) continue;
    fiber *f = &sim.fibers[warp + i];
    if (f->line != sim.fibers[first].line) complain(f->line, "meets lanes that wait at line %d", sim.fibers[first].line);
    if (f->kind == EXCHANGE && !(f->from >= 0 && f->from < WARP && mates >> f->from & 1)) complain(f->line, "shuffle from lane %d, which takes no part", f->from);
    else if (f->kind == EXCHANGE) f->value = values[f->from];
    else if (f->kind == VOTE) f->value = votes;
    f->wait = READY;
  }
}

// The exchange that thread i waits for, if all of its lanes are there.
static bool exchange_ready(int i) {
  const fiber *f = &sim.fibers[i];
  int warp = i / WARP * WARP;
  if (!(f->mates >> (i % WARP) & 1)) { complain(f->line, "takes part in an exchange of lanes %08x", f->mates); return true; }
  for (int k = 0; k < WARP; k++) {
    const fiber *g = &sim.fibers[warp + k];
    if (!(f->mates >> k & 1)) continue;
    if (warp + k >= sim.threads || g->wait != AT_WARP || g->mates != f->mates || g->kind != f->kind) return false;
  }
  return true;
}

static int ready_find(void) {
  int n = sim.threads, start = sim.schedule == SIMT_SHUFFLED ? (int)(random_next() % (unsigned)n) : 0;
  for (int k = 0; k < n; k++) {
    int i = sim.schedule == SIMT_BACKWARD ? n - 1 - k : (start + k) % n;
    if (sim.fibers[i].wait == READY) return i;
  }
  return -1;
}

static bool group_ready(int first);
static void group_complete(int first);
static bool phase_passed(const fiber *f);
static void phase_tell(int thread);

static bool exchanges_complete(void) {
  bool any = false;
  for (int i = 0; i < sim.threads; i++)
    if (sim.fibers[i].wait == AT_WARP && exchange_ready(i)) { exchange_complete(i); any = true; }
  for (int i = 0; i < sim.threads; i += GROUP)
    if (group_ready(i)) { group_complete(i); any = true; }
  for (int i = 0; i < sim.threads; i++)
    if (sim.fibers[i].wait == AT_PHASE && phase_passed(&sim.fibers[i])) { phase_tell(i); any = true; }
  return any;
}

// False when nobody can go on.
static bool unblock(void) {
  int waiting = 0, at_barrier = 0, line = 0;
  if (exchanges_complete()) return true;
  for (int i = 0; i < sim.threads; i++) {
    wait_kind wait = sim.fibers[i].wait;
    at_barrier += wait == AT_BARRIER;
    if (wait != AT_WARP && wait != AT_GROUP && wait != AT_PHASE) continue;
    if (!waiting++ || wait == AT_PHASE) { line = sim.fibers[i].line; sim.current = i; }
  }
  if (waiting) {
    complain(line, sim.fibers[sim.current].wait == AT_PHASE ? "waits for a phase that never ends" : "waits for lanes that never come");
    return false;
  }
  if (at_barrier) barrier_release();
  return at_barrier > 0;
}

static void block_run(void) {
  sim.n_arrays = 0;
  sim.n_barriers = 0;
  memset(sim.base, 0, sizeof sim.base);
  sim.shared_bytes = 0;
  for (int i = 0; i < sim.threads; i++) {
    fiber *f = &sim.fibers[i];
    f->wait = READY;
    f->clock = 1;
    f->fenced = 0;
    f->n_copies = f->group = f->n_products = f->products_group = 0;
    memset(sim.known[i], 0, sizeof sim.known[0][0] * (size_t)sim.threads);
    context_make(&f->context, sim.stacks + (size_t)i * STACK, fiber_main);
  }
  for (;;) {
    int i = ready_find();
    if (i < 0 && !unblock()) break;
    if (i < 0) continue;
    sim.current = i;
    simt_switch(&sim.scheduler, &sim.fibers[i].context);
  }
}

static void *pages(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) LM_BUG("no memory for fibers");
  return p;
}

void simt_run(void (*call)(void *args), void *args, int64_t blocks, int threads) {
  LM_ASSERT(threads > 0 && threads <= THREADS);
  if (!sim.stacks) {
    sim.stacks = pages((size_t)THREADS * STACK);
    sim.shared = pages(SHARED);
    sim.known = pages(THREADS * sizeof *sim.known);
    sim.shadows = pages(SHARED / GRAIN * sizeof *sim.shadows);
  }
  sim.call = call;
  sim.args = args;
  sim.threads = threads;
  sim.blocks = blocks;
  sim.random = 1;
  sim.kernels++;
  for (int64_t k = 0; k < blocks; k++) {
    sim.block = sim.schedule == SIMT_BACKWARD ? blocks - 1 - k : k;
    block_run();
  }
}

// ---- what kernels call

API int32_t lm_simt_thread(void) { return sim.current; }
API int32_t lm_simt_threads(void) { return sim.threads; }
API int64_t lm_simt_block(void) { return sim.block; }
API int64_t lm_simt_grid(void) { return sim.blocks; }
API void lm_simt_barrier(int line) { wait_for(AT_BARRIER, line); }

static uint64_t exchange(warp_kind kind, uint32_t mates, uint64_t x, int32_t from, int line) {
  fiber *f = &sim.fibers[sim.current];
  f->kind = kind;
  f->mates = mates;
  f->value = x;
  f->from = from;
  wait_for(AT_WARP, line);
  return f->value;
}
API void lm_simt_warp_sync(uint32_t mates, int line) { exchange(SYNC, mates, 0, 0, line); }
API uint64_t lm_simt_exchange(uint32_t mates, uint64_t x, int32_t from, int line) { return exchange(EXCHANGE, mates, x, from, line); }
API uint32_t lm_simt_vote(bool x, int line) { return (uint32_t)exchange(VOTE, ~0u, x, 0, line); }

API void *lm_simt_word(const void *p, int64_t bytes) {
  if ((uintptr_t)p % (uintptr_t)bytes) complain(0, "%lld bytes at an odd address", (long long)bytes);
  return (void *)(uintptr_t)p;
}

// ---- shared memory

static void *array_add(const char *name, int64_t at, int64_t bytes) {
  for (int i = 0; i < sim.n_arrays; i++)
    if (!strcmp(sim.arrays[i].name, name)) return sim.shared + sim.arrays[i].offset;
  if (sim.n_arrays == ARRAYS || at + bytes > SHARED) LM_BUG("%s: too much shared memory", name);
  sim.arrays[sim.n_arrays++] = (array){name, at, bytes};
  if (at + bytes > sim.shared_bytes) sim.shared_bytes = at + bytes;
  for (int64_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; i++) sim.shadows[i] = (shadow){.write.thread = -1};
  return sim.shared + at;
}

API void *lm_simt_shared(const char *name, int64_t bytes) { return array_add(name, (sim.shared_bytes + 15) / 16 * 16, bytes); }
API void *lm_simt_pool(const char *name, int64_t at, int64_t bytes) { return array_add(name, at, bytes); }
API uint32_t lm_simt_address(const void *p) { return (uint32_t)((const char *)p - sim.shared); }

static bool ordered(const touch *before) {
  int t = before->thread;
  return t < 0 || t == sim.current || before->clock <= sim.base[t] || before->clock <= sim.known[sim.current][t];
}

static void read_note(shadow *s, touch now) {
  int n = 0;
  for (int i = 0; i < s->readers; i++)
    if (!ordered(&s->read[i])) s->read[n++] = s->read[i];
  if (n < READERS) s->read[n++] = now;
  s->readers = (uint8_t)n;
}

static void grain_check(shadow *s, bool write, const array *a, int64_t byte, int line) {
  touch now = {(int16_t)sim.current, sim.fibers[sim.current].clock};
  if (s->coming) complain(line, "%s %s at byte %lld, where a copy is under way", write ? "writes" : "reads", a->name, (long long)byte);
  if (!write && s->write.thread < 0) complain(line, "reads %s at byte %lld, which nothing wrote", a->name, (long long)byte);
  if (!ordered(&s->write)) complain(line, "%s %s at byte %lld, which thread %d wrote with no barrier since", write ? "writes" : "reads", a->name, (long long)byte, s->write.thread);
  for (int i = 0; write && i < s->readers; i++)
    if (!ordered(&s->read[i])) complain(line, "writes %s at byte %lld, which thread %d read with no barrier since", a->name, (long long)byte, s->read[i].thread);
  if (!write) { read_note(s, now); return; }
  s->write = now;
  s->readers = 0;
}

static const array *array_at(int64_t at) {
  for (int i = 0; i < sim.n_arrays; i++)
    if (at >= sim.arrays[i].offset && at < sim.arrays[i].offset + sim.arrays[i].bytes) return &sim.arrays[i];
  return NULL;
}

// Where in shared memory the access lies, after it was checked.
static int64_t access_check(const void *base, int64_t offset, int64_t bytes, int write, int line) {
  int64_t at = (const char *)base - sim.shared;
  const array *a = array_at(at);
  if (!a) LM_BUG("line %d: not an address in shared memory", line);
  int64_t byte = at - a->offset + offset;
  if (byte < 0 || byte + bytes > a->bytes) {
    complain(line, "%s %s at byte %lld of %lld", write ? "writes" : "reads", a->name, (long long)byte, (long long)a->bytes);
    byte = 0;
  }
  int64_t first = a->offset + byte;
  for (int64_t g = first / GRAIN; g < (first + bytes + GRAIN - 1) / GRAIN; g++) grain_check(&sim.shadows[g], write, a, g * GRAIN - a->offset, line);
  return first;
}

API void *lm_simt_access(const void *base, int64_t offset, int64_t bytes, int write, int line) {
  return sim.shared + access_check(base, offset, bytes, write, line);
}

API void lm_simt_mma_bf16(float *d, const uint32_t *a, const uint32_t *b, int line) {
  fiber *f = &sim.fibers[sim.current];
  f->d = d;
  f->a = a;
  f->b = b;
  exchange(MMA, ~0u, 0, 0, line);
}

API void lm_simt_matrices(uint32_t *r, const void *tile, int64_t byte, int turned, int line) {
  fiber *f = &sim.fibers[sim.current];
  f->place = access_check(tile, byte, 16, 0, line);
  if (f->place % 16) complain(line, "a matrix row at an odd address");
  f->r = r;
  exchange(turned ? MATRICES_TURNED : MATRICES, ~0u, 0, 0, line);
}

// ---- copies that go on while the thread does. When they happen is up to the schedule: at once, or when waited for.

static void copy_do(const copy *c) {
  if (c->valid) memcpy(sim.shared + c->to, c->from, 16);
  else memset(sim.shared + c->to, 0, 16);
}

API void lm_simt_copy(void *tile, int64_t byte, const void *from, int valid, int line) {
  fiber *f = &sim.fibers[sim.current];
  copy c = {access_check(tile, byte, 16, 1, line), from, valid != 0, f->group};
  if (c.to % 16 || (valid && (uintptr_t)from % 16)) complain(line, "a copy between odd addresses");
  for (int i = 0; i < 16 / GRAIN; i++) sim.shadows[c.to / GRAIN + i].coming = true;
  if (f->n_copies == COPIES) LM_BUG("more than %d copies of a thread under way", COPIES);
  if (sim.schedule == SIMT_FORWARD) copy_do(&c);
  f->copies[f->n_copies++] = c;
}

API void lm_simt_copies_commit(void) { sim.fibers[sim.current].group++; }

API void lm_simt_copies_wait(int left) {
  fiber *f = &sim.fibers[sim.current];
  int n = 0;
  for (int i = 0; i < f->n_copies; i++) {
    const copy *c = &f->copies[i];
    if (c->group >= f->group - left) { f->copies[n++] = *c; continue; }
    if (sim.schedule != SIMT_FORWARD) copy_do(c);
    for (int g = 0; g < 16 / GRAIN; g++) {
      shadow *s = &sim.shadows[c->to / GRAIN + g];
      s->coming = false;
      s->write = (touch){(int16_t)sim.current, f->clock};
    }
  }
  f->n_copies = n;
}

// ---- mbarriers: a phase ends when as many arrived as it counts; those who wait then know what those who arrived knew.

static phase_barrier *barrier_at(const void *base, int i, int line) {
  int64_t place = (const char *)base - sim.shared + 8 * i;
  for (int k = 0; k < sim.n_barriers; k++)
    if (sim.barriers[k].place == place) return &sim.barriers[k];
  LM_BUG("line %d: an mbarrier that was never made", line);
}

API void lm_simt_phase_make(void *base, int i, int count, int line) {
  int64_t place = access_check(base, 8 * i, 8, 1, line);
  if (sim.n_barriers == BARRIERS) LM_BUG("more than %d mbarriers", BARRIERS);
  memset(sim.gathered[sim.n_barriers], 0, sizeof sim.gathered[0]);
  memset(sim.told[sim.n_barriers], 0, sizeof sim.told[0]);
  sim.barriers[sim.n_barriers++] = (phase_barrier){place, count, count, 0};
}

API void lm_simt_phase_arrive(void *base, int i, int line) {
  access_check(base, 8 * i, 8, 0, line);
  phase_barrier *b = barrier_at(base, i, line);
  int k = (int)(b - sim.barriers), me = sim.current;
  for (int t = 0; t < sim.threads; t++)
    if (sim.known[me][t] > sim.gathered[k][t]) sim.gathered[k][t] = sim.known[me][t];
  sim.gathered[k][me] = sim.fibers[me].clock++;
  if (--b->missing) return;
  memcpy(sim.told[k], sim.gathered[k], sizeof sim.told[k]);
  b->missing = b->count;
  b->phase++;
}

static bool phase_passed(const fiber *f) { return (sim.barriers[f->phase_barrier].phase & 1) != f->parity; }

static void phase_tell(int thread) {
  fiber *f = &sim.fibers[thread];
  for (int t = 0; t < sim.threads; t++)
    if (sim.told[f->phase_barrier][t] > sim.known[thread][t]) sim.known[thread][t] = sim.told[f->phase_barrier][t];
  f->wait = READY;
}

// Until the phase of that parity is over; before the first, those of parity 1 are.
API void lm_simt_phase_wait(void *base, int i, uint32_t parity, int line) {
  fiber *f = &sim.fibers[sim.current];
  access_check(base, 8 * i, 8, 0, line);
  f->phase_barrier = (int)(barrier_at(base, i, line) - sim.barriers);
  f->parity = parity;
  if (phase_passed(f)) phase_tell(sim.current);
  else wait_for(AT_PHASE, line);
}

// ---- wgmma: products of a warpgroup, that happen at once or when waited for.

API void lm_simt_proxy_fence(void) {
  fiber *f = &sim.fibers[sim.current];
  f->fenced = f->clock++;
}

// Where element (line, k) of a matrix lies, of 64 or n lines and 16 k, as its descriptor says: bits 0-13 the address, 16-29 and
// 32-45 the leading and the stride offset, all in 16 bytes; 62-63 the swizzle. k runs along memory, or, turned, lines do.
int64_t simt_matrix_place(uint64_t at, int line, int k, bool turned, int text_line) {
  static const int widths[] = {16, 128, 64, 32};
  int64_t start = (int64_t)(at & 0x3fff) << 4, leading = (int64_t)(at >> 16 & 0x3fff) << 4, stride = (int64_t)(at >> 32 & 0x3fff) << 4, place;
  int width = widths[at >> 62], per = width / 2;
  if (start & 0x3ff & ~(width - 1) && width > 16) complain(text_line, "a swizzled matrix that begins within a pattern");
  if (turned && width == 16) place = start + line / 8 * stride + line % 8 * 2 + k % 8 * 16 + k / 8 * leading;
  else if (turned) place = start + line / per * leading + line % per * 2 + k % 8 * width + k / 8 * stride;
  else if (width == 16) place = start + line / 8 * stride + line % 8 * 16 + k / 8 * leading + k % 8 * 2;
  else place = start + line / 8 * stride + line % 8 * width + k * 2;
  if (!turned && width > 16 && start % width + 2 * k >= width) complain(text_line, "a matrix that leaves its lines");
  return width == 16 ? place : place ^ (place >> 7 & (width / 16 - 1)) << 4;
}

static float matrix_element(uint64_t at, int line, int k, bool turned, int text_line) {
  int64_t place = simt_matrix_place(at, line, k, turned, text_line);
  const array *a = array_at(place);
  uint16_t half;
  if (!a) { complain(text_line, "a matrix outside of shared memory, at byte %lld", (long long)place); return 0; }
  shadow *s = &sim.shadows[place / GRAIN];
  if (s->write.thread >= 0 && s->write.clock > sim.fibers[s->write.thread].fenced)
    complain(text_line, "multiplies %s at byte %lld, which thread %d wrote with no fence since", a->name, (long long)(place - a->offset), s->write.thread);
  int first = sim.current;
  for (int w = 0; w < GROUP / WARP; w++) {
    sim.current = first + w * WARP;
    grain_check(s, false, a, place - a->offset, text_line);
  }
  sim.current = first;
  memcpy(&half, sim.shared + place, sizeof half);
  return bf16_of(half, 0);
}

// Fragments are mma's, 16 rows to each of four warps, and n / 8 of them side by side.
static void product_complete(int first, int k) {
  static float a[64][16], b[16][256];
  const product *p = &sim.fibers[first].products[k];
  int before = sim.current;
  sim.current = first;
  for (int i = 0; i < 64; i++)
    for (int j = 0; j < 16; j++) {
      int lane = i % 8 * 4 + j % 8 / 2, word = i % 16 / 8 + j / 8 * 2;
      a[i][j] = p->a_shared ? matrix_element(p->a_at, i, j, false, p->line) : bf16_of(sim.fibers[first + i / 16 * WARP + lane].products[k].a[word], j % 2);
    }
  for (int j = 0; j < 16; j++)
    for (int n = 0; n < p->n; n++) b[j][n] = matrix_element(p->b_at, n, j, p->b_turned, p->line);
  for (int t = 0; t < GROUP; t++) {
    const product *own = &sim.fibers[first + t].products[k];
    if (own->line != p->line || own->n != p->n || own->b_at != p->b_at || own->a_at != p->a_at) complain(own->line, "threads of a warpgroup multiply different matrices");
    for (int i = 0; i < p->n / 2; i++) {
      int row = t / WARP * 16 + t % WARP / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + t % 4 * 2 + i % 2;
      float sum = 0;
      for (int j = 0; j < 16; j++) sum += a[row][j] * b[j][col];
      own->d[i] = (own->add ? own->d[i] : 0) + sum;
    }
  }
  sim.current = before;
}

static bool group_ready(int first) {
  for (int i = first; i < first + GROUP; i++)
    if (i >= sim.threads || sim.fibers[i].wait != AT_GROUP) return false;
  return true;
}

static void group_complete(int first) {
  fiber *f = &sim.fibers[first];
  int done = 0;
  while (done < f->n_products && (sim.schedule == SIMT_FORWARD || f->products[done].group < f->products_group - f->products_left)) product_complete(first, done++);
  for (int i = first; i < first + GROUP; i++) {
    fiber *g = &sim.fibers[i];
    if (g->n_products != f->n_products || g->line != f->line) { complain(g->line, "meets threads of its warpgroup that wait at line %d", f->line); done = g->n_products; }
  }
  for (int i = first; i < first + GROUP; i++) {
    fiber *g = &sim.fibers[i];
    g->n_products -= done;
    memmove(g->products, g->products + done, (size_t)g->n_products * sizeof *g->products);
    g->wait = READY;
  }
}

API void lm_simt_wgmma(float *d, int n, const uint32_t *a, uint64_t a_at, uint64_t b_at, int b_turned, int add, int line) {
  fiber *f = &sim.fibers[sim.current];
  if (f->n_products == PRODUCTS) LM_BUG("more than %d products under way", PRODUCTS);
  product *p = &f->products[f->n_products++];
  *p = (product){.d = d, .n = n, .add = add, .a_shared = !a, .b_turned = b_turned, .a_at = a_at, .b_at = b_at, .group = f->products_group, .line = line};
  if (a) memcpy(p->a, a, sizeof p->a);
  if (sim.schedule == SIMT_FORWARD) wait_for(AT_GROUP, line);
}
API void lm_simt_wgmma_commit(void) { sim.fibers[sim.current].products_group++; }
API void lm_simt_wgmma_wait(int left, int line) {
  sim.fibers[sim.current].products_left = left;
  wait_for(AT_GROUP, line);
}

// ---- plans

typedef struct launch { void (*call)(char *const *buf, const int64_t *var); char *const *buf; const int64_t *var; } launch;

static void launch_call(void *args) {
  const launch *l = args;
  l->call(l->buf, l->var);
}

API void lm_simt_launch(void (*call)(char *const *buf, const int64_t *var), char *const *buf, const int64_t *var, int64_t blocks, int threads) {
  launch l = {call, buf, var};
  simt_run(launch_call, &l, blocks, threads);
}

static int bufs_of(const lm_plan *plan, int kernel) {
  for (int f = 0; f < plan->n_funcs; f++)
    for (int i = 0; i < plan->funcs[f].n_steps; i++) {
      const lm_plan_step *s = &plan->funcs[f].steps[i];
      if (s->kind == LM_STEP_KERNEL && s->kernel == kernel) return s->n_bufs;
    }
  return 0;
}

static const char *wrapped(const lm_plan *plan, int i, lm_arena *arena) {
  const lm_plan_kernel *k = &plan->kernels[i];
  lm_buf b = {0};
  lm_buf_printf(&b, "#define %s %s_gpu\n%s#undef %s\nstatic void %s_call(char *const *buf, const int64_t *var) {\n  %s_gpu(", k->name, k->name, k->source, k->name, k->name, k->name);
  int n = bufs_of(plan, i);
  for (int j = 0; j < n; j++) lm_buf_printf(&b, "%s(void *)buf[%d]", j ? ", " : "", j);
  for (int j = 0; j < 32; j++)
    if (k->launch.extents >> j & 1) lm_buf_printf(&b, ", var[%d]", j);
  lm_buf_printf(&b, ");\n}\nextern void lm_simt_launch(void (*call)(char *const *buf, const int64_t *var), char *const *buf, const int64_t *var, int64_t blocks, int threads);\n"
                "void %s(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n  lm_simt_launch(%s_call, buf, var, (hi + %lld) / %lld, %d);\n}\n",
                k->name, k->name, (long long)k->launch.per_block - 1, (long long)k->launch.per_block, k->launch.threads);
  const char *text = lm_arena_strndup(arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

void simt_plan_prepare(lm_plan *plan, lm_arena *arena) {
  for (int i = 0; i < plan->n_kernels; i++) plan->kernels[i].source = wrapped(plan, i, arena);
}

lm_plan_target simt_target_of(lm_module *m, const char *arch) {
  lm_plan_target t = lm_cuda_target(m, arch);
  t.prelude = lm_cuda_prelude_simt_text(m->arena);
  return t;
}
lm_plan_target simt_target(lm_module *m) { return simt_target_of(m, NULL); }
