// ranks_end.c - see ranks_end.h.
#include "runtime/comm/ranks_end.h"

#include <dirent.h>
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
#include "runtime/comm/comm.h"
#include "runtime/comm/control.h"
#include "runtime/comm/start.h"

#define VISIT_S 0.02 // between two calls of waitpid
#define LOOK_S 0.5   // between two looks at the processes

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

// ---- the processes of mpirun

// True if the process runs and its parent is `parent`. The name, in parentheses, may contain any
// character.
static bool is_child(const char *process, pid_t parent) {
  char path[300], text[512] = {0};
  int ppid = 0;
  char state = 'Z';
  snprintf(path, sizeof path, "/proc/%s/stat", process);
  FILE *f = fopen(path, "r");
  if (!f)
    return false;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  while (n > 0 && text[n - 1] != ')')
    n--;
  return sscanf(text + n, " %c %d", &state, &ppid) == 2 && state != 'Z' && ppid == parent;
}

// True if the process has others, or if that cannot be known.
static bool has_children(pid_t parent) {
  DIR *d = opendir("/proc");
  bool found = !d;
  for (struct dirent *e; d && !found && (e = readdir(d));)
    found = *e->d_name >= '0' && *e->d_name <= '9' && is_child(e->d_name, parent);
  if (d)
    closedir(d);
  return found;
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
  const char *ends;           // the file of statuses; NULL: none
  double began, looked, busy; // when, and when it last had processes; busy 0: never
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
  if (has_children(w->mpirun) || (!w->busy && w->ends && lm_ranks_have_ended(w->ends)))
    w->busy = now;
}

// True if mpirun has had processes, and none for the time of the limit.
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

static void visit_pause(void) {
  nanosleep(&(struct timespec){.tv_nsec = (long)(VISIT_S * 1e9)}, NULL);
}

static void mpirun_end(pid_t mpirun, int *status) {
  kill(mpirun, SIGKILL);
  waitpid(mpirun, status, 0);
}

lm_status lm_ranks_wait(pid_t mpirun, int ranks, const char *ends, int *out) {
  double limit = limit_of_environment();
  double start = lm_control_limits_of_environment(LM_MPI_START_S).start;
  watch w = {
      .mpirun = mpirun,
      .ends = ends,
      .began = lm_now(),
  };
  int status = 0;
  pid_t ended;
  *out = LM_ENV;
  while (!(ended = waitpid(mpirun, &status, WNOHANG)) || (ended < 0 && errno == EINTR)) {
    look(&w);
    lm_status s = start_check(&w, start);
    if (s || remains(&w, limit)) {
      mpirun_end(mpirun, &status);
      *out = status_of_ranks(ends, ranks);
      return s;
    }
    visit_pause();
  }
  if (ended < 0) // the system has taken its status, where SIGCHLD is ignored
    *out = status_of_ranks(ends, ranks);
  else if (WIFEXITED(status))
    *out = WEXITSTATUS(status);
  return NULL;
}
