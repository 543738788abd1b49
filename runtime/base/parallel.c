// parallel.c - see parallel.h.
#include "runtime/base/parallel.h"

#include <stdatomic.h>

#include "runtime/base/processors.h"
#include "runtime/base/team.h"

typedef struct range {
  _Atomic int64_t next;
  int64_t n;
  lm_item_body body;
  void *user;
} range;

static void items_take(void *user, int me) {
  range *r = user;
  for (int64_t i; (i = atomic_fetch_add(&r->next, 1)) < r->n;)
    r->body(r->user, i, me);
}

void lm_parallel(int threads, int64_t n, lm_item_body body, void *user) {
  range r = {
      .n = n,
      .body = body,
      .user = user,
  };
  int max = lm_threads(threads);
  lm_team *team = lm_team_create(n > max ? max : n > 1 ? (int)n : 1);
  lm_team_run(team, items_take, &r);
  lm_team_destroy(team);
}

typedef struct pieces {
  int64_t n;
  int64_t count;
  lm_range_body body;
  void *user;
} pieces;

static void piece_do(void *user, int64_t i, int worker) {
  const pieces *p = user;
  p->body(p->user, p->n * i / p->count, p->n * (i + 1) / p->count);
}

// The number of processors takes a dozen system calls to find, so it is found only if it matters.
void lm_parallel_ranges(int64_t n, int64_t min, lm_range_body body, void *user) {
  int64_t max = n / min;
  if (max < 2) {
    body(user, 0, n);
    return;
  }
  int64_t threads = lm_threads(0);
  pieces p = {
      .n = n,
      .count = max < threads ? max : threads,
      .body = body,
      .user = user,
  };
  lm_parallel((int)p.count, p.count, piece_do, &p);
}
