// simt_state.h - state that the files of the shim share: the running block, its threads as fibers,
// and shared memory with its shadow.
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
  STACK_STEP = STACK + 4096 + 5 * 64, // from stack to stack: the tops lie in different cache sets
  DECLARED = 48 << 10, // bytes of shared memory for arrays that kernels declare; the pool follows
  SHARED = DECLARED + (228 << 10),
  ARRAYS = 32,
  GRAIN = 2,
  REPORTS = 20,
  COPIES = 256,
  READERS = 4,
  BARRIERS = 40,
  GROUP = 128,
  WGMMAS = 64,
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
  MMA_F16,
  MMA_TF32,
  MATRICES,
  MATRICES_TRANSPOSED
} warp_kind;

// An issued wgmma: registers of a are read at issue, all other operands when it executes.
typedef struct wgmma {
  float *d;
  int n, transposed; // 1: b, 2: both
  bool add, a_shared;
  uint32_t a[4];
  uint64_t a_at, b_at;
  int group, line;
} wgmma;

typedef struct copy {
  int64_t to;
  const void *from;
  bool valid;
  int group;
} copy;

typedef struct fiber {
  context context;
  bool begun; // has called lm_grid_begin
  int line;   // the line at which it waits
  warp_kind kind;
  uint32_t mask; // of the exchange that it waits for
  uint64_t value;
  int32_t from;
  // `clock` counts releases; writes up to `fenced` are visible to tensor cores and TMA.
  uint32_t clock, fenced;
  int phase_barrier;
  uint32_t parity; // of the phase that it waits for
  wgmma *wgmmas;   // WGMMAS of them
  int n_wgmmas, wgmma_group, wgmmas_left;
  float *d;
  uint32_t *r;
  const uint32_t *a, *b; // operands of a tensor-core operation
  int64_t offset;        // of a matrix row in shared memory
  copy *copies;          // COPIES of them
  // Copies that are not yet waited for; the group that is being filled.
  int n_copies, group;
} fiber;

// The last thread that accessed two bytes, and its clock at that time. An access is ordered after
// another if its thread knows that time, through barriers of the block or of warps and through
// phases of mbarriers (vector clocks). Only the first few readers are recorded, and of the threads
// that have added since the last write, which need no order among each other.
typedef struct touch {
  int16_t thread;
  uint32_t clock;
} touch;
// `coming`: a copy in flight will write it. `old`: its bytes are of an array that another one has
// replaced.
typedef struct shadow {
  touch write, read[READERS], add[READERS];
  uint8_t readers, adders;
  bool coming, old;
} shadow;
typedef enum {
  ACCESS_READ, // the numbers that kernels pass
  ACCESS_WRITE,
  ACCESS_ADD
} access_kind;

// Boxes that count into mbarrier k are written by party ENGINE + k, whose clock is the number of
// the phase that they complete.
typedef struct phase_barrier {
  int64_t offset;
  int count, missing;
  int64_t bytes;
  uint32_t phase;
  touch made;
} phase_barrier;
// A box that was requested and has not arrived.
typedef struct box {
  uint64_t map[16];
  int64_t to;
  int at[5], barrier, line;
} box;

typedef struct array {
  const char *name;
  int64_t offset, bytes;
} array;

typedef struct simt_state {
  simt_schedule schedule;
  uint64_t random;
  char *stacks;
  fiber fibers[THREADS];
  uint8_t wait[THREADS]; // by thread, a wait_kind; apart from fibers, since the scheduler scans it
  context scheduler;
  int threads, current;
  int64_t block, blocks;
  // What kernels have taken from a queue: in this launch all blocks, and this block.
  const uint32_t *queue;
  int64_t taken;
  int32_t takes;
  bool running; // a kernel, and not the host program around it
  void (*call)(void *args);
  void *args;
  // By party: the clock that the last barrier of the block made known to all threads.
  uint32_t base[PARTIES];
  uint32_t (*known)[PARTIES]; // by thread: the clocks that it has learned since
  phase_barrier barriers[BARRIERS];
  int n_barriers;
  box boxes[BOXES];
  int n_boxes;
  // Clocks contributed by arriving threads, and passed to waiting threads.
  uint32_t gathered[BARRIERS][PARTIES], published[BARRIERS][PARTIES];
  char *shared;
  shadow *shadows;
  array arrays[ARRAYS];
  int n_arrays;
  int64_t declared; // bytes of declared arrays
  lm_buf report;
  int n_reports;
  int64_t kernels;
} simt_state;
extern simt_state simt;

// ---- simt.c
void simt_report_add(int line, const char *fmt, ...) LM_PRINTF(2, 3);
void simt_wait_for(wait_kind wait, int line);
uint64_t simt_exchange(warp_kind kind, uint32_t mask, uint64_t x, int32_t from, int line);
// NULL if no array contains the offset.
const array *simt_array_at(int64_t at);
// An access by the current thread.
void simt_grain_check(shadow *s, access_kind kind, const array *a, int64_t byte, int line);
// Checks the access; returns its offset in shared memory.
int64_t simt_access_check(const void *base, int64_t offset, int64_t bytes, access_kind kind,
                          int line);

uint32_t simt_random(void);
// Adds what `published` knows of the parties of this launch to `known`.
void simt_clocks_learn(uint32_t *known, const uint32_t *published);
// True if the current thread knows of the access.
bool simt_ordered(const touch *before);

// ---- simt_global.c: accesses to global memory
void simt_global_begin(void); // of a launch
bool simt_global_is_early(void);
void simt_global_touch(const void *p, size_t bytes, bool write, const void *code);

// ---- simt_async.c, simt_copy.c: called if no thread can continue, or if all lanes of a warp have
// arrived
void simt_mma_complete(int warp, bool f16);
void simt_mma_tf32_complete(int warp);
void simt_matrices_complete(int warp, bool transposed);
bool simt_group_ready(int first);
void simt_group_complete(int first);
bool simt_phase_passed(const fiber *f);
void simt_phase_share_clocks(int thread);
// Delivers one box in flight; false if there is none.
bool simt_box_deliver(void);
#endif
