// grad_ticks.h - the derivative of a pipeline: its loop over ticks (grad_ticks.c), and copies of
// parts of this loop's body with their derivatives (grad_segment.c).
#ifndef LM_GRAD_TICKS_H
#define LM_GRAD_TICKS_H
#include "compiler/passes/grad/grad.h"

typedef struct lm_ticks {
  lm_module *m;
  lm_func *f;
  const lm_grad_methods *methods;
  bool sums;   // see lm_epilogue_sums
  lm_op *loop; // over ticks
  int stages, mesh;
  int64_t chunks; // the stages of a rank; of several, `cycle` says which one a tick computes
  lm_value *cycle;
  uint32_t n;             // carries
  lm_value **sent;        // by carry: the value for the next stage
  lm_value **taken;       // the operand of the stage
  uint8_t *active, *late; // by id of forward values: has a gradient, depends on a carry
  uint8_t *of_stage;      // by id: a value for the next stage depends on it
  lm_value **results;     // of the stage, which operations behind it read
  uint32_t n_results, cap_results;
  uint32_t n_values; // of forward values
  uint32_t loss;     // which stacked result
  lm_value *seed;    // its cotangent
  lm_axis slot;
} lm_ticks;

static inline const lm_op *lm_ticks_yield(const lm_ticks *t) {
  return t->loop->body->last;
}
// The stages of all ranks: after so many ticks a rank computes the same stage again.
static inline int64_t lm_ticks_period(const lm_ticks *t) {
  return t->stages * t->chunks;
}
// grad_ticks_parts.c: false if f is no pipeline whose ticks compute the whole model. The parts are
// found after `active` is set.
bool lm_ticks_find(lm_ticks *t, lm_func *f);
void lm_ticks_parts_find(lm_ticks *t);

typedef struct lm_copier {
  const lm_ticks *t;
  lm_builder *b;
  lm_value **map; // by id of forward values
  bool again;     // the forward pass has added to the states
} lm_copier;

// tick: the number of the tick for which the copier copies values. lm_free(map) ends it.
lm_copier lm_copier_make(const lm_ticks *t, lm_builder *b, lm_value *tick);
// The value for the copier's tick. Outside of the loop only values with a gradient are copied, so
// that it is added up here.
lm_value *lm_copier_copy(lm_copier *c, lm_value *v);
// Copies what the loop's body, outside of nested loops, writes to states: from values behind the
// stages (late), or from others.
void lm_copier_effects(lm_copier *c, bool late);

// A function of a part alone: its arguments stand for the values that it is given.
typedef struct lm_segment {
  lm_ticks *t;
  lm_func *f;
  lm_builder b;
  lm_copier c;
  lm_value **given; // by argument
} lm_segment;

void lm_segment_open(lm_segment *s, lm_ticks *t, lm_value *tick);
lm_value *lm_segment_argument(lm_segment *s, lm_value *given);
// Adds the derivative of the copies of n values, with the cotangents of the arguments `by`, with
// respect to the arguments `wrt`; out: zeros where there is none.
void lm_segment_reverse(lm_segment *s, lm_value *const *of, lm_value *const *by, uint32_t n,
                        lm_value *const *wrt, uint32_t n_wrt, lm_value **out);
// Moves the part to the builder's position. n of its values, which may be arguments, are replaced.
void lm_segment_close(lm_segment *s, lm_builder *b, lm_value **of, uint32_t n);
#endif
