// simt_state.h - what the parts of the shim share: the block that runs, its threads as fibers, and
// shared memory with its shadow.
#ifndef LM_TESTS_CUDA_SIMT_STATE_H
#define LM_TESTS_CUDA_SIMT_STATE_H
#include "tests/cuda/simt.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

enum {
  THREADS = 1024,
  WARP = 32,
  STACK = 256 << 10,
  SHARED = 228 << 10,
  ARRAYS = 32,
  GRAIN = 2,
  REPORTS = 20,
  COPIES = 256,
  READERS = 4,
  BARRIERS = 32,
  GROUP = 128,
  PRODUCTS = 64,
  BOXES = 64,
  ENGINE = THREADS,
  PARTIES = THREADS + BARRIERS
};

#ifdef __x86_64__
typedef struct machine {
  void *sp;
} machine;
#else
typedef struct machine {
  ucontext_t u;
} machine;
#endif
typedef struct context {
  machine machine;
  void *fake;
  const void *stack;
  size_t bytes;
} context;

typedef enum {
  READY,
  AT_BARRIER,
  AT_WARP,
  AT_GROUP,
  AT_PHASE,
  DONE
} wait_kind;
typedef enum {
  SYNC,
  EXCHANGE,
  VOTE,
  MMA,
  MMA_TF32,
  MATRICES,
  MATRICES_TURNED
} warp_kind;

// A wgmma that was issued: registers of a are taken then, all else is read when it happens.
typedef struct product {
  float *d;
  int n;
  bool add, a_shared, b_turned;
  uint32_t a[4];
  uint64_t a_at, b_at;
  int group, line;
} product;

typedef struct copy {
  int64_t to;
  const void *from;
  bool valid;
  int group;
} copy;

typedef struct fiber {
  context context;
  wait_kind wait;
  int line; // where it waits
  warp_kind kind;
  uint32_t mates; // of the exchange it waits for
  uint64_t value;
  int32_t from;
  uint32_t clock,
      fenced; // counts releases; writes up to `fenced` are seen by the tensor cores' own path
  int phase_barrier;
  uint32_t parity; // of the phase that it waits for
  product products[PRODUCTS];
  int n_products, products_group, products_left;
  float *d;
  uint32_t *r;
  const uint32_t *a, *b; // operands of a tensor-core operation
  int64_t place;         // of a matrix row in shared memory
  copy copies[COPIES];
  int n_copies, group; // not yet waited for; the group that is being filled
} fiber;

// Who touched two bytes last, and when by its own clock. An access is ordered after another if its
// thread knows of that time, through barriers of the block or of warps and through phases of
// mbarriers: vector clocks. Of readers the first few are kept.
typedef struct touch {
  int16_t thread;
  uint32_t clock;
} touch;
typedef struct shadow {
  touch write, read[READERS];
  uint8_t readers;
  bool coming;
} shadow; // coming: by a copy under way

// Boxes that count into mbarrier k are written by party ENGINE + k, whose clock is the number of
// the phase that they end.
typedef struct phase_barrier {
  int64_t place;
  int count, missing;
  int64_t bytes;
  uint32_t phase;
  touch made;
} phase_barrier;
typedef struct box {
  uint64_t map[16];
  int64_t to;
  int at[5], barrier, line;
} box; // asked for and not yet there

typedef struct array {
  const char *name;
  int64_t offset, bytes;
} array;

typedef struct simt_state {
  simt_schedule schedule;
  uint64_t random;
  char *stacks;
  fiber fibers[THREADS];
  context scheduler;
  int threads, current;
  int64_t block, blocks;
  void (*call)(void *args);
  void *args;
  uint32_t base[PARTIES];     // what the last barrier of the block told every thread of each
  uint32_t (*known)[PARTIES]; // by thread: what it has learned since
  phase_barrier barriers[BARRIERS];
  int n_barriers;
  box boxes[BOXES];
  int n_boxes;
  uint32_t gathered[BARRIERS][PARTIES],
      told[BARRIERS][PARTIES]; // by those who arrived; to those who wait
  char *shared;
  shadow *shadows;
  array arrays[ARRAYS];
  int n_arrays;
  int64_t shared_bytes;
  lm_buf report;
  int n_reports;
  int64_t kernels;
} simt_state;
extern simt_state simt;

// ---- simt.c
void simt_complain(int line, const char *fmt, ...) LM_PRINTF(2, 3);
void simt_wait_for(wait_kind wait, int line);
uint64_t simt_exchange(warp_kind kind, uint32_t mates, uint64_t x, int32_t from, int line);
const array *simt_array_at(int64_t at); // NULL: none lies there
void simt_grain_check(shadow *s, bool write, const array *a, int64_t byte,
                      int line); // by the current thread
int64_t simt_access_check(const void *base, int64_t offset, int64_t bytes, int write,
                          int line); // where it lies, once checked

uint32_t simt_random(void);

// ---- simt_async.c, simt_copy.c: called when nothing else can go on, or when all lanes of a warp
// are there
void simt_mma_complete(int warp);
void simt_mma_tf32_complete(int warp);
void simt_matrices_complete(int warp, bool turned);
bool simt_group_ready(int first);
void simt_group_complete(int first);
bool simt_phase_passed(const fiber *f);
void simt_phase_tell(int thread);
bool simt_box_come(void); // one that is under way, if any
#endif
