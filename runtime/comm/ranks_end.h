// ranks_end.h - waits for mpirun, also if it remains when its processes have ended.
//
// Open MPI's mpirun may wait in PMIx_server_finalize forever. So each rank appends its exit status,
// a byte, to a file of the start, and an mpirun that has had no processes for some time is killed.
// The exit status is then that of the ranks. It may also wait before it starts any.
#ifndef LM_COMM_RANKS_END_H
#define LM_COMM_RANKS_END_H
#include <signal.h>
#include <sys/types.h>

#include "runtime/base/base.h"

// The variable that names the file, to which lm_rank_ends writes.
#define LM_RANKS_ENDS "LMC_RANKS_ENDS"

// True if one of the ranks has noted its status in the file.
bool lm_ranks_have_ended(const char *ends);
// Waits for mpirun, which runs so many ranks, or ends it once *signals is 2, and returns the exit
// status: LM_ENV if a signal has ended mpirun, or if it was killed and a rank has no status. ends:
// the file; NULL: there is none. *lost: why this process has ended them, with LM_ENV: mpirun has
// started none in the time in which all ranks should have joined, or one was stopped and no rank
// has reported it. Otherwise NULL.
int lm_ranks_wait(pid_t mpirun, int ranks, const char *ends, const volatile sig_atomic_t *signals,
                  lm_status *lost);
#endif
