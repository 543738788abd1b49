// start.c - see start.h.
#define _GNU_SOURCE // pipe2
#include "runtime/comm/start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/comm/ranks_end.h"

// ---- signals. A handler can access only global state.

static volatile sig_atomic_t received; // the first signal; 0: none
static volatile sig_atomic_t times;
static volatile sig_atomic_t child;

// mpirun itself ends its processes on SIGTERM, without waiting until they have saved, but passes
// SIGUSR1 on to them. A second signal ends all; mpirun may crash of two.
static void on_signal(int number) {
  if (!times++)
    received = number;
  if (child > 0 && times == 1)
    kill(child, SIGUSR1);
}

static const int SIGNALS[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

static void signals_set(struct sigaction *old, bool restore) {
  struct sigaction a = {.sa_handler = on_signal};
  sigemptyset(&a.sa_mask);
  for (size_t i = 0; i < LM_COUNT(SIGNALS); i++)
    sigaction(SIGNALS[i], restore ? &old[i] : &a, restore ? NULL : &old[i]);
}

// ---- the command

static char **command_make(int ranks, const char *count, char *const *argv) {
  static char *const options[] = {"-q",    "--oversubscribe",           "--bind-to", "none",
                                  "--mca", "odls_base_sigkill_timeout", "5"};
  enum {
    OWN = LM_COUNT(options) + 3
  };
  size_t n = 0, at = 0;
  while (argv[n])
    n++;
  char **command = lm_calloc(n + OWN + 1, sizeof *command);
  command[at++] = "mpirun";
  for (size_t i = 0; i < LM_COUNT(options); i++)
    command[at++] = options[i];
  command[at++] = "-n";
  command[at++] = (char *)count;
  for (size_t i = 0; i < n; i++)
    command[at++] = argv[i];
  return command;
}

// Where mpirun keeps the files of this start. By default all starts of a user share a folder, which
// one may remove while another enters it.
static const char SESSION[] = "OMPI_MCA_orte_tmpdir_base";

static lm_status session_make(lm_temp_dir *out) {
  static const char prefix[] = ".lmc-session-";
  const char *parent = lm_temp_parent();
  *out = (lm_temp_dir){NULL, -1};
  if (getenv(SESSION))
    return NULL;
  lm_temp_dirs_clean(parent, prefix);
  return lm_temp_dir_make(parent, prefix, out);
}

// The file of the ranks' statuses, in that folder.
static lm_status ends_make(const char *session, lm_buf *out) {
  lm_buf_printf(out, "%s/ends", session);
  int fd = open(out->p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return lm_fail_errno("cannot create %s", out->p);
  close(fd);
  return NULL;
}

// Open MPI refuses root unless these say that it is meant, as in a container.
static void environment_set(const char *session, const char *ends) {
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  setenv("LMC_RANKS_TERMINAL", isatty(STDOUT_FILENO) ? "1" : "0", 1);
  if (session)
    setenv(SESSION, session, 1);
  if (ends)
    setenv(LM_RANKS_ENDS, ends, 1);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); // containers forbid the others
}

// In the child: another process group, so that the terminal's signals reach this program alone.
static _Noreturn void command_run(char *const *command, const char *session, const char *ends,
                                  int report) {
  int null = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(null, STDIN_FILENO);
  environment_set(session, ends);
  execvp(command[0], command);
  int error = errno;
  ssize_t n = write(report, &error, sizeof error);
  (void)n;
  _exit(127);
}

// True if the number is the exit status of a run that was interrupted and has saved its state.
static bool is_interrupted(int status) {
  for (size_t i = 0; i < LM_COUNT(SIGNALS); i++)
    if (status == 128 + SIGNALS[i])
      return true;
  return false;
}

// silent: the ranks have ended before they could tell a signal from another loss.
static int exit_of(int code, bool silent) {
  if (received && (times > 1 || (silent && code == LM_ENV)))
    return 128 + received;
  if (code <= LM_BUG_STATUS)
    return code;
  if (!is_interrupted(code))
    return LM_ENV;
  return received ? 128 + received : code;
}

bool lm_ranks_stopped(void) {
  return times > 0;
}

static lm_status start(int ranks, char *const *argv, const char *session, const char *ends,
                       lm_ranks_end *out) {
  struct sigaction old[LM_COUNT(SIGNALS)];
  char count[16];
  int report[2], error = 0, status = 0;
  snprintf(count, sizeof count, "%d", ranks);
  if (pipe2(report, O_CLOEXEC))
    return lm_fail_errno("cannot start mpirun");
  char **command = command_make(ranks, count, argv);
  fflush(stdout);
  signals_set(old, false);
  pid_t pid = fork();
  if (pid == 0)
    command_run(command, session, ends, report[1]);
  child = pid;
  if (pid > 0 && times == 1)
    kill(pid, SIGUSR1); // it came before there was a child; a second SIGUSR1 does nothing more
  close(report[1]);
  ssize_t n = pid > 0 ? read(report[0], &error, sizeof error) : 0;
  if (pid > 0)
    status = lm_ranks_wait(pid, ranks, ends, &times, &out->lost);
  child = 0;
  signals_set(old, true);
  close(report[0]);
  lm_free(command);
  out->silent = ends && !lm_ranks_have_ended(ends);
  out->status = exit_of(status, out->silent);
  if (pid > 0 && n != sizeof error)
    return NULL;
  errno = pid > 0 ? error : errno;
  return lm_annotate(lm_fail_errno("cannot start mpirun"),
                     "--ranks needs Open MPI (on Debian: apt-get install openmpi-bin)");
}

lm_status lm_ranks_start(int ranks, char *const *argv, lm_ranks_end *out) {
  lm_temp_dir session;
  lm_buf ends = {0};
  *out = (lm_ranks_end){.status = LM_ENV};
  LM_TRY(session_make(&session));
  lm_status s = session.path ? ends_make(session.path, &ends) : NULL;
  if (!s)
    s = start(ranks, argv, session.path, ends.p, out);
  lm_buf_free(&ends);
  lm_temp_dir_remove(&session);
  return s;
}

// ---- arguments

// True if the word gives the option, with its value or before it: --ranks=2, --ranks 2.
static bool gives(const char *word, const char *option, bool *before) {
  size_t n = strlen(option);
  bool same = !strncmp(word, option, n);
  *before |= same && !word[n];
  return same && (!word[n] || word[n] == '=');
}

lm_status lm_ranks_arguments(lm_arena *a, const char *const *without, int n, char ***out) {
  char self[4096] = {0};
  lm_buf all = {0};
  int count = 0;
  LM_TRY(lm_file_read("/proc/self/cmdline", 1 << 24, &all));
  char *text = lm_arena_strndup(a, all.p ? all.p : "", all.n);
  char **list = LM_NEW_N(a, char *, all.n + 2);
  bool skip = false;
  for (size_t at = 0; at < all.n; at += strlen(text + at) + 1) {
    bool before = false, own = false;
    for (int i = 0; i < n; i++)
      own |= gives(text + at, without[i], &before);
    if (!skip && !own)
      list[count++] = text + at;
    skip = !skip && before;
  }
  lm_buf_free(&all);
  if (readlink("/proc/self/exe", self, sizeof self - 1) > 0)
    list[0] = lm_arena_strndup(a, self, strlen(self));
  *out = list;
  return NULL;
}
