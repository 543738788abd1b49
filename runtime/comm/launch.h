// launch.h - how a launcher started this process: what the environment says.
#ifndef LM_COMM_LAUNCH_H
#define LM_COMM_LAUNCH_H
#include "runtime/base/base.h"

typedef struct lm_launch {
  int rank, size;   // 0 and 1 without a launcher
  const char *name; // "mpirun", "srun", "torchrun"; NULL: none
  // Ranks find each other by MPI, else at rank 0, which listens at one of so many ports of
  // MASTER_ADDR, from `port` on.
  bool by_mpi;
  const char *address;
  int port, ports;
  const char *rank_variable; // "RANK"
  uint64_t job; // hash that all processes of the launch share and those of others do not
} lm_launch;

// Reads the variables of mpirun (Open MPI, MPICH and relatives), srun and torchrun. LM_USER:
// variables of several processes that do not say how these find each other.
lm_status lm_launch_find(lm_launch *out);
#endif
