// lanes.h - copies between host and device beside the computation.
//
// A lane is a stream of copies in one direction: 0 to the device, 1 to the host. GPUs have a copy
// engine for each, so copies of both lanes and kernels overlap.
//
//   START   main: record `ready`    lane: wait for `ready`, copy, record done[handle]
//   WAIT    main: wait for done[handle]
//
// A copy therefore begins behind the steps before its START. All waits are in the main stream, so a
// recorded graph of a function joins the lanes.
#ifndef LM_CUDA_LANES_H
#define LM_CUDA_LANES_H
#include "runtime/cuda/builtin.h"
#include "runtime/plan/plan.h"

enum {
  LM_CUDA_LANES = 2
};
typedef struct lm_cuda_lanes {
  const lm_cuda_driver *driver;
  void *main, *lane[LM_CUDA_LANES]; // streams
  void *ready, **done;              // events; done: by handle
  int n;                            // handles
} lm_cuda_lanes;

// Makes the streams and events that the copies of the plan need, if it has any. Also after an
// error, lm_cuda_lanes_close must be called. The lanes are idle then.
lm_status lm_cuda_lanes_open(lm_cuda_lanes *l, const lm_plan *plan, const lm_cuda_driver *d,
                             void *main);
void lm_cuda_lanes_close(lm_cuda_lanes *l);
// Enqueues a START of a copy between the addresses of its buffers, of which one is the host's.
lm_status lm_cuda_lanes_start(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration,
                              lm_cuda_address from, lm_cuda_address to);
// Enqueues a WAIT.
lm_status lm_cuda_lanes_wait(lm_cuda_lanes *l, const lm_plan_step *s, int64_t iteration);
#endif
