// events.c - reports to the front end's table of callbacks.
#include "driver/events.h"

#include <stdarg.h>

static void report(void (*to)(void *user, const char *text), void *user, const char *fmt,
                   va_list ap) {
  lm_buf text = {0};
  if (!to)
    return;
  lm_buf_vprintf(&text, fmt, ap);
  to(user, text.p ? text.p : "");
  lm_buf_free(&text);
}

void lm_event_warning(const lm_events *e, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (e)
    report(e->warning, e->user, fmt, ap);
  va_end(ap);
}

void lm_event_note(const lm_events *e, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (e)
    report(e->note, e->user, fmt, ap);
  va_end(ap);
}

void lm_event_progress(const lm_events *e, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (e)
    report(e->progress, e->user, fmt, ap);
  va_end(ap);
}

void lm_event_progress_end(const lm_events *e) {
  if (e && e->progress)
    e->progress(e->user, NULL);
}

void lm_event_module(const lm_events *e, lm_module *m) {
  if (e && e->module)
    e->module(e->user, m);
}

lm_status lm_verdict(const lm_ctx *c) {
  return c->n_errors ? lm_fail(LM_USER, "%s", "") : NULL;
}
