// exec.h - runs plans on the CPU: compiles and loads kernels, owns the arenas, executes functions.
//
// Kernels are compiled by the system's C compiler in one batch a core, cached by content under
// ${LMC_CACHE:-${XDG_CACHE_HOME:-~/.cache}/lmc}, loaded with dlopen. Threads: one lm_exec is driven by one thread; inside,
// steps are spread over `threads` OpenMP threads. Results do not depend on their number.
#ifndef LM_CPU_EXEC_H
#define LM_CPU_EXEC_H
#include "runtime/plan/plan.h"

typedef struct lm_exec lm_exec;
typedef struct lm_exec_options {
  int threads;                         // 0: as many as the process may use
  const char *dump_dir;                // non-NULL: also write every kernel's source there
  const char *load_dir;                // non-NULL: a file NAME.c there replaces the source of kernel NAME
  bool profile;                        // keep the time of each step
} lm_exec_options;

// The plan must outlive the exec. Allocates every arena (LM_ENV status naming the sizes if that fails), zeroed.
lm_status lm_exec_create(const lm_plan *plan, const lm_exec_options *o, lm_exec **out);
void lm_exec_destroy(lm_exec *e);
// Bytes that an exec with so many threads (0: as many as the process may use) takes beside the plan's arenas.
int64_t lm_cpu_workspace(int threads);
// Runs a function once with the given run-time extents (n_extents of the plan; may be NULL if it has none).
lm_status lm_exec_run(lm_exec *e, const lm_plan_func *f, const int64_t *extents);
void *lm_exec_arena(lm_exec *e, lm_arena_id id);
void *lm_exec_port(lm_exec *e, const lm_plan_port *p);        // address of an argument or result
int lm_exec_threads(const lm_exec *e);
int lm_exec_kernels_compiled(const lm_exec *e);               // by this process; 0 when all came from the cache
// Seconds spent in each step of f since the last reset; NULL unless profiling.
const double *lm_exec_profile(const lm_exec *e, const lm_plan_func *f);
void lm_exec_profile_reset(lm_exec *e);
#endif
