// process.c - see process.h.
#include "runtime/cpu/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

lm_status lm_process_start(const char *const *argv, const char *output, pid_t *out) {
  posix_spawn_file_actions_t files;
  int error = posix_spawn_file_actions_init(&files);
  if (!error) {
    error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (!error) error = posix_spawn_file_actions_addopen(&files, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (!error) error = posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (!error) error = posix_spawn(out, argv[0], &files, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&files);
  }
  errno = error;
  return error ? lm_fail_errno("cannot start %s", argv[0]) : NULL;
}

lm_status lm_process_wait(pid_t pid, int *out_exit) {
  int state;
  while (waitpid(pid, &state, 0) < 0)
    if (errno != EINTR) return lm_fail_errno("cannot wait for process %d", (int)pid);
  *out_exit = WIFEXITED(state) ? WEXITSTATUS(state) : LM_PROCESS_SIGNAL + WTERMSIG(state);
  return NULL;
}

static bool is_program(const char *path) { return !access(path, X_OK); }

bool lm_executable_find(const char *name, char *out, size_t n) {
  if (strchr(name, '/')) return snprintf(out, n, "%s", name) < (int)n && is_program(out);
  const char *path = getenv("PATH");
  for (const char *p = path ? path : "/usr/bin:/bin"; *p;) {
    size_t length = strcspn(p, ":");
    if (length && snprintf(out, n, "%.*s/%s", (int)length, p, name) < (int)n && is_program(out)) return true;
    p += length + (p[length] == ':');
  }
  return false;
}
