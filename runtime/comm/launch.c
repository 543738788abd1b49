// launch.c - see launch.h.
#include "runtime/comm/launch.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/comm/start.h"

enum {
  PORTS = 16 // of which rank 0 listens at the first free one, if torchrun itself has the first
};

static int number_of(const char *name, int missing) {
  const char *text = getenv(name);
  char *end;
  long x = text ? strtol(text, &end, 10) : missing;
  return text && (end == text || *end || x < 0 || x > 1 << 20) ? missing : (int)x;
}

typedef struct variables {
  const char *launcher, *rank, *size;
  const char *also; // has to be set too; may be NULL
  bool by_mpi;
} variables;

// The first launcher of several processes counts. torchrun inside of a process of srun or mpirun
// has the variables of both, and so has srun with PMI2 or PMIx; mpirun inside of a batch script
// those of Slurm's batch step.
static const variables LAUNCHERS[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", false},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, true},
    {"mpirun", "PMI_RANK", "PMI_SIZE", NULL, true},
    {"srun", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", NULL, true},
    {"torchrun", "RANK", "WORLD_SIZE", NULL, false},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, false}};

static bool is_set(const variables *v) {
  return number_of(v->rank, -1) >= 0 && number_of(v->size, 0) > 0 && (!v->also || getenv(v->also));
}

// Processes that do not know of each other would each compute the whole run.
static lm_status refuse(const char *size, int n, const char *launcher, const char *missing) {
  return lm_fail(LM_USER,
                 "%s says that this is one of %d processes that %s started, but %s: lmc's ranks "
                 "find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun "
                 "sets them, or by MPI: `mpirun -n %d lmc run FILE`, `srun --mpi=pmix lmc run "
                 "FILE`, or `lmc run FILE --ranks %d`",
                 size, n, launcher, missing, n, n);
}

static void job_add(uint64_t *job, const char *name) {
  const char *text = getenv(name);
  if (text)
    *job = lm_hash(text, strlen(text), *job);
}

// torchrun serves its own store at MASTER_PORT if it says so.
static lm_status tcp_find(const variables *v, lm_launch *out) {
  const char *served = getenv("TORCHELASTIC_USE_AGENT_STORE");
  bool is_served = served && !strcmp(served, "True");
  int port = number_of("MASTER_PORT", 0);
  out->address = getenv("MASTER_ADDR");
  out->port = port + is_served;
  out->ports = is_served ? PORTS : 1;
  if (!out->address || !*out->address)
    return refuse(v->size, out->size, v->launcher, "MASTER_ADDR is not set");
  if (port < 1 || out->port + out->ports > 1 << 16)
    return refuse(v->size, out->size, v->launcher, "MASTER_PORT is no port");
  job_add(&out->job, "MASTER_PORT");
  job_add(&out->job, "TORCHELASTIC_RUN_ID");
  if (!strcmp(v->launcher, "srun")) {
    job_add(&out->job, "SLURM_JOB_ID");
    job_add(&out->job, "SLURM_STEP_ID");
  }
  return NULL;
}

static lm_status several_check(const variables *v, const lm_launch *l) {
  if (l->size > LM_RANKS_MAX)
    return lm_fail(LM_USER, "%s is %d; a run has at most %d ranks", v->size, l->size, LM_RANKS_MAX);
  if (l->rank >= l->size)
    return lm_fail(LM_USER, "%s is %d, but %s is %d: ranks are 0 to %d", v->rank, l->rank, v->size,
                   l->size, l->size - 1);
  return NULL;
}

lm_status lm_launch_find(lm_launch *out) {
  *out = (lm_launch){.size = 1};
  for (size_t i = 0; i < LM_COUNT(LAUNCHERS); i++) {
    const variables *v = &LAUNCHERS[i];
    int size = number_of(v->size, 0);
    if (!is_set(v) || (size == 1 && out->name))
      continue;
    *out = (lm_launch){
        .rank = number_of(v->rank, 0),
        .size = size,
        .name = v->launcher,
        .by_mpi = v->by_mpi,
        .rank_variable = v->rank,
    };
    if (size == 1)
      continue;
    LM_TRY(several_check(v, out));
    return v->by_mpi ? NULL : tcp_find(v, out);
  }
  int size = number_of("WORLD_SIZE", 1);
  return size > 1 ? refuse("WORLD_SIZE", size, "torchrun", "RANK is no number of a rank") : NULL;
}
