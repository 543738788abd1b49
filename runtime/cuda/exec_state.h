// exec_state.h - the state of the CUDA executor. Private to the files exec*.c.
#ifndef LM_RUNTIME_CUDA_EXEC_STATE_H
#define LM_RUNTIME_CUDA_EXEC_STATE_H
#include "runtime/cuda/counts.h"
#include "runtime/cuda/exec.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/lanes.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/nccl.h"
#include "runtime/plan/walk.h"

typedef struct func_state {
  // Can be recorded: a run-time extent changes neither a launch nor what the host passes to it.
  // Kernels read extents in the device's memory.
  bool fixed;
  bool exchanges; // begins a collective between ranks
  bool extents;   // a kernel reads an extent
  bool may_fault; // has a move to a position that is read at run time and checked on the device
  bool has_run;
  bool *apart; // by step: cannot be recorded (exec_apart.c); NULL: all can
} func_state;

// A run of a function, with the copies of its results; or, `adds`, the sum of its results and the
// totals.
typedef struct cuda_work {
  const lm_plan_func *f;
  bool adds, first; // first: lm_exec.first, or the totals are zeroed before
  // Of a run whose argument `scale` is computed before; NULL: none.
  const lm_plan_port *norm, *scale;
  int sum, weight;
} cuda_work;
enum {
  CUDA_DEFERRED = 16
};
// Work that the device starts together, in order. It is recorded when each of its functions has
// run: as one graph, or as the parts between the steps that cannot be recorded.
typedef struct cuda_graph {
  cuda_work work[CUDA_DEFERRED];
  int n;
  bool apart;   // it has such steps
  void **parts; // CUgraphExec
  uint32_t n_parts, cap_parts;
} cuda_graph;
// What happens to steps that are enqueued.
typedef struct cuda_recording {
  enum {
    CUDA_ENQUEUES, // the streams receive them
    CUDA_RECORDS,  // parts of `graph` receive them
    CUDA_REPLAYS   // parts of `graph` have them
  } mode;
  cuda_graph *graph;
  bool within;   // a part, which is being recorded or has been launched
  uint32_t part; // that is launched next
} cuda_recording;

// For profiles: an event that is recorded when a step is done.
typedef struct mark {
  void *event;
  const lm_plan_step *step;
} mark;

typedef struct cuda_exec {
  lm_exec hal;
  const lm_plan *plan;
  int threads, compiled;
  bool sync, graphs, check;
  bool graphs_of_ranks; // all ranks record functions with collectives
  lm_cuda_driver d;
  lm_cuda_device device;
  void *context, *stream;
  void **modules;
  uint32_t n_modules;
  void **functions;   // of the plan's kernels, then of the builtins
  bool *early;        // by kernel of the plan: it may begin before the kernel in front has ended
  bool behind_kernel; // the last operation of the stream is a kernel of the plan
  lm_cuda_builtins builtins;
  lm_cuda_gemms *gemms;
  lm_cuda_memory memory;
  lm_cuda_lanes lanes;
  lm_comm *comm; // optional: the ranks of the run
  lm_nccl *nccl; // NULL: not connected with other ranks
  lm_cuda_counts counts;
  lm_plan_walk walk;
  func_state *funcs;
  bool deferring;
  cuda_recording recording;
  cuda_graph deferred; // not yet started
  cuda_graph *seen;    // that were recorded
  uint32_t n_seen, cap_seen;
  const lm_plan_func *func;          // the current one
  const lm_plan_func *first_pending; // the first after the last synchronization; NULL: none
  const lm_plan_func *may_fault;     // the last one that ran with func_state.may_fault
  lm_cuda_address *pointers;         // of the current step
  void **params;
  int32_t *fault;             // pinned copy of the builtins' `fault`
  lm_cuda_address extents;    // the run-time extents, int64
  int64_t *extents_sent;      // their values there, after all work of the stream
  lm_cuda_address *extent_at; // the address of each
  lm_cuda_address totals;     // LM_TOTALS_MAX float64s, then the rule
  lm_cuda_rule rule_sent;     // its value there, after all work of the stream
  double *totals_read;        // pinned copy of them
  lm_cuda_address drawn;      // memory for drawing, first the last token; 0 before the first use
  size_t drawn_bytes;         // of it
  int32_t *drawn_read;        // pinned copy of it
  const lm_scale_rule *rule;  // for the next run; NULL: none
  lm_timeline *timeline;
  mark *marks;
  uint32_t n_marks, cap_marks, n_events;
  lm_arena *arena;
  lm_status failed; // the first failure of the device; nothing runs after it
} cuda_exec;

static inline lm_cuda_address cuda_exec_rule(const cuda_exec *e) {
  return e->totals + LM_TOTALS_MAX * sizeof(double);
}

// ---- exec_run.c
// A copy of the first failure of the device; NULL if there is none.
lm_status cuda_exec_failure_copy(const cuda_exec *e);
// Records the first failure and returns a copy of it; takes s.
lm_status cuda_exec_fail(cuda_exec *e, lm_status s);
// Waits until the stream is done.
lm_status cuda_exec_synchronize(cuda_exec *e);
lm_status cuda_exec_run(lm_exec *hal, const lm_plan_func *f, const int64_t *extents);

// ---- exec_work.c

// Waits for the event; NULL: for the stream.
lm_status cuda_exec_wait(cuda_exec *e, void *event, int *result);
// Sets e->pointers to the addresses of the step's buffers.
void cuda_exec_pointers_find(cuda_exec *e, const lm_plan_step *s);
// Enqueues work, or what of it is not recorded.
lm_status cuda_exec_work(cuda_exec *e, const cuda_work *w, const int64_t *extents);

// ---- exec_part.c

// Before an operation of the work that is enqueued. apart: it cannot be recorded. *enqueues: it is
// not in a graph that has been launched.
lm_status cuda_exec_part(cuda_exec *e, bool apart, bool *enqueues);
// Ends the recording and launches the part. failed: why nothing is launched; returned.
lm_status cuda_exec_part_end(cuda_exec *e, lm_status failed);
lm_status cuda_exec_part_launch(cuda_exec *e, void *part);

// ---- exec_graph.c

// True if a run of f cannot be deferred behind the deferred work.
bool cuda_exec_conflicts(const cuda_exec *e, const lm_plan_func *f);
// Adds work to the deferred; starts it if nothing is to be deferred.
lm_status cuda_exec_add(cuda_exec *e, const cuda_work *w);
// Starts the deferred work.
lm_status cuda_exec_flush(cuda_exec *e);
void cuda_exec_graphs_free(cuda_exec *e);

// ---- exec_apart.c

// Finds func_state.exchanges and func_state.apart.
void cuda_exec_apart_find(cuda_exec *e, const lm_plan_func *f, func_state *x);
static inline bool cuda_exec_is_apart(const cuda_exec *e, const lm_plan_step *s) {
  const func_state *x = &e->funcs[e->func - e->plan->funcs];
  return x->apart && s->kind != LM_STEP_LOOP && x->apart[s - e->func->steps];
}
#endif
