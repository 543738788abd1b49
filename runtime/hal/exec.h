// exec.h - what runs a plan: one interface, a table of functions for each backend.
//
// A backend owns the arenas. Its memory may be a device's: what these functions hand out are host
// addresses, which stay valid as long as the exec, and the exec moves the bytes when it must. Only
// what is said to be clean is not moved back.
//
//   lm_exec_create (runtime/cpu/exec.h), lm_cuda_exec_create (runtime/cuda/exec.h)
//   lm_exec_port(e, in): write the argument     lm_exec_run(e, f, extents)     lm_exec_port(e,
//   out): read the result
#ifndef LM_HAL_EXEC_H
#define LM_HAL_EXEC_H
#include "runtime/base/timeline.h"
#include "runtime/plan/plan.h"

enum {
  LM_TOTALS_MAX = 136
};

typedef struct lm_exec lm_exec;
struct lm_scale_rule;
typedef struct lm_exec_options {
  int threads;          // of the host; 0: as many as the process may use
  const char *dump_dir; // non-NULL: also write every kernel's source there
  const char
      *load_dir; // non-NULL: a file there named like a dumped one replaces that kernel's source
  struct lm_cuda_choices
      *choices; // of products on a GPU (runtime/cuda/gemm.h); outlives the exec. NULL: as they come
  bool tf32;    // a device may round the operands of products of f32 to 10 bits of mantissa
  lm_timeline *timeline; // non-NULL: gets a span for every function and every step that is run
  const struct lm_gemm_tilings
      *cuts; // of products on the CPU (runtime/cpu/gemm.h); outlives the exec. NULL: as they come
} lm_exec_options;

typedef struct lm_exec_ops {
  void (*destroy)(lm_exec *e);
  lm_status (*run)(lm_exec *e, const lm_plan_func *f, const int64_t *extents);
  lm_status (*wait)(lm_exec *e); // NULL: nothing is at work when `run` returns
  void *(*arena)(lm_exec *e, lm_arena_id id, bool change);
  void (*arena_clear)(lm_exec *e, lm_arena_id id);
  void *(*port)(lm_exec *e, const lm_plan_port *p);
  int (*threads)(const lm_exec *e);
  int (*kernels_compiled)(const lm_exec *e);
  void (*range)(lm_exec *e, const char *name); // NULL: nobody is told
  // tally.h; NULL: by the host. The rule outlives the next run; `totals_read` waits and fills in
  // e->totals.
  lm_status (*totals_add)(lm_exec *e, const lm_plan_func *f, bool first);
  lm_status (*totals_scale)(lm_exec *e, const struct lm_scale_rule *r);
  lm_status (*totals_read)(lm_exec *e);
} lm_exec_ops;

struct lm_exec { // first member of each backend's own
  const lm_exec_ops *ops;
  bool copied; // the copies that functions compute with are those of the parameters as they stand
  double totals[LM_TOTALS_MAX]; // of a step (tally.h)
};

static inline void lm_exec_destroy(lm_exec *e) {
  if (e)
    e->ops->destroy(e);
}
// Runs a function once with the given run-time extents (n_extents of the plan; may be NULL if it
// has none). A device may still be at work when this returns; whoever looks at a port or an arena
// waits.
static inline lm_status lm_exec_run(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  if (f->copies && !e->copied)
    LM_TRY(e->ops->run(e, f->copies, extents));
  e->copied = (e->copied || f->copies) && !f->changes_params;
  return e->ops->run(e, f, extents);
}
// Waits for all that was run. What went wrong on a device is told here or by the next run, and by
// all that follow; what ports and arenas show then means nothing, so nothing may be kept of it.
static inline lm_status lm_exec_wait(lm_exec *e) {
  return e->ops->wait ? e->ops->wait(e) : NULL;
}
// Both: for whoever reads the results next.
static inline lm_status lm_exec_call(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  LM_TRY(lm_exec_run(e, f, extents));
  return lm_exec_wait(e);
}
// All of an arena as it stands, to read and change until the next run; `peek`: to read only.
static inline void *lm_exec_arena(lm_exec *e, lm_arena_id id) {
  e->copied &= id != LM_ARENA_PARAM;
  return e->ops->arena(e, id, true);
}
static inline const void *lm_exec_arena_read(lm_exec *e, lm_arena_id id) {
  return e->ops->arena(e, id, false);
}
static inline void lm_exec_arena_clear(lm_exec *e, lm_arena_id id) { // to zeros
  e->copied &= id != LM_ARENA_PARAM;
  e->ops->arena_clear(e, id);
}
// An argument, to write before a run of its function (which has taken it when it returns), or a
// result, to read after one.
static inline void *lm_exec_port(lm_exec *e, const lm_plan_port *p) {
  return e->ops->port(e, p);
}
// For profilers of a device: from here a range of that name, which need not last; NULL: the
// innermost one ends.
static inline void lm_exec_range(lm_exec *e, const char *name) {
  if (e->ops->range)
    e->ops->range(e, name);
}
static inline int lm_exec_threads(const lm_exec *e) {
  return e->ops->threads(e);
}
static inline int lm_exec_kernels_compiled(const lm_exec *e) {
  return e->ops->kernels_compiled(e);
} // 0: all came from the cache
#endif
