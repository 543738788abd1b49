// nccl.h - collectives between ranks that have a GPU each, in the memory of the GPUs.
//
// NCCL moves bytes: the messages of exchange.h, as grouped ncclSend and ncclRecv. A kernel of the
// runtime makes the sums, in the order of the ranks. So sums have the same bits in every run, with
// every version of NCCL, and the bits that ranks on CPUs compute; the library's own all-reduce
// chooses its order by message size, topology and version. A recipe with `order = library` takes
// that one for sums of floats (LM_COLL_LIBRARY_SUM); they need no workspace.
//
// NCCL runs the operations of a communicator in order. So a group has a communicator for each lane
// (lanes.h) of its collectives, and a lane a workspace for the slices that it receives. All ranks
// enqueue the same collectives in the same order: NCCL requires that of communicators that one GPU
// uses at the same time.
//
// Operations of several communicators that run on one GPU at the same time may block each other.
// NCCL orders them by the calls of the host from 2.26 on; with older versions, and where
// NCCL_LAUNCH_ORDER_IMPLICIT is 0, each waits for the one before.
//
// Collectives may be recorded in graphs (exec_graph.c), whose launches are collectives then. A
// communicator is closed when no graph has its operations any more, for which NCCL waits.
//
// Communicators do not block: while NCCL connects, or a GPU waits for other ranks, this process
// still notices that the run has failed (lm_comm_check).
#ifndef LM_CUDA_NCCL_H
#define LM_CUDA_NCCL_H
#include "runtime/comm/comm.h"
#include "runtime/cuda/lanes.h"

// Constants and types of nccl.h; tests/cuda/headers_test.c compares them with the header.
enum {
  LM_NCCL_IN_PROGRESS = 7,
  LM_NCCL_INT8 = 0, // types of elements
  LM_NCCL_F16 = 6,
  LM_NCCL_F32 = 7,
  LM_NCCL_F64 = 8,
  LM_NCCL_BF16 = 9,
  LM_NCCL_SUM = 0,
  LM_NCCL_OLDEST = 21800,    // 2.18, the first version whose config has these fields
  LM_NCCL_REGISTERS = 22300, // 2.23, which registers buffers of recorded messages
  LM_NCCL_ORDERS = 22600,    // 2.26, which knows NCCL_LAUNCH_ORDER_IMPLICIT
  LM_NCCL_MAGIC = (int)0xcafebeef,
  LM_NCCL_UNDEFINED = INT32_MIN,
};
typedef struct lm_nccl_id {
  char bytes[128];
} lm_nccl_id;
typedef struct lm_nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share;
} lm_nccl_config;

enum {
  LM_NCCL_WORKSPACE = 64 << 20 // maximum of a lane, in bytes on the device
};

typedef struct lm_nccl lm_nccl;
// The workspaces of all lanes, in bytes on the device.
int64_t lm_nccl_workspace(const lm_plan *plan);
// Loads libnccl.so.2 and connects the ranks of each group of c (lm_comm_groups) that has several,
// for the collectives of the plan; every rank calls it. LM_ENV: NCCL is missing, too old, or does
// not connect. The arguments outlive it.
lm_status lm_nccl_open(lm_comm *c, const lm_plan *plan, const lm_cuda_builtins *b,
                       lm_cuda_lanes *lanes, lm_nccl **out);
// Enqueues a START of a collective on its lane. at: the addresses of its buffers, on the device.
// rows: of an exchange of rows, `send` and `receive` on the host (counts.h).
lm_status lm_nccl_start(lm_nccl *n, const lm_plan_step *s, int64_t iteration,
                        const lm_cuda_address *at, const lm_coll *rows);
// Waits for the event; NULL: for the stream of the builtins. *result: of the driver. The GPU may
// wait for ranks that have ended, so the ranks and NCCL are checked meanwhile, and the ranks see
// the collective in which the GPU is.
lm_status lm_nccl_wait(lm_nccl *n, void *event, int *result);
// Before a graph with collectives is recorded or launched on the main stream: collectives before
// come first. And behind a recording.
lm_status lm_nccl_join(lm_nccl *n);
void lm_nccl_joined(lm_nccl *n);
// The streams must be idle, unless the run has `failed`, and graphs destroyed.
void lm_nccl_close(lm_nccl *n, bool failed);
#endif
