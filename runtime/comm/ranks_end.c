// ranks_end.c - see ranks_end.h.
#include "runtime/comm/ranks_end.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/comm/children.h"
#include "runtime/comm/comm.h"
#include "runtime/comm/control.h"
#include "runtime/comm/start.h"

#define VISIT_S 0.02 // between two calls of waitpid
#define LOOK_S 0.5   // between two looks at the processes
// Of the silence behind which ranks report a stopped one themselves: how long --ranks waits, if all
// are stopped, or if one is after it has left the others.
#define STOPPED_SILENCES 2.5
#define RANK "OMPI_COMM_WORLD_RANK" // the variable of mpirun's processes

int lm_rank_ends(int status) {
  const char *path = getenv(LM_RANKS_ENDS);
  int fd = path ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW) : -1;
  uint8_t byte = (uint8_t)status;
  if (fd < 0)
    return status;
  ssize_t n = write(fd, &byte, sizeof byte);
  (void)n; // a rank without a status has failed
  close(fd);
  return status;
}

// ---- the ranks' statuses

// The first one that is not 0; LM_ENV if some are missing.
static int status_of_ranks(const char *ends, int ranks) {
  lm_buf all = {0};
  int status = 0;
  if (ends)
    lm_status_free(lm_file_read(ends, LM_RANKS_MAX, &all));
  for (size_t i = 0; i < all.n && !status; i++)
    status = (uint8_t)all.p[i];
  if (all.n < (size_t)ranks && !status)
    status = LM_ENV;
  lm_buf_free(&all);
  return status;
}

// ---- waiting

static double limit_of_environment(void) {
  const char *text = getenv("LMC_COMM_END");
  double x = text ? strtod(text, NULL) : 0;
  return x > 0 && x < 1e9 ? x : 10;
}

typedef struct watch {
  pid_t mpirun;
  int ranks;
  const char *ends; // the file of statuses; NULL: none
  double began, looked;
  double busy; // when mpirun last had processes; 0: never
  lm_children children;
} watch;

bool lm_ranks_have_ended(const char *ends) {
  struct stat st;
  return !stat(ends, &st) && st.st_size > 0;
}

// Looks at the processes, at times. Those that end between two looks leave a status.
static void look(watch *w) {
  double now = lm_now();
  if (now - w->looked < LOOK_S)
    return;
  w->looked = now;
  lm_children_look(&w->children, w->mpirun, RANK);
  if (w->children.any || (!w->busy && w->ends && lm_ranks_have_ended(w->ends)))
    w->busy = now;
}

// True if mpirun has had processes, and none for the time of the limit. After a failure mpirun
// sleeps for seconds, as if it had processes to end, and prints their last messages only then.
static bool remains(const watch *w, double limit) {
  return w->busy > 0 && w->looked - w->busy > limit;
}

static lm_status start_check(const watch *w, double limit) {
  if (w->busy > 0 || w->looked - w->began <= limit)
    return NULL;
  return lm_fail(LM_ENV,
                 "mpirun has started no process in %g s (LMC_COMM_START) and was ended: start the "
                 "run again; `mpirun -n 1 hostname` shows whether mpirun works",
                 limit);
}

static lm_status stopped_check(const watch *w, double limit) {
  double seconds = lm_children_stopped(&w->children);
  if (seconds <= limit)
    return NULL;
  return lm_fail(LM_ENV, "rank %d (process %d) has been stopped for %.3g s: all ranks were ended",
                 lm_process_number(w->children.stopped, RANK), (int)w->children.stopped, seconds);
}

static lm_status watch_check(const watch *w, const lm_control_limits *limits) {
  lm_status s = start_check(w, limits->start);
  return s ? s : stopped_check(w, STOPPED_SILENCES * limits->silence);
}

static void visit_pause(void) {
  nanosleep(&(struct timespec){.tv_nsec = (long)(VISIT_S * 1e9)}, NULL);
}

static void mpirun_end(pid_t mpirun, int *status) {
  lm_children_kill(mpirun);
  kill(mpirun, SIGKILL);
  waitpid(mpirun, status, 0);
}

// The exit status that waitpid has given. The system has taken it where SIGCHLD is ignored.
static int status_of(const watch *w, pid_t ended, int status) {
  if (ended < 0)
    return status_of_ranks(w->ends, w->ranks);
  return WIFEXITED(status) ? WEXITSTATUS(status) : LM_ENV;
}

int lm_ranks_wait(pid_t mpirun, int ranks, const char *ends, const volatile sig_atomic_t *signals,
                  lm_status *lost) {
  double lingering = limit_of_environment();
  lm_control_limits limits = lm_control_limits_of_environment(LM_MPI_START_S);
  watch w = {
      .mpirun = mpirun,
      .ranks = ranks,
      .ends = ends,
      .began = lm_now(),
  };
  int status = 0;
  pid_t ended;
  while (!(ended = waitpid(mpirun, &status, WNOHANG)) || (ended < 0 && errno == EINTR)) {
    look(&w);
    *lost = watch_check(&w, &limits);
    if (*lost || *signals > 1 || remains(&w, lingering)) {
      mpirun_end(mpirun, &status);
      return *lost ? LM_ENV : status_of_ranks(ends, ranks);
    }
    visit_pause();
  }
  return status_of(&w, ended, status);
}
