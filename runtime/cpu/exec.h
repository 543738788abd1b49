// exec.h - runs plans on the CPU: compiles and loads kernels, owns the arenas, executes functions.
//
// The system's C compiler compiles missing kernels in one batch per core; they are cached by
// content (base/cache.h) and loaded with dlopen. Threads: an executor is used by one thread at a
// time and distributes its steps over a team of `threads` threads (base/team.h). Results do not
// depend on the number of threads.
#ifndef LM_CPU_EXEC_H
#define LM_CPU_EXEC_H
#include "runtime/hal/exec.h"

extern const lm_runtime lm_cpu_runtime;
lm_status lm_cpu_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out);
#endif
