// exec.h - an executor runs the functions of a plan. Backends implement it as a table of functions.
//
// A backend owns the arenas, which may be in a device's memory. Arguments and results have host
// addresses, which stay valid as long as the executor exists; the executor copies them between host
// and device. Other memory is read and written in slices (lm_exec_read, lm_exec_write; tensor.h
// for parameters).
//
//   create of an lm_runtime (below)
//   write arguments to lm_exec_port(e, in); lm_exec_run(e, f, extents); read results from
//   lm_exec_port(e, out)
#ifndef LM_HAL_EXEC_H
#define LM_HAL_EXEC_H
#include "runtime/base/timeline.h"
#include "runtime/hal/draw.h"
#include "runtime/plan/plan.h"
#include "target/target.h"

enum {
  LM_TOTALS_MAX = 136
};

typedef struct lm_exec lm_exec;
struct lm_scale_rule;
typedef struct lm_exec_options {
  int threads;          // of the host; 0: as many as the process may use
  const char *dump_dir; // optional: a folder to which the source of every kernel is written
  const char *load_dir; // optional: a folder with replacements for dumped sources, by file name
  // Optional: what the backend measured before, in its own type (lm_runtime); outlives the
  // executor.
  void *tuning;
  bool tf32;             // allow a device to round f32 operands of GEMMs to 10 bits of mantissa
  lm_timeline *timeline; // optional: receives a span for every function and every step that runs
  // The ranks of the plan's mesh, in groups along its axes (lm_comm_groups); NULL: one process,
  // which cannot run functions with collectives. Outlives the executor.
  struct lm_comm *comm;
  // Optional: receives a sentence about a kernel, or a GEMM, that will be slow on this device.
  void (*warning)(void *user, const char *text);
  void *warning_user;
} lm_exec_options;

typedef struct lm_exec_ops {
  void (*destroy)(lm_exec *e);
  lm_status (*run)(lm_exec *e, const lm_plan_func *f, const int64_t *extents);
  lm_status (*wait)(lm_exec *e); // NULL if `run` is synchronous
  lm_status (*read)(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes, void *to);
  lm_status (*write)(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes, const void *from);
  void (*arena_clear)(lm_exec *e, lm_arena_id id);
  void *(*port)(lm_exec *e, const lm_plan_port *p);
  int (*threads)(const lm_exec *e);
  int (*kernels_compiled)(const lm_exec *e);
  lm_status (*connect)(lm_exec *e);            // optional
  void (*range)(lm_exec *e, const char *name); // optional
  void (*defer)(lm_exec *e);                   // optional, with submit
  lm_status (*submit)(lm_exec *e);
  // See totals.h; NULL: the host computes them. The rule must outlive the next run. `totals_read`
  // waits and fills in e->totals, `totals_write` replaces the device's by e->totals.
  lm_status (*totals_add)(lm_exec *e, const lm_plan_func *f, bool first);
  lm_status (*totals_scale)(lm_exec *e, const struct lm_scale_rule *r);
  lm_status (*totals_read)(lm_exec *e);
  lm_status (*totals_write)(lm_exec *e);
  // See lm_exec_draw; NULL: only the host draws tokens.
  lm_status (*draw)(lm_exec *e, const lm_plan_port *p, int64_t row, const lm_draw_rule *r,
                    int32_t *out);
} lm_exec_ops;

// The first member of every backend's executor.
struct lm_exec {
  const lm_exec_ops *ops;
  // What the COPY arena has of the parameters: nothing, all but what lm_plan_func.packs makes, all.
  enum {
    LM_COPIED_NOTHING,
    LM_COPIED_PART,
    LM_COPIED_ALL
  } copied;
  bool first;                   // the current run takes the gradients as zeros
  double totals[LM_TOTALS_MAX]; // of a training step (totals.h)
};

// A backend: lm_cpu_runtime (runtime/cpu/exec.h), lm_cuda_runtime (runtime/cuda/exec.h).
typedef struct lm_runtime {
  // The machine that this process runs on. LM_ENV if there is none of the kind.
  lm_status (*find)(lm_target *out);
  // Measures the peak for a dtype and the bandwidths on `threads` threads (0: all), or does nothing
  // where the figures are known.
  void (*measure)(lm_target *t, int threads, lm_dtype dtype);
  double (*peak)(const lm_target *t, int threads, lm_dtype dtype); // FLOP/s alone; 0: unknown
  // The plan must be compiled for the target and outlive the executor. Allocates every arena,
  // zeroed. LM_ENV with the sizes, about the plan (lm_status_s.subject), if memory does not
  // suffice. o->tuning: lm_gemm_tilings of runtime/cpu/gemm.h, or lm_cuda_choices of
  // runtime/cuda/gemm.h.
  lm_status (*create)(const lm_plan *plan, const lm_target *t, const lm_exec_options *o,
                      lm_exec **out);
  // Bytes that this process could allocate now; 0 if that is not known.
  int64_t (*memory)(const lm_target *t);
  // Bytes that the executor allocates in addition to the arenas.
  int64_t (*workspace)(const lm_plan *plan, const lm_exec_options *o);
} lm_runtime;

static inline void lm_exec_destroy(lm_exec *e) {
  if (e)
    e->ops->destroy(e);
}
// Brings the copies of parameters that f reads up to date.
static inline lm_status lm_exec_copy(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  const lm_plan_func *make = e->copied == LM_COPIED_PART ? f->packs : f->copies;
  if (!f->copies || e->copied == LM_COPIED_ALL)
    return NULL;
  e->copied = LM_COPIED_ALL;
  return make ? e->ops->run(e, make, extents) : NULL;
}
// Runs a function once with the given run-time extents (plan->n_extents of them; may be NULL if
// there are none). A device may still be computing when this returns; access to a port or an arena
// waits for it.
static inline lm_status lm_exec_run(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  LM_TRY(lm_exec_copy(e, f, extents));
  if (f->changes_params)
    e->copied = f->makes_copies ? LM_COPIED_PART : LM_COPIED_NOTHING;
  return e->ops->run(e, f, extents);
}
// The same for the first function of a step that adds to the gradients, which count as zeros.
static inline lm_status lm_exec_run_first(lm_exec *e, const lm_plan_func *f,
                                          const int64_t *extents) {
  if (!f->initializes)
    e->ops->arena_clear(e, LM_ARENA_GRAD);
  e->first = f->initializes;
  lm_status s = lm_exec_run(e, f, extents);
  e->first = false;
  return s;
}
// Later runs and sums of totals may be deferred, so that a device starts them together: until
// lm_exec_submit, a wait, or an access to a result or to an arena. Arguments of a run can be reused
// as always.
static inline void lm_exec_defer(lm_exec *e) {
  if (e->ops->defer)
    e->ops->defer(e);
}
// Starts the deferred runs; later runs start at once.
static inline lm_status lm_exec_submit(lm_exec *e) {
  return e->ops->submit ? e->ops->submit(e) : NULL;
}
// Waits for all previous runs. An error on a device is reported here or by the next run, and by
// every later call. After an error the contents of ports and arenas are undefined and must not be
// saved.
static inline lm_status lm_exec_wait(lm_exec *e) {
  return e->ops->wait ? e->ops->wait(e) : NULL;
}
// Runs and waits.
static inline lm_status lm_exec_call(lm_exec *e, const lm_plan_func *f, const int64_t *extents) {
  LM_TRY(lm_exec_run(e, f, extents));
  return lm_exec_wait(e);
}
// Copies a slice of an arena, which lies within it, from and to the host's memory. Both wait for
// previous runs, whose error they return.
static inline lm_status lm_exec_read(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes,
                                     void *to) {
  return e->ops->read(e, id, offset, bytes, to);
}
static inline lm_status lm_exec_write(lm_exec *e, lm_arena_id id, int64_t offset, int64_t bytes,
                                      const void *from) {
  if (id == LM_ARENA_PARAM || id == LM_ARENA_FIXED)
    e->copied = LM_COPIED_NOTHING;
  return e->ops->write(e, id, offset, bytes, from);
}
static inline void lm_exec_arena_clear(lm_exec *e, lm_arena_id id) { // fills it with zeros
  if (id == LM_ARENA_PARAM || id == LM_ARENA_FIXED)
    e->copied = LM_COPIED_NOTHING;
  e->ops->arena_clear(e, id);
}
// The memory of an argument or a result in the IO arena: of an argument, to be written before its
// function runs and reusable when lm_exec_run returns; or of a result, to be read after its
// function ran.
static inline void *lm_exec_port(lm_exec *e, const lm_plan_port *p) {
  return e->ops->port(e, p);
}
// True if lm_exec_draw draws tokens from this result.
static inline bool lm_exec_draws(const lm_exec *e, const lm_plan_port *p) {
  bool type = p->dtype == LM_F32 || p->dtype == LM_BF16;
  return e->ops->draw && type && p->rank && p->shape[p->rank - 1] <= LM_DRAW_MAX;
}
// Draws a token from a row of logits along the last axis of a result, on the device where the
// result is. Waits for previous runs. *out is -1 if the row has a NaN.
static inline lm_status lm_exec_draw(lm_exec *e, const lm_plan_port *p, int64_t row,
                                     const lm_draw_rule *r, int32_t *out) {
  return e->ops->draw(e, p, row, r, out);
}
// Connects the devices of the ranks. All ranks call it, before a function with collectives runs.
static inline lm_status lm_exec_connect(lm_exec *e) {
  return e->ops->connect ? e->ops->connect(e) : NULL;
}
// Begins a named range in a device's profiler; the name is copied. NULL ends the innermost range.
static inline void lm_exec_range(lm_exec *e, const char *name) {
  if (e->ops->range)
    e->ops->range(e, name);
}
static inline int lm_exec_threads(const lm_exec *e) {
  return e->ops->threads(e);
}
// The number of kernels that were not in the cache.
static inline int lm_exec_kernels_compiled(const lm_exec *e) {
  return e->ops->kernels_compiled(e);
}
#endif
