// exec.h - runs plans on the CPU: compiles and loads kernels, owns the arenas, executes functions.
//
// The system's C compiler compiles missing kernels in one batch per core; they are cached by
// content (base/cache.h) and loaded with dlopen. Threads: an executor is used by one thread at a
// time and distributes its steps over a team of `threads` threads (base/team.h). Results do not
// depend on the number of threads.
#ifndef LM_CPU_EXEC_H
#define LM_CPU_EXEC_H
#include "runtime/hal/exec.h"

// The plan must outlive the executor. Allocates every arena, zeroed. LM_ENV with the sizes if
// memory does not suffice.
lm_status lm_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out);
// Bytes that the executor allocates in addition to the arenas: GEMM workspaces of all threads.
int64_t lm_exec_workspace(const lm_plan *plan, const lm_exec_options *o);
#endif
