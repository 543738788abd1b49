// simt.h - runs generated CUDA kernels on a host: each thread of a block is a fiber, and what the
// hardware leaves undefined is reported. Kernels are compiled with the prelude simt.h, which calls
// what simt.c defines.
//
// Found: accesses to shared memory out of bounds, of what nothing wrote, or of what another thread
// wrote or read without a barrier in between, of whatever kind; tensor cores that read what was
// written without a proxy fence, or matrices that leave their pattern; boxes of the copy engine
// over what was, or that bring other bytes than their phase expects; barriers, phases and shuffles
// that not all of their threads reach; vectors at odd addresses. What a kernel computes under every
// schedule must be the same bits.
//
// One thread drives this; it keeps its state in one place of the process.
#ifndef LM_TESTS_CUDA_SIMT_H
#define LM_TESTS_CUDA_SIMT_H
#include "compiler/plan/planner.h"

typedef enum {
  SIMT_FORWARD,
  SIMT_BACKWARD,
  SIMT_SHUFFLED,
  SIMT_SCHEDULES
} simt_schedule;

void simt_schedule_set(simt_schedule s);
// Runs a grid of blocks; `call` runs the kernel for the thread that is current.
void simt_run(void (*call)(void *args), void *args, int64_t blocks, int threads);
// What was found since the last call: NULL if nothing. The caller frees it.
char *simt_report_take(void);
int64_t simt_kernels_run(void);

// Makes the kernels of a plan for CUDA into ones that lm_exec runs with one thread, each launching
// itself under the shim.
void simt_plan_prepare(lm_plan *plan, lm_arena *arena);
lm_plan_target simt_target(lm_module *m);
lm_plan_target simt_target_of(lm_module *m, const char *arch,
                              bool tf32); // with the kernels of that architecture
// A tensor map for kernels under the shim, as the driver makes one; NULL, or which of its rules is
// not met.
const char *simt_map_make(void *out, int type, int rank, const void *base,
                          const unsigned long long *size, const unsigned long long *stride,
                          const unsigned *box, const unsigned *step, int interleave, int swizzle);
// Where in shared memory a descriptor of wgmma has an element; text_line: for what is found wrong.
int64_t simt_matrix_place(uint64_t at, int line, int k, bool turned, int text_line);
#endif
