// counts.h - the numbers of rows of exchanges between ranks, on the host.
//
// Routing computes on the GPU how many rows a rank sends to each other one, but the sizes of NCCL's
// messages are numbers of the host. So the host waits for the stream before the first exchange with
// new counts. The other exchanges with the same ones, of a layer its results and all cotangents,
// take them from here, as long as no step has written to their memory.
#ifndef LM_CUDA_COUNTS_H
#define LM_CUDA_COUNTS_H
#include "runtime/comm/comm.h"
#include "runtime/cuda/nccl.h"

typedef struct lm_cuda_count {
  lm_cuda_address at; // on the device
  int32_t *rows;      // by rank of the group
} lm_cuda_count;

typedef struct lm_cuda_counts {
  lm_cuda_count *v;
  uint32_t n, cap, made; // the first n are valid; `made` have memory
  int ranks;             // of the run: the most counts of one
  int32_t *pinned;       // of two
} lm_cuda_counts;

void lm_cuda_counts_close(lm_cuda_counts *c, const lm_cuda_driver *d);
// Before a run of a function: none is known.
void lm_cuda_counts_forget(lm_cuda_counts *c);
// A step writes to the device.
void lm_cuda_counts_written(lm_cuda_counts *c, lm_cuda_address at, int64_t bytes);
// Replaces x->send and x->receive, addresses on the device, by copies on the host, which stay until
// another call of a function above. Waits for the stream of b if they are unknown.
lm_status lm_cuda_counts_read(lm_cuda_counts *c, lm_comm *ranks, lm_nccl *n,
                              const lm_cuda_builtins *b, lm_coll *x);
#endif
