// launch.h - how a launcher started this process: what the environment says.
#ifndef LM_COMM_LAUNCH_H
#define LM_COMM_LAUNCH_H
#include "runtime/base/base.h"

typedef struct lm_launch {
  int rank, size;   // 0 and 1 without a launcher
  const char *name; // "mpirun", "srun"; NULL: none
} lm_launch;

// Reads the variables of mpirun (Open MPI, MPICH and relatives) and of srun. LM_USER: processes
// that were started together but without MPI, as torchrun and plain srun do, also as the only one
// of an allocation of Slurm.
lm_status lm_launch_find(lm_launch *out);
#endif
