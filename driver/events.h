// events.h - what the driver reports while it works. The driver prints nothing: a front end passes
// this table and decides what a user sees.
#ifndef LM_DRIVER_EVENTS_H
#define LM_DRIVER_EVENTS_H
#include "compiler/ir/ir.h"
#include "runtime/base/diag.h"

// Every member is optional. `text` is valid during the call and has no prefix and no newline.
typedef struct lm_events {
  void (*warning)(void *user, const char *text); // the work continues, but not as the user meant
  void (*note)(void *user, const char *text);    // a choice that the user did not make
  // One line that replaces the previous one; NULL: the work that it described is finished.
  void (*progress)(void *user, const char *text);
  // The module that is compiled from here on, for a dump after an internal error.
  void (*module)(void *user, lm_module *m);
  void *user;
} lm_events;

// `e` is optional in all of these.
void lm_event_warning(const lm_events *e, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_event_note(const lm_events *e, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_event_progress(const lm_events *e, const char *fmt, ...) LM_PRINTF(2, 3);
void lm_event_progress_end(const lm_events *e);
void lm_event_module(const lm_events *e, lm_module *m);

// NULL, or an LM_USER status without text if the context holds errors: they are diagnostics.
lm_status lm_verdict(const lm_ctx *c);
#endif
