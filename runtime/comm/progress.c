// progress.c - see progress.h.
#include "runtime/comm/progress.h"

#include <time.h>

// The pause between two visits while no message arrives doubles from the first to the last.
enum {
  PAUSE_NS = 50000,
  PAUSE_MAX_NS = 1600000
};

void lm_comm_progress_lock(lm_comm *c) {
  if (c->progress.runs)
    pthread_mutex_lock(&c->progress.lock);
}

void lm_comm_progress_unlock(lm_comm *c) {
  if (c->progress.runs)
    pthread_mutex_unlock(&c->progress.lock);
}

void lm_comm_progress_add(lm_comm *c, lm_coll_state *r) {
  if (!c->progress.runs)
    return;
  r->apart = true;
  c->progress.apart++;
  pthread_cond_signal(&c->progress.wake);
}

void lm_comm_progress_remove(lm_comm *c, lm_coll_state *r) {
  c->progress.apart -= r->apart;
  r->apart = false;
}

// Returns whether a collective has advanced.
static bool all_visit(lm_comm *c) {
  bool any = false;
  for (int i = 0; i < LM_COMM_HANDLES; i++) {
    lm_coll_state *r = &c->colls[i];
    bool moved = false;
    if (!r->apart)
      continue;
    r->failed = lm_coll_advance(c, r, &moved);
    if (r->failed || r->done)
      lm_comm_progress_remove(c, r);
    any |= moved;
  }
  return any;
}

// Returns true after the pause, false if another thread has called pthread_cond_signal.
static bool pause_ended(lm_comm_progress *p, long ns) {
  enum {
    SECOND_NS = 1000000000
  };
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += (end.tv_nsec + ns) / SECOND_NS;
  end.tv_nsec = (end.tv_nsec + ns) % SECOND_NS;
  return pthread_cond_timedwait(&p->wake, &p->lock, &end) != 0;
}

static void *thread_run(void *user) {
  lm_comm *c = user;
  lm_comm_progress *p = &c->progress;
  long pause = PAUSE_NS;
  pthread_mutex_lock(&p->lock);
  while (!p->ends) {
    while (!p->apart && !p->ends)
      pthread_cond_wait(&p->wake, &p->lock);
    bool moved = all_visit(c);
    if (moved) { // another thread may wait for the lock
      pthread_mutex_unlock(&p->lock);
      pthread_mutex_lock(&p->lock);
    }
    bool waited = !moved && pause_ended(p, pause);
    pause = waited && pause < PAUSE_MAX_NS ? 2 * pause : waited ? pause : PAUSE_NS;
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

void lm_comm_progress_begin(lm_comm *c) {
  lm_comm_progress *p = &c->progress;
  if (p->runs)
    return;
  pthread_condattr_t attr;
  pthread_mutex_init(&p->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&p->wake, &attr);
  pthread_condattr_destroy(&attr);
  p->runs = !pthread_create(&p->thread, NULL, thread_run, c);
}

void lm_comm_progress_end(lm_comm *c) {
  lm_comm_progress *p = &c->progress;
  if (!p->runs)
    return;
  pthread_mutex_lock(&p->lock);
  p->ends = true;
  pthread_cond_signal(&p->wake);
  pthread_mutex_unlock(&p->lock);
  pthread_join(p->thread, NULL);
  pthread_mutex_destroy(&p->lock);
  pthread_cond_destroy(&p->wake);
  for (int i = 0; i < LM_COMM_HANDLES; i++)
    c->colls[i].apart = false;
  *p = (lm_comm_progress){0};
}

void lm_comm_stop(lm_comm *c) {
  if (c)
    lm_comm_progress_end(c);
}
