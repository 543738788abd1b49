// run_outcome.c - see run_outcome.h.
#include "runtime/train/run_outcome.h"

// Reports that the run was complete when it was started.
static void finished_say(lm_progress *p, const lm_run_outcome *x, int64_t steps, const char *stop) {
  if (x->stopped_early)
    lm_progress_say(p,
                    "this run is finished: it stopped after step %lld of %lld, %s; a larger "
                    "`patience` or another number of steps continues it",
                    (long long)x->step, (long long)steps, stop);
  else
    lm_progress_say(p,
                    "this run is finished: it has %lld steps, and step %lld is done; a larger "
                    "number of steps continues it",
                    (long long)steps, (long long)x->step);
}

static void counts_say(lm_progress *p, const lm_run_outcome *x) {
  if (x->empty)
    lm_progress_say(p, "%lld step%s skipped, since the weights of the tokens sum to 0 or less",
                    (long long)x->empty, x->empty == 1 ? " was" : "s were");
  if (x->overflows)
    lm_progress_say(p, "%lld step%s skipped to halve the loss scale", (long long)x->overflows,
                    x->overflows == 1 ? " was" : "s were");
  if (x->skipped)
    lm_progress_say(p, "%lld bad steps were skipped", (long long)x->skipped);
}

void lm_run_outcome_say(lm_progress *p, const lm_run_outcome *x, int64_t steps, bool saved,
                        const char *stop) {
  const char *and = saved ? ", saved" : "";
  if (x->interrupted)
    lm_progress_say(p, "interrupted after step %lld%s", (long long)x->step, and);
  else if (x->resumed == x->step && x->step)
    finished_say(p, x, steps, stop);
  else if (x->stopped_early)
    lm_progress_say(p, "stopped after step %lld%s: %s", (long long)x->step, and, stop);
  counts_say(p, x);
}
