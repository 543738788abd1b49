// status.c - errors as values.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/base.h"

static lm_status status_create(lm_kind kind, lm_buf *text) {
  lm_status s = lm_alloc(sizeof *s);
  s->kind = kind;
  s->text = text->p;
  s->subject = NULL;
  return s;
}

lm_status lm_fail(lm_kind kind, const char *fmt, ...) {
  lm_buf text = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&text, fmt, ap);
  va_end(ap);
  return status_create(kind, &text);
}

// A removed working folder: no file can be made in it, although a relative path looks right.
static bool is_nowhere(void) {
  char *here = getcwd(NULL, 0);
  bool nowhere = !here && errno == ENOENT;
  free(here);
  return nowhere;
}

const char *lm_errno_hint(int error) {
  if (error == ENOENT && is_nowhere())
    return " (the working folder was removed: change to another one)";
  if (error == EMFILE)
    return " (ulimit -n limits how many files a process may open: raise it)";
  if (error == ENFILE)
    return " (the system's limit, fs.file-max)";
  if (error == EFBIG)
    return " (ulimit -f limits the size of files: raise it)";
  return "";
}

lm_status lm_fail_errno(const char *fmt, ...) {
  int error = errno;
  lm_buf text = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&text, fmt, ap);
  va_end(ap);
  lm_buf_printf(&text, ": %s%s", strerror(error), lm_errno_hint(error));
  lm_status s = status_create(LM_ENV, &text);
  errno = error;
  return s;
}

lm_status lm_annotate(lm_status s, const char *fmt, ...) {
  if (!s)
    return NULL;
  lm_buf text = {0};
  va_list ap;
  va_start(ap, fmt);
  lm_buf_vprintf(&text, fmt, ap);
  va_end(ap);
  lm_buf_printf(&text, ": %s", s->text);
  lm_free(s->text);
  s->text = text.p;
  return s;
}

lm_status lm_status_about(lm_status s, const void *subject) {
  if (s && !s->subject)
    s->subject = subject;
  return s;
}

void lm_status_free(lm_status s) {
  if (!s)
    return;
  lm_free(s->text);
  lm_free(s);
}
