// control_engine.c - the watch over the engine while it opens or closes: the ranks then wait for
// each other where they cannot hear of each other.
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "runtime/comm/children.h"
#include "runtime/comm/control_state.h"

enum {
  MOST_DELAY_S = 8 // of a rank that reports something that all ranks see
};
#define STOPPED_S 3.0 // between two visits, of which the time counts as stopped

typedef struct wait {
  bool closes;
  double begun;
  double seen;    // the last visit
  double stopped; // seconds for which this process did not run
  lm_children siblings;
} wait;

static _Noreturn void process_end(lm_control *c, const lm_buf *why) {
  pthread_mutex_unlock(&c->lock);
  c->o.end(c->o.user, LM_ENV, why->p, true);
  abort();
}

// The ranks cannot agree who reports it, so they do in their order: when one ends, mpirun ends the
// others, after a second.
static void limit_check(lm_control *c, const wait *w) {
  double limit = w->closes ? c->limits.stuck : c->limits.start;
  double most = w->closes ? limit : limit * 1.25; // a rank that joins reports more
  double delay = c->rank < MOST_DELAY_S / 2 ? 2 * c->rank : MOST_DELAY_S;
  lm_buf b = {0};
  if (w->seen - w->begun - w->stopped <= most + delay)
    return;
  lm_buf_printf(&b,
                "the ranks did not %s within %g s (%s): one of them is stopped, or its machine "
                "cannot be reached",
                w->closes ? "end" : "find each other", limit,
                w->closes ? "LMC_COMM_STUCK" : "LMC_COMM_START");
  process_end(c, &b);
}

// On each machine the first process reports a stopped one, and the others if that does not.
static void siblings_check(lm_control *c, wait *w) {
  lm_children *s = &w->siblings;
  lm_children_look(s, c->launcher, c->siblings);
  double delay = s->first == getpid() ? 0 : MOST_DELAY_S;
  double seconds = lm_children_stopped(s);
  char host[LM_CONTROL_HOST];
  lm_buf b = {0};
  if (seconds <= c->limits.silence + delay)
    return;
  lm_socket_host(host, sizeof host);
  lm_buf_printf(&b, "rank %d (host %s, process %d) has been stopped for %.3g s, %s",
                lm_process_number(s->stopped, c->siblings), host, (int)s->stopped, seconds,
                w->closes ? "at the end of the run" : "before all ranks had found each other");
  process_end(c, &b);
}

static void visit(lm_control *c, wait *w) {
  double now = lm_now();
  w->stopped += now - w->seen > STOPPED_S ? now - w->seen : 0;
  w->seen = now;
  if (c->siblings)
    siblings_check(c, w);
  limit_check(c, w);
}

static bool waits(const lm_control *c, const wait *w) {
  return !c->closing && (w->closes || !c->joined);
}

void lm_control_engine_watch(lm_control *c) {
  wait w = {
      .closes = c->leaving,
      .begun = c->leaving ? lm_now() : c->begun,
  };
  w.seen = w.begun;
  while (waits(c, &w)) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += 1;
    pthread_cond_timedwait(&c->changed, &c->lock, &t);
    if (waits(c, &w))
      visit(c, &w);
  }
}
