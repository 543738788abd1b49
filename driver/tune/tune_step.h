// tune_step.h - the part of tune.h for whole steps: variants of the plan, one of which may be
// faster on this machine than the default.
//
// Variants are tried in the order of their expected gain. Each is compiled and planned; if it fits
// the memory limit, its steps alternate with steps of the best plan so far, on the first
// micro-batch of the data. It replaces that plan only if it wins each of five comparisons by 3 %,
// and the next variants build on it. So every replacement was measured as faster, and if the budget
// allows no measurement, the default plan stays. Steps get half of the budget, GEMMs the rest.
//
//   RUN/tuned.json        …, "step": {"off": "tile_vocab", "on": "", "rows": 0, "points": 0,
//                         "gain": 1.062}, "gemms": […
//   CACHE/step-KEY.json   the same object, by machine, threads and the text of the default plan
#ifndef LM_DRIVER_TUNE_STEP_H
#define LM_DRIVER_TUNE_STEP_H
#include "driver/session.h"

// s: a session that is planned and not started. Finds the best variant and plans with it, if the
// recipe asks for max-autotune and nothing was recalled.
lm_status lm_tune_step_find(lm_session *s);
#endif
