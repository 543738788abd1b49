// simt.h - the SIMT emulator (the shim): runs generated CUDA kernels on a host: each thread of a
// block is a fiber, and behaviour that the hardware leaves undefined is reported. Kernels are
// compiled with the prelude simt.h, which calls the functions of simt.c.
//
// Reported: accesses to shared memory that are out of bounds, that read unwritten bytes, or that
// are not ordered after another thread's access by a barrier (except atomic additions, among each
// other); accesses to global memory of which
// one is a write and that no barrier orders, or that are in two blocks of a launch (for kernels
// that are compiled as simt_compiler_set says); tensor cores that read data written without a proxy
// fence, or matrices that leave their pattern; boxes of TMA over such data, or with other byte
// counts than their phase expects; barriers, phases and shuffles that not all of their threads
// reach; misaligned vectors; accesses to global memory before lm_grid_begin. The results of a
// kernel must be the same bits under every schedule.
//
// One thread drives the shim; the state is one variable of the process.
#ifndef LM_TESTS_CUDA_SIMT_H
#define LM_TESTS_CUDA_SIMT_H
#include "compiler/plan/planner.h"

typedef enum {
  SIMT_FORWARD,
  SIMT_BACKWARD,
  SIMT_SHUFFLED,
  SIMT_SCHEDULES
} simt_schedule;

// The arguments of a launch that are addresses, for reports. early: the kernel may begin before the
// one in front of it has ended, so each thread must call lm_grid_begin, and before that touch no
// global memory.
typedef struct simt_buffers {
  const char *kernel;
  const char *const *names;
  char *const *at;
  int n;
  bool early;
} simt_buffers;
// Sets the arguments of the next launches; `b` must outlive them.
void simt_buffers_set(const simt_buffers *b);
const char *simt_kernel_name(void); // of these arguments; NULL: none are set
// Receives each access to global memory of the next launches; NULL: none does.
typedef void simt_watch(const void *at, size_t bytes, bool write);
void simt_watch_set(simt_watch *fn);
// Makes lm_exec compile kernels so that they announce accesses to memory.
void simt_compiler_set(void);
// The arguments for that, after the compiler's name.
#define SIMT_COMPILER_FLAGS "-fsanitize=thread -nodefaultlibs -g1"

void simt_schedule_set(simt_schedule s);
// Runs a grid of blocks; `call` runs the kernel for the current thread.
void simt_run(void (*call)(void *args), void *args, int64_t blocks, int threads);
// The reports since the last call, NULL if there are none. The caller frees it.
char *simt_report_take(void);
// The fault of the last launches that append to a cache: whether there is one, and the position.
const int32_t *simt_fault(void);
int64_t simt_kernels_run(void);
// Whether the kernels of the next launches that may add to their results do; at first they do.
void simt_adds_set(bool adds);

// Rewrites the CUDA kernels of a plan so that lm_exec runs them with one thread; each launches
// itself under the shim.
void simt_plan_prepare(lm_plan *plan, lm_arena *arena);
lm_plan_options simt_options(void);
// With the kernels of that architecture.
lm_plan_options simt_options_of(const char *arch, bool tf32);
// Makes a tensor map for kernels under the shim, as the driver does; returns NULL, or the rule that
// is violated.
const char *simt_map_make(void *out, int type, int rank, const void *base,
                          const unsigned long long *size, const unsigned long long *stride,
                          const unsigned *box, const unsigned *step, int interleave, int swizzle);
// The offset in shared memory of an element of a wgmma descriptor; text_line is the line for
// reports.
int64_t simt_matrix_offset(uint64_t at, int line, int k, bool transposed, int text_line);
#endif
