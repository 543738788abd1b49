// parallel.c - see parallel.h.
#define _GNU_SOURCE
#include "runtime/base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { THREADS_MAX = 256 };

typedef struct {
  _Atomic int64_t next;
  int64_t n;
  void (*body)(void *user, int64_t i, int worker);
  void *user;
} range;

typedef struct { range *r; int index; pthread_t thread; } worker;

// Of a list, one number for each level of nesting, the first.
static long told(void) {
  const char *text = getenv("OMP_NUM_THREADS");
  long n = text ? strtol(text, NULL, 10) : 0;
  return n > 0 ? n : THREADS_MAX;
}

static long usual(void) {
  cpu_set_t set;
  long n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
  return n < told() ? n : told();
}

int lm_threads(int wanted) {
  long n = wanted > 0 ? wanted : usual();
  return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (int)n;
}

static void *work(void *user) {
  worker *w = user;
  for (int64_t i; (i = atomic_fetch_add(&w->r->next, 1)) < w->r->n; ) w->r->body(w->r->user, i, w->index);
  return 0;
}

void lm_parallel(int threads, int64_t n, void (*body)(void *user, int64_t i, int worker), void *user) {
  range r = {.n = n, .body = body, .user = user};
  worker w[THREADS_MAX];
  int made = 1;
  w[0] = (worker){&r, 0};
  for (; made < lm_threads(threads) && made < n; made++) {
    w[made] = (worker){&r, made};
    if (pthread_create(&w[made].thread, 0, work, &w[made])) break;
  }
  work(&w[0]);
  for (int i = 1; i < made; i++) pthread_join(w[i].thread, 0);
}
