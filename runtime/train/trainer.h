// trainer.h - one training step over a plan.
//
// The plan has the functions micro (for each sequence length), norm, rates and update of
// contract/functions.def; a port that a function does not need may be absent. Results of micro that
// are not in the table are emitted metrics, the results of rates are arguments of update by name.
//
// loss = Σ sum / Σ weight over the micro-batches; grad_norm = norm / Σ weight. grad_scale is
// computed from both on the device (hal/totals.h), so that the device does not wait for the host,
// and a bad step changes nothing. Sums over micro-batches are in float64, in order.
//
// With several ranks each computes its part of every micro-batch, as the plan says. At the end of
// the step @reduce adds the gradients, and the host the totals, in the order of the ranks, so all
// ranks have the same bits and make the same update.
#ifndef LM_TRAIN_TRAINER_H
#define LM_TRAIN_TRAINER_H
#include "runtime/comm/comm.h"
#include "runtime/hal/totals.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/train/loss_scale.h"
#include "runtime/train/ports.h"

// A constant argument of norm and update: an array in the plan's layout, e.g. one learning-rate
// factor per block.
typedef struct lm_train_table {
  lm_port_id port;
  const void *data;
  size_t bytes;
} lm_train_table;
// An optimizer state.
typedef struct lm_train_state {
  const char *name; // prefix in checkpoints
  bool is_param;    // initialized with the parameter's value, else with `value`
  double value;
} lm_train_state;

typedef struct lm_trainer_options {
  const lm_plan *plan;
  lm_exec *exec;
  const lm_data *data;   // must outlive the trainer
  int64_t steps;         // of the run, for schedules
  int64_t last;          // the last step that the caller will run; 0: steps
  int64_t n_micro;       // calls of @micro in a step
  int64_t pipeline;      // micro-batches of a call, which pass through stages; 0: it is one
  lm_timeline *timeline; // optional
  lm_comm *comm;         // the ranks of the plan's mesh; NULL: one process
  double clip;           // maximum gradient norm; 0: no clipping
  const lm_train_table *tables;
  int n_tables;
  const lm_train_state *states; // [plan->n_states]
} lm_trainer_options;

enum {
  LM_TRAIN_METRICS = LM_TOTALS_MAX - 2 /* sum, weight */
};
typedef struct lm_step_result {
  double loss, grad_norm; // may be NAN or infinite
  double weight;
  double loss_scale; // of this step; 0: the model has none
  bool overflow;     // the gradient is not finite at a loss scale that can be halved
  double lr;         // 0 if rates has no result lr
  int64_t tokens;    // positions that are not padding
  lm_metric emitted[LM_TRAIN_METRICS]; // means over the micro-batches
  int n_emitted;
} lm_step_result;

// The number of micro-batches of a step.
static inline int64_t lm_trainer_micros(const lm_trainer_options *o) {
  return o->n_micro * (o->pipeline ? o->pipeline : 1);
}

typedef struct lm_trainer lm_trainer;
lm_status lm_trainer_create(const lm_trainer_options *o, lm_trainer **out);
void lm_trainer_destroy(lm_trainer *t); // t may be NULL
const lm_trainer_options *lm_trainer_options_of(const lm_trainer *t);
// Initializes the states of the optimizer, after the parameters: some states are copies of them.
lm_status lm_trainer_init_states(lm_trainer *t);

// Computes the gradients of a step (from 1) on batch `batch` of the data (from 0). Afterwards the
// gradient arena holds d(Σ sum) / d(parameter), times the loss scale if the model has one. Does not
// wait for the device. If the optimizer takes an extra gradient, the steps 1, 1 + every, … compute
// that first, wait, and change states by @update.extra, or parameters until lm_trainer_update.
// Nothing else has changed, so the caller may compute the gradients of the step again.
lm_status lm_trainer_gradients(lm_trainer *t, int64_t step, int64_t batch);
// Updates parameters and states from these gradients. Changes nothing if the loss or the norm is
// not finite, or the loss exceeds `limit` (INFINITY: no limit). Does not wait for the device.
lm_status lm_trainer_update(lm_trainer *t, double limit);
// Waits for the device. If the weights sum to 0 or less, loss and grad_norm are NAN and nothing was
// updated.
lm_status lm_trainer_result(lm_trainer *t, lm_step_result *out);
// Gradients, update, result, and the loss scale of the next step.
lm_status lm_trainer_step(lm_trainer *t, int64_t step, int64_t batch, double limit,
                          lm_step_result *out);
// Gives the loss scale its value for the next step; nothing if the model has none.
void lm_trainer_rescale(lm_trainer *t, const lm_step_result *r);
// scale 0: the model has none. Setting it changes nothing then, and if `s` is 0.
lm_loss_scale lm_trainer_loss_scale(const lm_trainer *t);
void lm_trainer_set_loss_scale(lm_trainer *t, lm_loss_scale s);
// For callers that cannot skip a step. LM_USER: the loss or the norm is not finite, or the weights
// sum to 0 or less.
lm_status lm_step_check(int64_t step, const lm_step_result *r);
// If the optimizer evaluates with other weights than it trains (its `eval`): begin gives the
// parameters those weights, end gives them the trained ones. Both do nothing otherwise.
lm_status lm_trainer_eval_begin(const lm_trainer *t);
lm_status lm_trainer_eval_end(const lm_trainer *t);
// *out: the name of a parameter that has an element that is not finite, in the parameter or in its
// states, on any rank; NULL: all are finite. All ranks call it.
lm_status lm_trainer_not_finite(const lm_trainer *t, const char **out);
#endif
