// recompute.h - the stashes of a function (recompute_stash.c), and the choice of those that are
// recomputed or are in the host's memory (recompute_choice.c).
#ifndef LM_RECOMPUTE_H
#define LM_RECOMPUTE_H
#include "compiler/passes/pass.h"

// A stash is a stacked result that one later loop reads, each iteration the element of one forward
// iteration.
typedef struct lm_stash {
  lm_op *loop;
  lm_op *reader;
  lm_value *stacked, *v; // v: the value in the loop's body
  int64_t first, step;   // the reader's iteration j reads element first + step * j
  bool fits;             // it may be recomputed
  bool offloads;         // it may be in the host's memory
  bool recomputed, on_host;
} lm_stash;

typedef struct lm_stashes {
  lm_module *m;
  lm_func *f;
  const lm_target *machine; // NULL: without a cost model
  lm_stash *all;
  uint32_t n;
  uint32_t cap;
  uint32_t *of;     // by value id: the number of its stash, from 1
  uint8_t *in_cone; // by value id
} lm_stashes;

// Finds the stashes of a function, none of which is chosen.
void lm_stashes_find(lm_stashes *s);
void lm_stashes_free(lm_stashes *s);
// The stash of v, a value of s's loop, that is kept; NULL if there is none.
const lm_stash *lm_stash_kept(const lm_stashes *all, const lm_stash *s, const lm_value *v);
// True if operand i is an index, which a loop's index may be.
bool lm_recompute_is_index(const lm_op *op, uint32_t i);

// ---- recompute_choice.c

// Chooses the stashes that the recipe marks.
void lm_stashes_choose_marked(lm_stashes *s);
// Chooses stashes of at least `ask->bytes` besides, in the least time; adds their numbers to *ask.
void lm_stashes_choose(lm_stashes *s, lm_recompute *ask);
#endif
