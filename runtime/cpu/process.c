// process.c - see process.h.
#define _GNU_SOURCE
#include "runtime/cpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// Programs run in the C locale, since their messages are searched. Only the list is allocated; its
// strings belong to the environment.
static const char **environment_make(void) {
  size_t n = 0;
  size_t kept = 0;
  while (environ[n])
    n++;
  const char **list = lm_calloc(n + 2, sizeof *list);
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "LC_ALL=", 7) && strncmp(environ[i], "LANGUAGE=", 9))
      list[kept++] = environ[i];
  list[kept] = "LC_ALL=C";
  return list;
}

// The order of redirections matters if `output` is 0 or 2.
static int files_set(posix_spawn_file_actions_t *files, int dir, int output) {
  int error = dir >= 0 ? posix_spawn_file_actions_addfchdir_np(files, dir) : 0;
  if (!error)
    error = posix_spawn_file_actions_adddup2(files, output, 1);
  if (!error)
    error = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
  return error ? error : posix_spawn_file_actions_adddup2(files, 1, 2);
}

lm_status lm_process_start(const char *const *argv, int dir, int output, pid_t *out) {
  posix_spawn_file_actions_t files;
  int error = posix_spawn_file_actions_init(&files);
  if (!error) {
    const char **environment = environment_make();
    error = files_set(&files, dir, output);
    if (!error)
      error = posix_spawn(out, argv[0], &files, NULL, (char *const *)(uintptr_t)argv,
                          (char *const *)(uintptr_t)environment);
    lm_free(environment);
    posix_spawn_file_actions_destroy(&files);
  }
  errno = error;
  if (error == EAGAIN)
    return lm_fail(LM_ENV, "cannot start %s: too many processes (ulimit -u)", argv[0]);
  return error ? lm_fail_errno("cannot start %s", argv[0]) : NULL;
}

lm_status lm_process_output(int *out_fd) {
  *out_fd = memfd_create("lmc-output", MFD_CLOEXEC);
  return *out_fd < 0 ? lm_fail_errno("cannot create a file in memory") : NULL;
}

lm_status lm_process_output_read(int fd, size_t max_bytes, lm_buf *out) {
  if (lseek(fd, 0, SEEK_SET))
    return lm_fail_errno("cannot read a file in memory");
  return lm_fd_read(fd, "the output of a program", max_bytes, out);
}

lm_status lm_process_wait(pid_t pid, int *out_exit) {
  int state;
  while (waitpid(pid, &state, 0) < 0)
    if (errno != EINTR)
      return lm_fail_errno("cannot wait for process %d", (int)pid);
  *out_exit = WIFEXITED(state) ? WEXITSTATUS(state) : LM_PROCESS_SIGNAL + WTERMSIG(state);
  return NULL;
}

static bool is_program(const char *path) {
  struct stat st;
  return !access(path, X_OK) && !stat(path, &st) && S_ISREG(st.st_mode);
}

// Makes the path absolute, so that it is valid for processes in other folders. Does not resolve
// links, since some programs depend on the name that they are called by.
static bool path_copy(const char *path, char *out, size_t n) {
  char here[PATH_MAX] = "";
  if (*path != '/' && !getcwd(here, sizeof here))
    return false;
  return snprintf(out, n, "%s%s%s", here, *here ? "/" : "", path) < (int)n && is_program(out);
}

bool lm_executable_find(const char *name, char *out, size_t n) {
  char one[PATH_MAX];
  if (strchr(name, '/'))
    return path_copy(name, out, n);
  const char *path = getenv("PATH");
  for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
    size_t length = strcspn(p, ":");
    bool fits =
        length && snprintf(one, sizeof one, "%.*s/%s", (int)length, p, name) < (int)sizeof one;
    if (fits && path_copy(one, out, n))
      return true;
    p += length + (p[length] == ':');
  }
  return false;
}
