// share.h - how the threads of a team divide the work of one step.
//
// Every thread runs the same code with its own share. Work is handed out by tickets whose counter
// only increases: n pieces take n tickets, and each thread takes one more to learn that none are
// left. So every thread knows, without communication, at which ticket the next step begins.
#ifndef LM_CPU_SHARE_H
#define LM_CPU_SHARE_H
#include <stdatomic.h>
#include <stdint.h>

typedef struct lm_tickets {
  atomic_llong next;
} lm_tickets;
typedef struct lm_share {
  lm_tickets *tickets;
  int me, all;  // all 1: works alone, whatever the other threads do
  int64_t base; // tickets of the steps before this one; alone: the next piece
} lm_share;

static inline lm_share lm_share_alone(void) {
  return (lm_share){.all = 1};
}

// The index of the next of n pieces for this thread, -1 when none are left. Each thread must call
// this until it gets -1.
static inline int64_t lm_share_take(lm_share *s, int64_t n) {
  int64_t piece =
      s->all == 1 ? s->base++
                  : atomic_fetch_add_explicit(&s->tickets->next, 1, memory_order_relaxed) - s->base;
  if (piece < n)
    return piece;
  s->base = s->all == 1 ? 0 : s->base + n + s->all;
  return -1;
}

// This thread's contiguous part of `size` elements.
static inline int64_t lm_share_first(const lm_share *s, int64_t size) {
  return size * s->me / s->all;
}
static inline int64_t lm_share_last(const lm_share *s, int64_t size) {
  return size * (s->me + 1) / s->all;
}
#endif
