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

// srun with PMI2 or PMIx sets variables of both, mpirun inside of a batch script those of Slurm's
// batch step, torchrun inside of one of srun's processes those of both.
static const variables LAUNCHERS[] = {
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"mpirun", "PMI_RANK", "PMI_SIZE", true},
    {"srun", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", true},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", false},
    {"torchrun", "RANK", "WORLD_SIZE", false}};

// A size alone is enough for a refusal.
static bool is_set(const variables *v) {
  return (number_of(v->rank, -1) >= 0 || !v->by_mpi) && number_of(v->size, 0) > 0;
}

// Processes that do not know of each other would each compute the whole run.
static lm_status refuse(const variables *v, int size) {
  return lm_fail(LM_USER,
                 "%s says that this is one of %d processes that %s started; lmc's ranks find each "
                 "other by MPI: start them with `mpirun -n %d lmc run FILE`, `srun --mpi=pmix lmc "
                 "run FILE`, or `lmc run FILE --ranks %d`",
                 v->size, size, v->launcher, size, size);
}

// The first launcher of several processes counts, of one process the first.
lm_status lm_launch_find(lm_launch *out) {
  *out = (lm_launch){0, 1, NULL};
  for (size_t i = 0; i < LM_COUNT(LAUNCHERS); i++) {
    const variables *v = &LAUNCHERS[i];
    int size = number_of(v->size, 0);
    if (!is_set(v) || (size == 1 && out->name))
      continue;
    if (size > 1 && !v->by_mpi)
      return refuse(v, size);
    *out = (lm_launch){number_of(v->rank, 0), size, v->launcher};
    if (size > 1)
      return NULL;
  }
  return NULL;
}
