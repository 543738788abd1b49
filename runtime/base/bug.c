// bug.c - reports an internal error and exits. It formats without lm_buf, which may itself fail.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/base.h"

static void (*bug_hook)(void *user);
static void *bug_hook_user;

void lm_bug_hook_set(void (*hook)(void *user), void *user) {
  bug_hook = hook;
  bug_hook_user = user;
}

_Noreturn void lm_bug(const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "lmc: internal error at %s:%d: ", file, line);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  void (*hook)(void *) = bug_hook;
  bug_hook = NULL; // a bug inside the hook must not call it again
  if (hook)
    hook(bug_hook_user);
  fflush(NULL);
  _Exit(LM_BUG_STATUS);
}
