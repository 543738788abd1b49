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

// nohup ignores SIGHUP; keep it ignored.
static void signals_catch(struct sigaction *old) {
  struct sigaction a = {.sa_handler = on_signal};
  sigemptyset(&a.sa_mask);
  for (size_t i = 0; i < LM_COUNT(SIGNALS); i++) {
    sigaction(SIGNALS[i], NULL, &old[i]);
    if (SIGNALS[i] != SIGHUP || old[i].sa_handler != SIG_IGN)
      sigaction(SIGNALS[i], &a, NULL);
  }
}

static void signals_release(const struct sigaction *old) {
  for (size_t i = 0; i < LM_COUNT(SIGNALS); i++)
    sigaction(SIGNALS[i], &old[i], NULL);
}

static void signals_hold(sigset_t *before) {
  sigset_t held;
  sigemptyset(&held);
  for (size_t i = 0; i < LM_COUNT(SIGNALS); i++)
    sigaddset(&held, SIGNALS[i]);
  sigprocmask(SIG_BLOCK, &held, before);
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

static const char PREFIX[] = ".lmc-session-";

// Where the ranks make the memory that they share. mpirun does not remove it if it is killed.
static const char SHARED[] = "OMPI_MCA_btl_vader_backing_directory", MEMORY[] = "/dev/shm";

typedef struct folders {
  lm_temp_dir session;
  lm_temp_dir shared; // without one the MPI library chooses
  lm_buf ends;        // the file of the ranks' statuses, in `session`
} folders;

static void shared_make(lm_temp_dir *out) {
  *out = (lm_temp_dir){NULL, -1};
  if (getenv(SHARED))
    return;
  lm_temp_dirs_clean(MEMORY, PREFIX);
  lm_status_free(lm_temp_dir_make(MEMORY, PREFIX, out));
}

static lm_status session_make(lm_temp_dir *out) {
  const char *parent = lm_temp_parent();
  *out = (lm_temp_dir){NULL, -1};
  if (getenv(SESSION))
    return NULL;
  lm_temp_dirs_clean(parent, PREFIX);
  return lm_temp_dir_make(parent, PREFIX, out);
}

static lm_status ends_make(const char *session, lm_buf *out) {
  lm_buf_printf(out, "%s/ends", session);
  int fd = open(out->p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return lm_fail_errno("cannot create %s", out->p);
  close(fd);
  return NULL;
}

// Open MPI refuses root unless these say that it is meant, as in a container.
static void environment_set(const folders *p) {
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  setenv("LMC_RANKS_TERMINAL", isatty(STDOUT_FILENO) ? "1" : "0", 1);
  if (p->session.path)
    setenv(SESSION, p->session.path, 1);
  if (p->shared.path)
    setenv(SHARED, p->shared.path, 1);
  if (p->ends.p)
    setenv(LM_RANKS_ENDS, p->ends.p, 1);
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); // containers forbid the others
}

// In the child: another process group, so that the terminal's signals reach this program alone. A
// signal that is passed on before mpirun runs ends the child, as it ends an mpirun that has just
// begun: the handler would take it without a trace.
static _Noreturn void command_run(char *const *command, const folders *p, int report,
                                  const struct sigaction *old, const sigset_t *mask) {
  int null = open("/dev/null", O_RDONLY);
  signals_release(old);
  sigprocmask(SIG_SETMASK, mask, NULL);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  dup2(null, STDIN_FILENO);
  environment_set(p);
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

static lm_status start(int ranks, char *const *argv, const folders *p, lm_ranks_end *out) {
  struct sigaction old[LM_COUNT(SIGNALS)];
  sigset_t mask;
  char count[16];
  int report[2], error = 0, status = 0;
  snprintf(count, sizeof count, "%d", ranks);
  if (pipe2(report, O_CLOEXEC))
    return lm_fail_errno("cannot start mpirun");
  char **command = command_make(ranks, count, argv);
  fflush(stdout);
  signals_hold(&mask); // until the handler knows the child
  signals_catch(old);
  pid_t pid = fork();
  if (pid == 0)
    command_run(command, p, report[1], old, &mask);
  child = pid;
  sigprocmask(SIG_SETMASK, &mask, NULL);
  close(report[1]);
  ssize_t n = pid > 0 ? read(report[0], &error, sizeof error) : 0;
  if (pid > 0)
    status = lm_ranks_wait(pid, ranks, p->ends.p, &times, &out->lost);
  child = 0;
  signals_release(old);
  close(report[0]);
  lm_free(command);
  out->silent = p->ends.p && !lm_ranks_have_ended(p->ends.p);
  out->status = exit_of(status, out->silent);
  if (pid > 0 && n != sizeof error)
    return NULL;
  errno = pid > 0 ? error : errno;
  return lm_annotate(lm_fail_errno("cannot start mpirun"),
                     "--ranks needs Open MPI (on Debian: apt-get install openmpi-bin)");
}

lm_status lm_ranks_start(int ranks, char *const *argv, lm_ranks_end *out) {
  folders p = {0};
  *out = (lm_ranks_end){.status = LM_ENV};
  LM_TRY(session_make(&p.session));
  shared_make(&p.shared);
  lm_status s = p.session.path ? ends_make(p.session.path, &p.ends) : NULL;
  if (!s)
    s = start(ranks, argv, &p, out);
  lm_buf_free(&p.ends);
  lm_temp_dir_remove(&p.shared);
  lm_temp_dir_remove(&p.session);
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
