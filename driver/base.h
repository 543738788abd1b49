// base.h - the frozen parameters that a checkpoint was trained on. The checkpoint does not hold
// them: they are read again from what the model and its subs are `from`, or computed from the seed.
//
// Its fingerprint has the part "base", and "base NAME" for a sub with separate weights: a hash of
// the tensors' names, types, shapes and content, and the path; or the seed.
#ifndef LM_DRIVER_BASE_H
#define LM_DRIVER_BASE_H
#include "driver/fingerprint.h"
#include "driver/weights/weights.h"

extern const char LM_BASE[]; // "base"
// s: compiled. The parts, which take reading all tensors of the base; none if no parameter is
// frozen.
lm_status lm_base_of(const lm_session *s, lm_fingerprint *out);
// LM_USER if the checkpoint `path` with the fingerprint `saved` was trained on another base than
// `is`; the message names both.
lm_status lm_base_compare(const lm_session *s, const char *path, const lm_fingerprint *saved,
                          const lm_fingerprint *is);
#endif
