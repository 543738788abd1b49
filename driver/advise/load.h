// load.h - the load of the machine by other processes, which makes measured times longer.
#ifndef LM_DRIVER_LOAD_H
#define LM_DRIVER_LOAD_H
#include "runtime/base/base.h"

typedef struct lm_load {
  int cores;
  double average; // processes that ran or waited to run in the last minute
} lm_load;

// Measure before a command uses the cores itself.
lm_load lm_load_measure(void);
bool lm_load_is_busy(const lm_load *l); // other processes use the cores
// "load average 9.0 on 2 cores; the least of several timings counts"
void lm_load_text(const lm_load *l, lm_buf *out);
// A line of a report, "busy: …"; nothing if the machine is not busy.
void lm_load_line(const lm_load *l, lm_buf *out);
// Members of a JSON object: "cores": 2, "load": 9.00, "busy": true
void lm_load_json(const lm_load *l, lm_buf *out);
#endif
