// start.h - starts a command as several ranks of this machine.
#ifndef LM_COMM_START_H
#define LM_COMM_START_H
#include "runtime/base/base.h"

enum {
  LM_RANKS_MAX = 4096
};

typedef struct lm_ranks_end {
  int status;     // the command's exit status: 2 if a signal ended one of the ranks
  bool silent;    // no rank has ended by itself, so that none has reported a failure
  lm_status lost; // why this process has ended the ranks (ranks_end.h); NULL: it has not
} lm_ranks_end;

// Runs `argv` (ends with NULL; argv[0] is a path) as so many processes under mpirun and waits for
// them. SIGINT, SIGTERM and SIGHUP are passed on as a request to save and stop; a second signal
// ends the ranks. LM_ENV: there is no mpirun.
lm_status lm_ranks_start(int ranks, char *const *argv, lm_ranks_end *out);
// The arguments of this process under the path of its program, without n options and their values
// ("--ranks"), for lm_ranks_start.
lm_status lm_ranks_arguments(lm_arena *a, const char *const *without, int n, char ***out);
bool lm_ranks_stopped(void); // true if a signal was passed on
#endif
