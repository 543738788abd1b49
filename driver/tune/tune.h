// tune.h - the results that max-autotune measures and stores: the variant of a run's steps
// (tune_step.h) and how each GEMM is computed: on the CPU its tiling and whether by generated code,
// on a GPU its algorithm (tune_gemm_cuda.h).
//
//   RUN/tuned.json           of this run: resuming measures nothing and keeps the bits
//   CACHE/tuned-KEY.json     by processor, library version and number of threads, for other runs
//
//   {"version": 3, "processor": "AMD EPYC 9B14 avx2 fma", "onednn": "2.6.3", "step": {…},
//    "gemms": [
//      {"m": 512, "n": 768, "k": 256, "a": [256, 1], "b": [1, 256], "c": [768, 1], "batch": 1,
//       "sum": 1, "add": false, "type": "f32", "result": "f32", "tile": [256, 192], "code": true,
//       "gain": 1.08}, …
#ifndef LM_DRIVER_TUNE_H
#define LM_DRIVER_TUNE_H
#include "driver/session.h"

// Each of these does nothing unless the recipe asks for max-autotune.
// Before planning: reads RUN/tuned.json of the run that is resumed, so that nothing is measured.
// LM_USER if the file is malformed or of another processor.
lm_status lm_tune_recall(lm_session *s, const char *run);
// After planning: fills s->tuning, unless it was recalled. threads: 0 for all cores.
lm_status lm_tune_find(lm_session *s, int threads);
lm_status lm_tune_write(const lm_session *s, const char *dir); // dir/tuned.json
#endif
