// team.h - threads that do steps together: what each thread of a parallel region takes of one.
//
// Every thread runs the same code with a share of its own. Work is handed out by tickets that are counted on, never back: n
// pieces take n tickets and one more of each thread, to learn that there are none left, so all know where the next work
// begins without telling each other.
#ifndef LM_CPU_TEAM_H
#define LM_CPU_TEAM_H
#include <stdatomic.h>
#include <stdint.h>

typedef struct lm_team { atomic_llong tickets; } lm_team;
typedef struct lm_share {
  lm_team *team;
  int me, all;                         // all 1: works alone, whatever the others do
  int64_t base;                        // tickets of work that is done; alone: the next piece
} lm_share;

static inline lm_share lm_share_alone(void) { return (lm_share){.all = 1}; }

// The next of n pieces for this thread, -1 when none are left. Each thread asks until it hears that.
static inline int64_t lm_share_take(lm_share *s, int64_t n) {
  int64_t piece = s->all == 1 ? s->base++ : atomic_fetch_add_explicit(&s->team->tickets, 1, memory_order_relaxed) - s->base;
  if (piece < n) return piece;
  s->base = s->all == 1 ? 0 : s->base + n + s->all;
  return -1;
}

// The part of `size` places that is this thread's.
static inline int64_t lm_share_first(const lm_share *s, int64_t size) { return size * s->me / s->all; }
static inline int64_t lm_share_last(const lm_share *s, int64_t size) { return size * (s->me + 1) / s->all; }
#endif
