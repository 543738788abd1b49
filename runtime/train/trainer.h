// trainer.h - one training step over a plan.
//
// What the functions of a plan are given and give, by port name (a port that a function does not
// need may be absent):
//   micro   in:  tok pos seg next [rows, seq] int, w [rows, seq] f32; step: int, from 1; row: int,
//   the first row of this
//                micro-batch in its step
//           out: sum, weight: f32; others are emitted metrics. Adds d(sum) / d(parameter) to the
//           gradient arena.
//   micro.N the same for rows of N places, where stages of the data change their length
//   norm    out: norm: f32, the square root of the sum of squares of the gradient arena
//   rates   in:  step: from 1; run: the run's steps. out: scalars (lr, bias corrections, …) for
//   update, by name update  in:  grad_scale: what gradients are multiplied by; step; run; the
//   results of rates; tables.
//                Changes parameters and optimizer states in place, nothing if grad_scale is not a
//                number.
//
// loss = Σ sum / Σ weight over the micro-batches; grad_norm = norm / Σ weight; grad_scale follows
// from both where they are (tally.h), so a device goes through a step without waiting for the host,
// and a bad one changes nothing. Sums over micro-batches are taken in float64, in order.
#ifndef LM_TRAIN_TRAINER_H
#define LM_TRAIN_TRAINER_H
#include "runtime/hal/totals.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/ports.h"

// An argument of update that never changes: an array as the plan lays it out, e.g. one rate scale
// for each block.
typedef struct lm_train_table {
  const char *port;
  const void *data;
  size_t bytes;
} lm_train_table;
// An optimizer state: its name in checkpoints, and its first value.
typedef struct lm_train_state {
  const char *name;
  bool is_param;
  double value;
} lm_train_state;

typedef struct lm_trainer_options {
  const lm_plan *plan;
  lm_exec *exec;
  const lm_data *data;   // must outlive the trainer
  int64_t steps;         // of the run, for schedules
  int64_t last;          // the last step that will be asked for; 0: steps
  int64_t n_micro;       // micro-batches in a step
  lm_timeline *timeline; // NULL: nobody looks
  double clip;           // greatest gradient norm; 0: no clipping
  const lm_train_table *tables;
  int n_tables;
  const lm_train_state *states; // [plan->n_states]
} lm_trainer_options;

enum {
  LM_TRAIN_METRICS = LM_TOTALS_MAX - 2 /* sum, weight */
};
typedef struct lm_step_result {       // loss and grad_norm may be anything, also no numbers
  double loss, weight, grad_norm, lr; // lr: 0 unless rates gives one
  int64_t tokens;                     // places that were not padding
  lm_metric emitted[LM_TRAIN_METRICS];
  int n_emitted; // means over the micro-batches
} lm_step_result;

typedef struct lm_trainer lm_trainer;
lm_status lm_trainer_create(const lm_trainer_options *o, lm_trainer **out);
void lm_trainer_destroy(lm_trainer *t); // NULL is fine
const lm_trainer_options *lm_trainer_options_of(const lm_trainer *t);
// First values of parameters (by their initialisers, from the seed) and of states (which may follow
// parameters: call this again, or lm_trainer_init_states, once parameters have been loaded from
// elsewhere).
void lm_trainer_init(lm_trainer *t, uint64_t seed);
void lm_trainer_init_states(lm_trainer *t);

// One step (from 1) is gradients, then update. `batch`: which one of the data, from 0. Between them
// the gradient arena holds d(Σ sum) / d(parameter), and nothing else was changed: a step may be
// left at that. Neither waits for a device.
lm_status lm_trainer_gradients(lm_trainer *t, int64_t step, int64_t batch);
// Of those gradients. Changes nothing if loss or norm are not finite, or the loss is above `limit`
// (INFINITY: none is).
lm_status lm_trainer_update(lm_trainer *t, double limit);
// Waits. Where the weights sum to 0 or less, loss and grad_norm are NAN and nothing was changed.
lm_status lm_trainer_result(lm_trainer *t, lm_step_result *out);
lm_status lm_trainer_step(lm_trainer *t, int64_t step, int64_t batch, double limit,
                          lm_step_result *out); // all three
// LM_USER if loss or norm are not finite or there was no weight, for callers that cannot leave a
// step out.
lm_status lm_step_check(int64_t step, const lm_step_result *r);
// The name of a parameter with an element that is not finite, itself or in its states; NULL if
// there is none.
const char *lm_trainer_not_finite(const lm_trainer *t);
#endif
