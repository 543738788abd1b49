// tuned_step.h - the part of tuned.h for whole steps: plans that the default does not choose, of
// which one may be faster here.
//
// Variants are tried in the order of what they may be worth: each is compiled, planned - it must
// fit what the default has to fit - and run in turn with the best plan so far, on the first
// micro-batch of the data. It takes that one's place only if it wins every one of five comparisons
// by 3 %; the next are tried on top of it. So a plan is never slower than the default by what was
// measured, and is the same plan if there was no time. Half of the budget goes to steps, what is
// left to products.
//
//   RUN/tuned.json        ..., "step": {"off": "tile_vocab", "on": "", "rows": 0, "places": 0,
//   "gain": 1.062}, "products": [... CACHE/step-KEY.json   the same object, by machine, threads and
//   the default plan, every line of it
#ifndef LMC_TUNED_STEP_H
#define LMC_TUNED_STEP_H
#include <jansson.h>

#include "driver/session.h"

// The variant of a run that goes on, before it is planned: s->variant. step: the object; NULL,
// where the lock has none: the default. False: it is none.
bool lm_tuned_step_recall(lm_session *s, json_t *step);
// Where the recipe asks for it and nothing was recalled: finds the best variant and plans s with
// it. s is planned, not started.
lm_status lm_tuned_step_find(lm_session *s);
void lm_tuned_step_json(const lm_session *s, lm_buf *out); // {"off": …}
void lm_tuned_step_lock(const lm_session *s, lm_buf *out); // , "step": {"off": …}
// "without chunk, 1.06 times as fast as by default"; NULL: the step is the default's.
const char *lm_tuned_step_text(const lm_session *s);
#endif
