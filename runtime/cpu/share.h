// share.h - how the threads of a team divide the work of one step.
//
// Every thread runs the same code with its own share. The pieces of a step are divided into one
// contiguous range for each thread, which takes its own in order and then those that are left of
// the other ranges. So a thread reads memory in order, and the same in each run of a function.
// A range has a counter of the pieces taken, together with the number of the step that they belong
// to: a counter of another step stands for none, so nothing is reset between steps.
#ifndef LM_CPU_SHARE_H
#define LM_CPU_SHARE_H
#include <stdatomic.h>
#include <stdint.h>

typedef struct lm_tickets { // of one thread's range; zeros before the first step
  _Atomic uint64_t taken;   // step << 32 | pieces
  char apart[56];           // in another cache line than the next one
} lm_tickets;
static inline void lm_tickets_clear(lm_tickets *t, int n) {
  for (int i = 0; i < n; i++)
    atomic_store_explicit(&t[i].taken, 0, memory_order_relaxed);
}

typedef struct lm_share {
  lm_tickets *tickets; // [all]
  int me, all;         // all 1: works alone, whatever the other threads do
  int empty;           // ranges that are known to be taken, from `me` on
  int64_t at;          // steps before this one; alone: the next piece
} lm_share;

static inline lm_share lm_share_alone(void) {
  return (lm_share){.all = 1};
}

// Thread `me`'s contiguous part of `size` elements.
static inline int64_t lm_share_start(int me, int all, int64_t size) {
  return size * me / all;
}
static inline int64_t lm_share_first(const lm_share *s, int64_t size) {
  return lm_share_start(s->me, s->all, size);
}
static inline int64_t lm_share_last(const lm_share *s, int64_t size) {
  return lm_share_start(s->me + 1, s->all, size);
}

// The index of the next of n pieces of a range, -1 when none are left.
static inline int64_t lm_tickets_take(lm_tickets *t, uint32_t step, int64_t n) {
  uint64_t seen = atomic_load_explicit(&t->taken, memory_order_relaxed);
  for (;;) {
    uint64_t none = (uint64_t)step << 32;
    uint64_t next = seen >> 32 == step ? seen : none;
    if ((int64_t)(next - none) >= n)
      return -1;
    if (atomic_compare_exchange_weak_explicit(&t->taken, &seen, next + 1, memory_order_relaxed,
                                              memory_order_relaxed))
      return (int64_t)(next - none);
  }
}

static inline int64_t lm_share_take_alone(lm_share *s, int64_t n) {
  if (s->at < n)
    return s->at++;
  s->at = 0;
  return -1;
}

// The index of the next of n pieces for this thread, fewer than 2^32, -1 when none are left. Each
// thread must call this until it gets -1.
static inline int64_t lm_share_take(lm_share *s, int64_t n) {
  if (s->all == 1)
    return lm_share_take_alone(s, n);
  for (; s->empty < s->all; s->empty++) {
    int owner = (s->me + s->empty) % s->all;
    int64_t first = lm_share_start(owner, s->all, n);
    int64_t size = lm_share_start(owner + 1, s->all, n) - first;
    int64_t piece = lm_tickets_take(&s->tickets[owner], (uint32_t)s->at, size);
    if (piece >= 0)
      return first + piece;
  }
  s->empty = 0;
  s->at++;
  return -1;
}
#endif
