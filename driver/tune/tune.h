// tuned.h - how a run's steps are planned (tuned_step.h) and its products computed: found once,
// kept in its folder and for other runs of this machine. Of products on the CPU how they are cut,
// and whether by code of their own; on a GPU by which algorithm (tuned_gpu.h).
//
//   RUN/tuned.json                what holds for the run: going on from a checkpoint measures
//   nothing, and bits stay CACHE/tuned-KEY.json          what was measured by this processor,
//   library and number of threads
//
//   {"version": 2, "processor": "AMD EPYC 9B14 avx2 fma", "onednn": "2.6.3", "step": {…},
//   "products": [
//     {"m": 512, "n": 768, "k": 256, "a": [256, 1], "b": [1, 256], "c": [768, 1], "batch": 1,
//     "sum": 1, "add": false,
//      "type": "f32", "result": "f32", "tile": [256, 192], "code": true, "gain": 1.08}, …
#ifndef LMC_TUNED_H
#define LMC_TUNED_H
#include "driver/session.h"

bool lm_tuned_is_requested(const lm_session *s);   // by the recipe
double lm_tuned_budget(const lm_session *s);       // seconds that are left of it
const char *lm_tuned_machine(const lm_session *s); // what times measured here hold for
// Before there is a plan, where the recipe asks for it: what RUN/tuned.json says of the run that is
// resumed, so that nothing is measured. LM_USER if it is none of such, or another processor's.
lm_status lm_tuned_recall(lm_session *s, const char *run);
// Fills in s->tuned, where the recipe asks for it and nothing was recalled, once there is a plan.
lm_status lm_tuned_find(lm_session *s, int threads);
// Writes dir/tuned.json, where the recipe asks for it.
lm_status lm_tuned_write(const lm_session *s, const char *dir);
#endif
