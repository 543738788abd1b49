// tune_variant.h - the variant of a run's steps as text and as JSON, in RUN/tuned.json and in the
// cache (tune_step.h has the format).
#ifndef LM_DRIVER_TUNE_VARIANT_H
#define LM_DRIVER_TUNE_VARIANT_H
#include <jansson.h>

#include "driver/session.h"

// Before planning: sets s->variant to the variant of the run that is resumed, unless the user gave
// one. step: the JSON object; NULL: the default. False if it is malformed.
bool lm_tune_step_recall(lm_session *s, json_t *step);
// Reads a variant and its speedup from JSON; strings are allocated in `a`. False if it is malformed
// or names a pass that cannot be disabled or forced.
bool lm_variant_read(lm_arena *a, json_t *j, lm_variant *out, double *out_gain);
// "without tile_vocab, 256 rows at a time"; "" for the default.
const char *lm_variant_text(lm_arena *a, const lm_variant *v);
// Sets the variant that tuning found and the one that is planned.
void lm_tune_step_set(lm_session *s, const lm_variant *v, double gain);
// The user disabled or forced passes, or the kernels were made for the default plan: no other
// variant is planned.
bool lm_variant_is_given(const lm_session *s);
void lm_tune_step_json(const lm_session *s, lm_buf *out); // {"off": …}
// The same for the output of a command, with the former key `places` beside `points`.
void lm_tune_step_report(const lm_session *s, lm_buf *out);
void lm_tune_step_pin(const lm_session *s, lm_buf *out); // , "step": {"off": …}
// "without tile_vocab, 1.06 times as fast as by default"; NULL: the step is the default one.
const char *lm_tune_step_text(const lm_session *s);
#endif
