// team.c - see team.h.
//
// The barrier is one counter of arrivals and one word, the phase: twice the number of completed
// barriers, plus 1 if a thread sleeps until the next one completes. The last thread to arrive
// resets the counter and advances the phase.
//
// Memory order. Each arrival is an acquire-release read-modify-write of `arrived`, so the last one
// synchronizes with all before it (they form one release sequence). It advances the phase with
// release order, and each waiter reads the new phase with acquire order. Therefore everything
// written before any arrival happens before everything after the barrier. The reset of `arrived`
// precedes the release of the phase, and a thread arrives at the next barrier only after it has
// acquired that phase.
//
// No lost wake-up. A thread that wants to sleep first sets the lowest bit of the phase by a
// compare-and-swap on the value that it waits to change. If the phase has advanced, that fails and
// there is nothing to wait for. If it succeeds, it precedes the exchange that advances the phase in
// the modification order of that word, so the exchange returns the bit and the last thread wakes
// the sleepers. FUTEX_WAIT compares the word and enqueues the thread atomically: it either sees the
// advanced phase, or is in the queue when FUTEX_WAKE runs. Signals and spurious wake-ups only
// repeat the loop.
#define _GNU_SOURCE
#include "runtime/base/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/base.h"
#include "runtime/base/processors.h"

enum {
  SLEEPERS = 1,
  LINE = 64,   // bytes of a cache line
  PAUSES = 64, // between two looks at the clock: 1 to 4 microseconds
};
static const double SPIN_MAX = 100e-6, SPIN_MIN = 2e-6, SPIN_ACTIVE = 1; // seconds
static const double GROWTH = 1.25, SHRINKAGE = 0.5;

typedef struct member { // of one thread; members are in different cache lines
  lm_team *team;
  int me;
  double spin; // seconds that it spins before it sleeps
  pthread_t thread;
  char apart[LINE];
} member;

struct lm_team {
  atomic_int size;
  double spin_max;
  lm_team_body body; // NULL: the threads end
  void *user;
  bool running;
  char apart_1[LINE];
  atomic_uint arrived;
  char apart_2[LINE];
  atomic_uint phase;
  char apart_3[LINE];
  member members[];
};

// ---- waiting

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool has_advanced(const lm_team *t, unsigned phase) {
  return (atomic_load_explicit(&t->phase, memory_order_acquire) | SLEEPERS) != (phase | SLEEPERS);
}

// The clock also shows when this thread itself was descheduled in the meantime: then it stops
// spinning at once.
static bool spin(const lm_team *t, unsigned phase, double seconds) {
  if (seconds <= 0)
    return has_advanced(t, phase);
  for (double end = 0;;) {
    for (int i = 0; i < PAUSES; i++) {
      if (has_advanced(t, phase))
        return true;
      pause_briefly();
    }
    double now = lm_now();
    if (end == 0)
      end = now + seconds;
    else if (now >= end)
      return false;
  }
}

static void sleep_until(lm_team *t, unsigned phase) {
  while (!has_advanced(t, phase)) {
    unsigned seen = phase & ~(unsigned)SLEEPERS;
    atomic_compare_exchange_strong_explicit(&t->phase, &seen, seen | SLEEPERS, memory_order_relaxed,
                                            memory_order_relaxed);
    syscall(SYS_futex, &t->phase, FUTEX_WAIT_PRIVATE, phase | SLEEPERS, NULL, NULL, 0);
  }
}

// A spin that fails means that another thread is late by more than the spin, which is frequent on a
// loaded machine and rare on an idle one. So a failure halves the next spin, and a success
// lengthens it again.
static void wait_for(lm_team *t, member *m, unsigned phase) {
  bool met = spin(t, phase, m->spin);
  if (!met)
    sleep_until(t, phase);
  m->spin *= met ? GROWTH : SHRINKAGE;
  if (m->spin < SPIN_MIN)
    m->spin = SPIN_MIN;
  if (m->spin > t->spin_max)
    m->spin = t->spin_max;
}

// Only the last bit of the phase can change before the last thread advances it.
static void advance(lm_team *t) {
  unsigned next = (atomic_load_explicit(&t->phase, memory_order_relaxed) | SLEEPERS) + 1;
  atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
  unsigned old = atomic_exchange_explicit(&t->phase, next, memory_order_acq_rel);
  if (old & SLEEPERS)
    syscall(SYS_futex, &t->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int lm_team_size(const lm_team *t) {
  return atomic_load_explicit(&t->size, memory_order_relaxed);
}

void lm_team_barrier(lm_team *t, int me) {
  int size = lm_team_size(t);
  if (size == 1)
    return;
  // The phase cannot advance before this thread arrives.
  unsigned phase = atomic_load_explicit(&t->phase, memory_order_relaxed);
  unsigned before = atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel);
  if (before + 1 == (unsigned)size)
    advance(t);
  else
    wait_for(t, &t->members[me], phase);
}

// ---- creation and destruction

// Between runs a thread waits at the barrier that begins the next run.
static void *member_run(void *user) {
  member *m = user;
  lm_team *t = m->team;
  for (;;) {
    lm_team_barrier(t, m->me);
    if (!t->body)
      return NULL;
    t->body(t->user, m->me);
    lm_team_barrier(t, m->me);
  }
}

double lm_team_spin_max(int threads) {
  const char *policy = getenv("OMP_WAIT_POLICY");
  if (threads > lm_processors() || (policy && !strcasecmp(policy, "passive")))
    return 0;
  return policy && !strcasecmp(policy, "active") ? SPIN_ACTIVE : SPIN_MAX;
}

// Starts the threads; returns how many there are with the caller.
static int members_start(lm_team *t, int threads) {
  for (int i = 1; i < threads; i++)
    if (pthread_create(&t->members[i].thread, NULL, member_run, &t->members[i]))
      return i;
  return threads;
}

// The threads that started already wait in their first barrier, which cannot complete before the
// caller arrives: there, `size` may still be reduced, since neither the old nor the new size is
// reached by their arrivals alone.
lm_team *lm_team_create(int threads) {
  threads = lm_threads(threads);
  lm_team *t = lm_alloc(sizeof *t + (size_t)threads * sizeof *t->members);
  t->spin_max = threads > 1 ? lm_team_spin_max(threads) : 0;
  for (int i = 0; i < threads; i++)
    t->members[i] = (member){
        .team = t,
        .me = i,
        .spin = t->spin_max,
    };
  atomic_init(&t->size, threads);
  atomic_store_explicit(&t->size, members_start(t, threads), memory_order_relaxed);
  return t;
}

void lm_team_destroy(lm_team *t) {
  if (!t)
    return;
  LM_ASSERT(!t->running);
  t->body = NULL;
  lm_team_barrier(t, 0);
  for (int i = 1; i < lm_team_size(t); i++)
    pthread_join(t->members[i].thread, NULL);
  lm_free(t);
}

void lm_team_run(lm_team *t, lm_team_body body, void *user) {
  LM_ASSERT(!t->running);
  t->running = true;
  t->body = body;
  t->user = user;
  lm_team_barrier(t, 0);
  body(user, 0);
  lm_team_barrier(t, 0);
  t->running = false;
}
