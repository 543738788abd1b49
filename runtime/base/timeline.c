// timeline.c - see timeline.h.
#include "runtime/base/timeline.h"

void lm_timeline_span(lm_timeline *t, lm_span s) {
  if (!t)
    return;
  if (t->n_spans == t->max)
    t->left_out++;
  else
    LM_PUSH(t->arena, t->spans, t->n_spans, t->cap_spans) = s;
}

void lm_timeline_add(lm_timeline *t, lm_timeline_row row, const char *name, const void *what,
                     int64_t number, double start) {
  if (t)
    lm_timeline_span(t, (lm_span){name, what, start, lm_now(), row, number});
}
