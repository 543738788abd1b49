// exec.h - runs plans on the CPU: compiles and loads kernels, owns the arenas, executes functions.
//
// Kernels are compiled by the system's C compiler in one batch a core, cached by content under
// ${LMC_CACHE:-${XDG_CACHE_HOME:-~/.cache}/lmc}, loaded with dlopen. Threads: one lm_exec is driven
// by one thread; inside, steps are spread over a team of `threads` threads (base/team.h). Results
// do not depend on their number.
#ifndef LM_CPU_EXEC_H
#define LM_CPU_EXEC_H
#include "runtime/hal/exec.h"

// The plan must outlive the exec. Allocates every arena (LM_ENV status naming the sizes if that
// fails), zeroed.
lm_status lm_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out);
// Bytes that it takes beside the arenas: the scratch of products, for each thread.
int64_t lm_exec_workspace(const lm_plan *plan, const lm_exec_options *o);
#endif
