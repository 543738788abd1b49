// run_record.h - run.json of a run folder: the numbers of the run, resolved and chosen.
//
//   {"steps": 480, "batch": 8192, "seq": 512, "micro": 4096, "micro_chosen": true, "recomputed": 0,
//    "less_memory": false, "small_tiles": false, "by_layer": false, "stages": [{"first": 1,
//    "last": 480, "seq": 512, "rows": 16, "mix": {}}],
//    "options": {"steps": 480, "mode": "max-autotune"}}
//
// micro_chosen: `micro = auto` chose the micro-batch. A run keeps it when it is resumed, because
// another one would round differently. less_memory: the plan has no stashes of pass stash_operands,
// which a resumed run does not have either, for the same reason; small_tiles: its tiles of logits
// are those of plans that take less memory; by_layer: gradients of weights are computed layer by
// layer, not by pass defer_gemms. options: the values of --steps and
// --mode; null if not given.
#ifndef LM_DRIVER_RUN_RECORD_H
#define LM_DRIVER_RUN_RECORD_H
#include "driver/session.h"

// The values of run.json that the program and its recipe do not determine.
typedef struct lm_run_record {
  int64_t micro; // tokens of the micro-batch that was chosen; 0: not chosen
  bool less_memory, small_tiles, by_layer;
  int64_t steps;    // of --steps; 0: not given
  const char *mode; // of --mode; NULL: not given
} lm_run_record;

lm_status lm_run_record_write(const lm_session *s, const lm_recipe_overrides *options,
                              const char *dir);
// All zero if the folder has no run.json. LM_USER if it is malformed.
lm_status lm_run_record_read(lm_arena *a, const char *dir, lm_run_record *out);
#endif
