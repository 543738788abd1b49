// simt.c - see simt.h: fibers and their schedule, barriers and exchanges, and shared memory with its shadow.
#include "tests/cuda/simt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "codegen/cuda/cuda.h"

enum { THREADS = 1024, WARP = 32, STACK = 256 << 10, SHARED = 228 << 10, ARRAYS = 32, GRAIN = 2, REPORTS = 20,
       COPIES = 256 };

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

typedef enum { READY, AT_BARRIER, AT_WARP, DONE } wait_kind;
typedef enum { SYNC, EXCHANGE, VOTE, MMA, MATRICES, MATRICES_TURNED } warp_kind;

typedef struct copy { int64_t to; const void *from; bool valid; int group; } copy;

typedef struct fiber {
  context context;
  wait_kind wait;
  int line;                            // where it waits
  warp_kind kind;
  uint32_t mates;                      // of the exchange it waits for
  uint64_t value; int32_t from;
  uint32_t epoch, synced;              // warp barriers passed; the lanes that the last one was with
  float *d; uint32_t *r; const uint32_t *a, *b;   // operands of a tensor-core operation
  int64_t place;                       // of a matrix row in shared memory
  copy copies[COPIES]; int n_copies, group;       // not yet waited for; the group that is being filled
} fiber;

// Who touched two bytes last. An access is ordered after another if a block barrier lies between, or a warp barrier of
// both threads.
typedef struct touch { int16_t thread; uint32_t block_epoch, warp_epoch; } touch;
typedef struct shadow { touch write, read; bool many, coming; } shadow;   // coming: by a copy under way

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
  uint32_t epoch;                      // block barriers passed
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
  sim.epoch++;
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
  if (kind == MATRICES || kind == MATRICES_TURNED) matrices_complete(warp, kind == MATRICES_TURNED);
  for (int i = 0; i < WARP; i++) {
    if (!(mates >> i & 1)) continue;
    fiber *f = &sim.fibers[warp + i];
    if (f->line != sim.fibers[first].line) complain(f->line, "meets lanes that wait at line %d", sim.fibers[first].line);
    if (f->kind == EXCHANGE && !(f->from >= 0 && f->from < WARP && mates >> f->from & 1)) complain(f->line, "shuffle from lane %d, which takes no part", f->from);
    else if (f->kind == EXCHANGE) f->value = values[f->from];
    else if (f->kind == VOTE) f->value = votes;
    if (f->kind == SYNC) { f->epoch++; f->synced = mates; }
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

static bool exchanges_complete(void) {
  bool any = false;
  for (int i = 0; i < sim.threads; i++)
    if (sim.fibers[i].wait == AT_WARP && exchange_ready(i)) { exchange_complete(i); any = true; }
  return any;
}

// False when nobody can go on.
static bool unblock(void) {
  int waiting = 0, at_barrier = 0, line = 0;
  if (exchanges_complete()) return true;
  for (int i = 0; i < sim.threads; i++) {
    waiting += sim.fibers[i].wait == AT_WARP;
    at_barrier += sim.fibers[i].wait == AT_BARRIER;
    if (sim.fibers[i].wait == AT_WARP) { line = sim.fibers[i].line; sim.current = i; }
  }
  if (waiting) { complain(line, "waits for lanes that never come"); return false; }
  if (at_barrier) barrier_release();
  return at_barrier > 0;
}

static void block_run(void) {
  sim.epoch = 1;
  sim.n_arrays = 0;
  sim.shared_bytes = 0;
  for (int i = 0; i < sim.threads; i++) {
    fiber *f = &sim.fibers[i];
    f->wait = READY;
    f->epoch = f->synced = 0;
    f->n_copies = f->group = 0;
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

API void *lm_simt_shared(const char *name, int64_t bytes) {
  for (int i = 0; i < sim.n_arrays; i++)
    if (!strcmp(sim.arrays[i].name, name)) return sim.shared + sim.arrays[i].offset;
  int64_t at = (sim.shared_bytes + 15) / 16 * 16;
  if (sim.n_arrays == ARRAYS || at + bytes > SHARED) LM_BUG("%s: too much shared memory", name);
  sim.arrays[sim.n_arrays++] = (array){name, at, bytes};
  sim.shared_bytes = at + bytes;
  for (int64_t i = at / GRAIN; i < (at + bytes + GRAIN - 1) / GRAIN; i++) sim.shadows[i] = (shadow){.write.thread = -1, .read.thread = -1};
  return sim.shared + at;
}

static bool ordered(const touch *before) {
  const fiber *f = &sim.fibers[sim.current];
  int t = before->thread;
  if (t < 0 || t == sim.current || before->block_epoch < sim.epoch) return true;
  return t / WARP == sim.current / WARP && f->synced >> (t % WARP) & 1 && before->warp_epoch < f->epoch;
}

static void grain_check(shadow *s, bool write, const array *a, int64_t byte, int line) {
  touch now = {(int16_t)sim.current, sim.epoch, sim.fibers[sim.current].epoch};
  if (s->coming) complain(line, "%s %s at byte %lld, where a copy is under way", write ? "writes" : "reads", a->name, (long long)byte);
  if (!write && s->write.thread < 0) complain(line, "reads %s at byte %lld, which nothing wrote", a->name, (long long)byte);
  if (!ordered(&s->write)) complain(line, "%s %s at byte %lld, which thread %d wrote with no barrier since", write ? "writes" : "reads", a->name, (long long)byte, s->write.thread);
  if (write && (!ordered(&s->read) || (s->many && s->read.block_epoch == sim.epoch && s->read.warp_epoch >= now.warp_epoch)))
    complain(line, "writes %s at byte %lld, which thread %d read with no barrier since", a->name, (long long)byte, s->read.thread);
  if (write) {
    s->write = now;
    s->read.thread = -1;
    s->many = false;
  } else {
    s->many = s->read.thread >= 0 && s->read.thread != now.thread && s->read.block_epoch == now.block_epoch ? true : s->read.block_epoch == now.block_epoch && s->many;
    s->read = now;
  }
}

// Where in shared memory the access lies, after it was checked.
static int64_t access_check(const void *base, int64_t offset, int64_t bytes, int write, int line) {
  int64_t at = (const char *)base - sim.shared;
  const array *a = NULL;
  for (int i = 0; i < sim.n_arrays; i++)
    if (at >= sim.arrays[i].offset && at < sim.arrays[i].offset + sim.arrays[i].bytes) a = &sim.arrays[i];
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
      s->write = (touch){(int16_t)sim.current, sim.epoch, f->epoch};
    }
  }
  f->n_copies = n;
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

lm_plan_target simt_target(lm_module *m) {
  lm_plan_target t = lm_cuda_target(m);
  t.prelude = lm_cuda_prelude_simt_text(m->arena);
  return t;
}
