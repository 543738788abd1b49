// launch.c - see launch.h.
#include "runtime/comm/launch.h"

#include <stdlib.h>

static int number_of(const char *name, int missing) {
  const char *text = getenv(name);
  char *end;
  long x = text ? strtol(text, &end, 10) : missing;
  return text && (end == text || *end || x < 0 || x > 1 << 20) ? missing : (int)x;
}

typedef struct variables {
  const char *launcher, *rank, *size;
  bool by_mpi; // ranks find each other by MPI
} variables;

// The first whose variables are set. srun with PMI2 or PMIx sets variables of both, mpirun inside
// of a batch script those of Slurm's batch step.
static const variables LAUNCHERS[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"mpirun", "PMI_RANK", "PMI_SIZE", true},
    {"srun", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", true},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", false},
    {"torchrun", "RANK", "WORLD_SIZE", false}};

lm_status lm_launch_find(lm_launch *out) {
  *out = (lm_launch){0, 1, NULL};
  for (size_t i = 0; i < LM_COUNT(LAUNCHERS); i++) {
    const variables *v = &LAUNCHERS[i];
    int rank = number_of(v->rank, -1);
    int size = number_of(v->size, 0);
    if (rank < 0 || size < 1)
      continue;
    if (v->by_mpi || size == 1) {
      *out = (lm_launch){rank, size, v->launcher};
      return NULL;
    }
    return lm_fail(LM_USER,
                   "%s and %s say that this is one of %d processes that %s started; lmc's ranks "
                   "find each other by MPI: start them with `mpirun -n %d lmc run FILE`, `srun "
                   "--mpi=pmix lmc run FILE`, or `lmc run FILE --ranks %d`",
                   v->rank, v->size, size, v->launcher, size, size);
  }
  return NULL;
}
