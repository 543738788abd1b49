// lanes.h - collectives, and copies between host and device, beside the computation.
//
// A lane is a stream. Those of copies each have a direction: 0 to the device, 1 to the host; GPUs
// have a copy engine for each, so copies of both lanes and kernels overlap. Those of collectives
// are numbered by the plan; lane 0 is the stream of the kernels, whose collectives are in their
// order. The other ones have the highest priority, so that a collective, of few blocks, gets
// multiprocessors as soon as blocks of other kernels end.
//
//   START   main: record `ready`    lane: wait for `ready`, work, record done[handle]
//   WAIT    main: wait for done[handle]
//
// So a lane begins behind the steps before a START. All waits are in the main stream, so a recorded
// graph of a function joins the lanes.
#ifndef LM_CUDA_LANES_H
#define LM_CUDA_LANES_H
#include "runtime/cuda/builtin.h"
#include "runtime/plan/plan.h"

enum {
  LM_CUDA_COPY_LANES = 2
};
typedef struct lm_cuda_lanes {
  const lm_cuda_driver *driver;
  // Streams, of copies and of collectives; NULL: the plan does not use it. lane[0] is main.
  void *main, *copy[LM_CUDA_COPY_LANES], *lane[LM_PLAN_LANES];
  void *ready, **done; // events; done: by handle
  void **of;           // by handle: the stream of the last START
  int n;               // handles
} lm_cuda_lanes;

// Makes the streams and events that the plan needs. Also after an error, lm_cuda_lanes_close must
// be called. The lanes are idle then.
lm_status lm_cuda_lanes_open(lm_cuda_lanes *l, const lm_plan *plan, const lm_cuda_driver *d,
                             void *main);
void lm_cuda_lanes_close(lm_cuda_lanes *l);
// A START: the caller enqueues its work on *stream, behind which lm_cuda_lanes_end records it.
lm_status lm_cuda_lanes_begin(const lm_cuda_lanes *l, const lm_plan_step *s, void **stream);
lm_status lm_cuda_lanes_end(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration);
// The START of a copy between the addresses of its buffers, of which one is the host's.
lm_status lm_cuda_lanes_copy(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration,
                             lm_cuda_address from, lm_cuda_address to);
// Enqueues a WAIT.
lm_status lm_cuda_lanes_wait(const lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration);
// Waits until all lanes are idle.
void lm_cuda_lanes_synchronize(const lm_cuda_lanes *l);
#endif
