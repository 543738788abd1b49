// load.c - see load.h.
#include "driver/advise/load.h"

#include <stdlib.h>

#include "runtime/base/processors.h"

#define BUSY 0.5 // load average for each core

lm_load lm_load_measure(void) {
  lm_load l = {.cores = lm_processors()};
  if (getloadavg(&l.average, 1) != 1)
    l.average = 0;
  return l;
}

bool lm_load_is_busy(const lm_load *l) {
  return l->average > BUSY * l->cores;
}

void lm_load_text(const lm_load *l, lm_buf *out) {
  lm_buf_printf(out, "load average %.1f on %d core%s; the least of several timings counts",
                l->average, l->cores, l->cores == 1 ? "" : "s");
}

void lm_load_line(const lm_load *l, lm_buf *out) {
  if (!lm_load_is_busy(l))
    return;
  lm_buf_puts(out, "busy: ");
  lm_load_text(l, out);
  lm_buf_puts(out, "\n");
}

void lm_load_json(const lm_load *l, lm_buf *out) {
  lm_buf_printf(out, "\"cores\": %d, \"load\": %.2f, \"busy\": %s", l->cores, l->average,
                lm_load_is_busy(l) ? "true" : "false");
}
