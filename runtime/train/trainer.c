// trainer.c - see trainer.h.
#include "runtime/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/hal/scale.h"
#include "runtime/hal/tensor.h"
#include "runtime/train/init.h"
#include "runtime/train/rank_sums.h"

typedef struct {
  const lm_plan_func *f;
  // For the last micro-batch of a step, which also adds the gradients of the ranks; NULL: `reduce`
  // adds them. Its ports are those of f.
  const lm_plan_func *last;
  lm_batch_ports in;
} micro_func; // for one sequence length

struct lm_trainer {
  lm_trainer_options o;
  const lm_plan_func *norm, *update;
  const lm_plan_func *reduce, *rates, *after_step; // optional
  const lm_plan_func *extra, *extra_rates;         // of an extra gradient; NULL: none
  int part, parts; // of the rows of a micro-batch, of which this rank has one
  micro_func *micros;
  int n_micros;
  int64_t extents[16]; // at capacity
  // of the current step
  int64_t step, tokens;
  double lr;
  int64_t rates_step; // the step whose rates were computed last, from 1
  const micro_func *micro;
  lm_scale_rule rule;
  lm_loss_scale loss_scale; // of the next gradients
  double applied;           // the loss scale of the gradients; 1: none
  // of the extra gradient of the current step
  bool extra_ran, extra_done; // done: states or parameters have changed
  double extra_loss;
};

static lm_status func_need(const lm_plan *p, lm_func_id id, const lm_plan_func **out) {
  *out = lm_plan_func_get(p, id, 0);
  return *out ? NULL
              : lm_fail(LM_BUG_STATUS, "the plan has no function %s", lm_func_table[id].name);
}

// A table has padding at its end (compiler/plan/chunks.c), which only some functions compute.
static lm_status tables_write(lm_trainer *t, const lm_plan_func *f) {
  for (int i = 0; i < t->o.n_tables; i++) {
    const lm_train_table *x = &t->o.tables[i];
    const lm_plan_port *p = lm_plan_port_get(f, x->port, false);
    if (!p)
      continue;
    if ((size_t)p->buf.bytes > x->bytes)
      return lm_fail(LM_BUG_STATUS, "table %s: %zu bytes for %lld", p->name, x->bytes,
                     (long long)p->buf.bytes);
    memcpy(lm_exec_port(t->o.exec, p), x->data, (size_t)p->buf.bytes);
  }
  return NULL;
}

// Precomputed batches must have the shape of the plan, and suffice for the run.
static lm_status data_check(const lm_trainer *t) {
  lm_data_info data = lm_data_info_of(t->o.data);
  const lm_batch_ports *in = &t->micros[0].in;
  int64_t rows = t->o.n_micro * t->parts * in->rows;
  if (data.seq != in->seq)
    return lm_fail(LM_USER, "the data's rows have %lld tokens, the model was compiled for %lld",
                   (long long)data.seq, (long long)in->seq);
  if (data.steps && data.batch_rows != rows)
    return lm_fail(
        LM_USER,
        "the data's batches have %lld rows, the recipe's have %lld: set batch = %lld tokens",
        (long long)data.batch_rows, (long long)rows, (long long)(data.batch_rows * data.seq));
  int64_t last = t->o.last ? t->o.last : t->o.steps;
  if (data.steps && data.steps < last)
    return lm_fail(LM_USER, "the run has %lld steps, the data has only %lld batches, one per step",
                   (long long)last, (long long)data.steps);
  return NULL;
}

// Opens @micro, which is the first, each @micro.N, and those of an extra gradient.
static lm_status micros_open(lm_trainer *t) {
  const lm_plan *p = t->o.plan;
  t->micros = lm_calloc((size_t)p->n_funcs + 1, sizeof *t->micros);
  LM_TRY(func_need(p, LM_FUNC_MICRO, &t->micros[t->n_micros++].f));
  for (int i = 0; i < p->n_funcs; i++)
    if (p->funcs[i].key.id == LM_FUNC_MICRO && &p->funcs[i] != t->micros[0].f)
      t->micros[t->n_micros++].f = &p->funcs[i];
  for (int i = 0; i < t->n_micros; i++) {
    lm_func_key last = t->micros[i].f->key;
    last.id = LM_FUNC_MICRO_LAST;
    t->micros[i].last = t->o.comm ? lm_plan_func_get_key(p, last) : NULL;
    LM_TRY(lm_batch_ports_open(t->o.exec, p, t->micros[i].f, &t->micros[i].in));
  }
  return NULL;
}

static lm_status trainer_open(lm_trainer *t) {
  const lm_plan *p = t->o.plan;
  LM_TRY(micros_open(t));
  LM_TRY(func_need(p, LM_FUNC_NORM, &t->norm));
  LM_TRY(func_need(p, LM_FUNC_UPDATE, &t->update));
  t->reduce = lm_plan_func_get(p, LM_FUNC_REDUCE, 0);
  t->rates = lm_plan_func_get(p, LM_FUNC_RATES, 0);
  t->after_step = lm_plan_func_get(p, LM_FUNC_AFTER_STEP, 0);
  t->extra = lm_plan_func_extra(p, LM_FUNC_UPDATE);
  t->extra_rates = lm_plan_func_extra(p, LM_FUNC_RATES);
  if (lm_plan_port_get(t->micros[0].f, LM_PORT_LOSS_SCALE, false))
    t->loss_scale = lm_loss_scale_first();
  t->parts = lm_plan_parts(p, &t->part);
  for (int i = 0; i < p->n_extents; i++)
    t->extents[i] = p->extents[i].capacity;
  return data_check(t);
}

lm_status lm_trainer_create(const lm_trainer_options *o, lm_trainer **out) {
  lm_trainer *t = lm_alloc(sizeof *t);
  t->o = *o;
  lm_status s = trainer_open(t);
  if (s)
    lm_trainer_destroy(t);
  *out = s ? NULL : t;
  return s;
}

void lm_trainer_destroy(lm_trainer *t) {
  if (!t)
    return;
  for (int i = 0; i < t->n_micros; i++)
    lm_batch_ports_close(&t->micros[i].in);
  lm_free(t->micros);
  lm_free(t);
}

const lm_trainer_options *lm_trainer_options_of(const lm_trainer *t) {
  return &t->o;
}

static bool is_zero(const lm_train_state *s) {
  return !s->is_param && s->value == 0 && !signbit(s->value);
}

// Also the padding of parameters, since the optimizer computes whole blocks.
static lm_status state_init(lm_trainer *t, int k, float *buffer) {
  const lm_train_state *s = &t->o.states[k];
  int64_t all = (int64_t)t->o.plan->n_blocks * LM_BLOCK;
  for (int64_t at = 0; at < all; at += LM_TENSOR_CHUNK) {
    int64_t n = all - at < LM_TENSOR_CHUNK ? all - at : LM_TENSOR_CHUNK;
    int64_t from = at * (int64_t)sizeof *buffer;
    int64_t bytes = n * (int64_t)sizeof *buffer;
    if (s->is_param)
      LM_TRY(lm_exec_read(t->o.exec, LM_ARENA_PARAM, from, bytes, buffer));
    for (int64_t i = 0; i < n && !s->is_param; i++)
      buffer[i] = (float)s->value;
    LM_TRY(lm_exec_write(t->o.exec, LM_ARENA_STATE, k * all * (int64_t)sizeof *buffer + from, bytes,
                         buffer));
  }
  return NULL;
}

// A state of one parameter.
static lm_status own_state_init(lm_trainer *t, const lm_plan_param *x, float *buffer) {
  const lm_plan *p = t->o.plan;
  const lm_plan_param *of = x->value_of ? lm_plan_param_find(p, x->value_of) : NULL;
  if (x->value_of && !of)
    return lm_fail(LM_BUG_STATUS, "state %s is of no parameter of the plan", x->path);
  for (int64_t at = 0; at < x->elements; at += LM_TENSOR_CHUNK) {
    int64_t n = x->elements - at < LM_TENSOR_CHUNK ? x->elements - at : LM_TENSOR_CHUNK;
    if (of)
      LM_TRY(lm_tensor_get(t->o.exec, p, (lm_plan_tensor){of, LM_ROLE_PARAM}, at, n, buffer));
    else
      lm_init_fill((lm_init){x->init, x->init_a, x->init_b}, 0, x->path, at, n, buffer);
    LM_TRY(lm_tensor_set(t->o.exec, p, (lm_plan_tensor){x, LM_ROLE_PARAM}, at, n, buffer));
  }
  return NULL;
}

lm_status lm_trainer_init_states(lm_trainer *t) {
  float *buffer = lm_alloc((size_t)lm_tensor_room(t->o.plan) * sizeof *buffer);
  lm_status s = NULL;
  lm_exec_arena_clear(t->o.exec, LM_ARENA_STATE);
  for (int i = 0; !s && i < t->o.plan->n_states; i++)
    if (!is_zero(&t->o.states[i]))
      s = state_init(t, i, buffer);
  for (int i = 0; !s && i < t->o.plan->n_own_states; i++)
    s = own_state_init(t, &t->o.plan->states[i], buffer);
  lm_free(buffer);
  return s;
}

// ---- gradients

static int64_t positions_used(const lm_batch_ports *b) {
  int64_t n = 0;
  for (int64_t i = 0; i < b->rows * b->seq; i++)
    n += b->batch.seg[i] >= 0;
  return n;
}

static const micro_func *micro_of(const lm_trainer *t, int64_t batch, bool extra) {
  int64_t seq = lm_data_seq(t->o.data, batch);
  for (int i = 0; i < t->n_micros; i++)
    if (t->micros[i].in.seq == seq && t->micros[i].f->key.extra == extra)
      return &t->micros[i];
  LM_BUG("the plan has no function for rows of %lld tokens", (long long)seq);
}

// Fills the arguments of a micro-batch while the device may still compute the one before.
static lm_status micro_fill(lm_trainer *t, int64_t step, int64_t batch, int64_t micro) {
  const micro_func *x = t->micro;
  double start = lm_timeline_now(t->o.timeline);
  int64_t rows = t->parts * x->in.rows;
  int64_t first = t->part * x->in.rows;
  LM_TRY(lm_data_fill_rows(t->o.data, batch, micro, t->o.n_micro, rows, first, x->in.rows,
                           &x->in.batch));
  lm_batch_ports_cut(&x->in);
  lm_timeline_add(t->o.timeline, LM_ROW_DATA, "rows of a micro-batch", NULL, micro, start);
  lm_port_set(t->o.exec, x->f, LM_PORT_STEP, (double)step);
  lm_port_set(t->o.exec, x->f, LM_PORT_ROW, (double)(micro * rows));
  lm_port_set(t->o.exec, x->f, LM_PORT_LOSS_SCALE, t->applied);
  t->tokens += positions_used(&x->in);
  return NULL;
}

static lm_status micro_run(lm_trainer *t, const lm_plan_func *f, bool first) {
  lm_exec *e = t->o.exec;
  lm_exec_defer(e);
  LM_TRY((first ? lm_exec_run_first : lm_exec_run)(e, f, t->extents));
  return lm_totals_add(e, f, first);
}

// Does not wait: the host fills the next rows while the device computes the current ones, and the
// results are summed on the device. The last micro-batch is deferred, so that a device starts it
// together with the update.
static lm_status micros_run(lm_trainer *t, int64_t step, int64_t batch) {
  const micro_func *x = t->micro;
  LM_TRY(micro_fill(t, step, batch, 0));
  for (int64_t m = 0; m + 1 < t->o.n_micro; m++) {
    LM_TRY(micro_run(t, x->f, m == 0));
    LM_TRY(lm_exec_submit(t->o.exec));
    LM_TRY(micro_fill(t, step, batch, m + 1));
  }
  return micro_run(t, x->last ? x->last : x->f, t->o.n_micro == 1);
}

static lm_status ranks_add(lm_trainer *t) {
  double start = lm_timeline_now(t->o.timeline);
  if (!t->o.comm)
    return NULL;
  LM_TRY(lm_rank_totals_add(t->o.comm, t->o.exec, t->o.plan, t->micro->f, &t->tokens));
  if (t->reduce && !t->micro->last)
    LM_TRY(lm_exec_run(t->o.exec, t->reduce, t->extents));
  lm_timeline_add(t->o.timeline, LM_ROW_RUN, "sums over the ranks", NULL, t->step, start);
  return NULL;
}

static lm_status finite_check(int64_t step, const char *what, double x) {
  if (isfinite(x))
    return NULL;
  return lm_fail(LM_USER, "step %lld: the %s is %s", (long long)step, what,
                 isnan(x) ? "not a number" : "infinite");
}

lm_status lm_step_check(int64_t step, const lm_step_result *r) {
  if (r->weight <= 0)
    return lm_fail(LM_USER,
                   "step %lld: the weights of its tokens sum to %g, so the step has no loss",
                   (long long)step, r->weight);
  LM_TRY(finite_check(step, "loss", r->loss));
  return finite_check(step, "gradient's norm", r->grad_norm);
}

// Starts @rates of a step, whose results depend on the step alone.
static lm_status rates_begin(lm_trainer *t, int64_t step) {
  if (!t->rates || t->rates_step == step)
    return NULL;
  lm_port_set(t->o.exec, t->rates, LM_PORT_STEP, (double)step);
  lm_port_set(t->o.exec, t->rates, LM_PORT_RUN, (double)t->o.steps);
  LM_TRY(lm_exec_run(t->o.exec, t->rates, t->extents));
  t->rates_step = step;
  return NULL;
}

static void rates_give(const lm_trainer *t, const lm_plan_func *rates, const lm_plan_func *update) {
  for (int i = 0; i < rates->n_out; i++) {
    const lm_plan_port *from = &rates->out[i];
    const lm_plan_port *to = lm_plan_port_find(update, from->name, false);
    if (to && from->rank == 0)
      lm_port_store(t->o.exec, to, lm_port_value(t->o.exec, from));
  }
}

// Gives the rates of a step to @update. A device computes them at the end of the step before, so
// that it does not wait for the host here; in the first step, and after a rollback, it does.
static lm_status rates_use(lm_trainer *t, int64_t step) {
  lm_exec *e = t->o.exec;
  LM_TRY(rates_begin(t, step));
  LM_TRY(lm_exec_wait(e));
  rates_give(t, t->rates, t->update);
  t->lr = lm_port_get(e, t->rates, LM_PORT_LR, 0);
  if (t->lr < 0)
    return lm_fail(LM_USER,
                   "step %lld: the learning rate is %g; a negative one would increase the loss. "
                   "Check lr and the schedule, whose step counts from 1 to run",
                   (long long)step, t->lr);
  return NULL;
}

static lm_status result_number(const lm_plan_func *f, lm_port_id id, int *out) {
  const lm_plan_port *p = lm_plan_port_get(f, id, true);
  *out = p ? (int)(p - f->out) : 0;
  return p ? NULL : lm_fail(LM_BUG_STATUS, "%s has no result %s", f->name, lm_port_table[id].name);
}

// The gradient of a loss over the batch of a step, and its norm.
static lm_status gradient_run(lm_trainer *t, int64_t step, int64_t batch, const micro_func *micro) {
  t->tokens = 0;
  t->micro = micro;
  LM_TRY(micros_run(t, step, batch));
  LM_TRY(ranks_add(t));
  lm_exec_defer(t->o.exec); // again, since the sums over the ranks wait
  LM_TRY(tables_write(t, t->norm));
  return lm_exec_run(t->o.exec, t->norm, t->extents);
}

// Runs @update.extra on the extra gradient. A bad one changes nothing, as in a step.
static lm_status extra_update(lm_trainer *t, int64_t step) {
  lm_exec *e = t->o.exec;
  const double *totals;
  int sum, weight;
  lm_port_set(e, t->extra_rates, LM_PORT_STEP, (double)step);
  lm_port_set(e, t->extra_rates, LM_PORT_RUN, (double)t->o.steps);
  LM_TRY(lm_exec_run(e, t->extra_rates, t->extents));
  LM_TRY(lm_totals_read(e, &totals)); // waits
  LM_TRY(result_number(t->micro->f, LM_PORT_SUM, &sum));
  LM_TRY(result_number(t->micro->f, LM_PORT_WEIGHT, &weight));
  double norm = lm_port_get(e, t->norm, LM_PORT_NORM, NAN);
  double scale = lm_scale_of(totals[sum], totals[weight], norm, t->applied, 0, INFINITY);
  rates_give(t, t->extra_rates, t->extra);
  lm_port_set(e, t->extra, LM_PORT_GRAD_SCALE, scale);
  lm_port_set(e, t->extra, LM_PORT_NORM, norm * scale);
  lm_port_set(e, t->extra, LM_PORT_WEIGHT, totals[weight]);
  lm_port_set(e, t->extra, LM_PORT_STEP, (double)step);
  t->extra_ran = true;
  t->extra_done = isfinite(scale);
  t->extra_loss = totals[sum] / totals[weight];
  return lm_exec_run(e, t->extra, t->extents);
}

// The extra gradient is that of the same batch. A step whose gradients are computed again, at
// another loss scale, takes it once.
static lm_status extra_run(lm_trainer *t, int64_t step, int64_t batch) {
  bool own = lm_plan_func_extra(t->o.plan, LM_FUNC_MICRO);
  bool due = t->extra && (step - 1) % t->extra->every == 0;
  t->extra_ran = due && t->extra_done;
  if (!due || t->extra_done)
    return NULL;
  double start = lm_timeline_now(t->o.timeline);
  LM_TRY(gradient_run(t, step, batch, micro_of(t, batch, own)));
  LM_TRY(extra_update(t, step));
  lm_timeline_add(t->o.timeline, LM_ROW_RUN, "extra gradient of step", NULL, step, start);
  return NULL;
}

lm_status lm_trainer_gradients(lm_trainer *t, int64_t step, int64_t batch) {
  double start = lm_timeline_now(t->o.timeline);
  t->step = step;
  t->applied = t->loss_scale.scale > 0 ? t->loss_scale.scale : 1;
  if (t->rates)
    LM_TRY(rates_use(t, step));
  LM_TRY(extra_run(t, step, batch));
  LM_TRY(gradient_run(t, step, batch, micro_of(t, batch, false)));
  lm_timeline_add(t->o.timeline, LM_ROW_RUN, "gradients of step", NULL, step, start);
  return NULL;
}

// ---- update

// Gives the states of blocks their next values; after a step that is skipped, by the same rule,
// they keep theirs.
static lm_status states_update(lm_trainer *t) {
  lm_scale_rule rule = t->rule;
  if (!t->after_step)
    return NULL;
  rule.scale = lm_plan_port_get(t->after_step, LM_PORT_GRAD_SCALE, false);
  if (rule.scale)
    LM_TRY(lm_totals_scale(t->o.exec, &rule));
  return lm_exec_run(t->o.exec, t->after_step, t->extents);
}

lm_status lm_trainer_update(lm_trainer *t, double limit) {
  double start = lm_timeline_now(t->o.timeline);
  t->rule = (lm_scale_rule){
      .norm = lm_plan_port_get(t->norm, LM_PORT_NORM, true),
      .scale = lm_plan_port_get(t->update, LM_PORT_GRAD_SCALE, false),
      .loss_scale = t->applied,
      .clip = t->o.clip,
      .limit = limit,
  };
  if (!t->rule.norm || !t->rule.scale)
    return lm_fail(LM_BUG_STATUS, "the plan has no norm, or its update no grad_scale");
  LM_TRY(result_number(t->micro->f, LM_PORT_SUM, &t->rule.sum));
  LM_TRY(result_number(t->micro->f, LM_PORT_WEIGHT, &t->rule.weight));
  LM_TRY(tables_write(t, t->update));
  lm_port_set(t->o.exec, t->update, LM_PORT_STEP, (double)t->step);
  lm_port_set(t->o.exec, t->update, LM_PORT_RUN, (double)t->o.steps);
  LM_TRY(lm_totals_scale(t->o.exec, &t->rule));
  LM_TRY(lm_exec_run(t->o.exec, t->update, t->extents));
  t->extra_done = false;
  LM_TRY(states_update(t));
  if (t->step < t->o.steps)
    LM_TRY(rates_begin(t, t->step + 1));
  lm_timeline_add(t->o.timeline, LM_ROW_RUN, "update of step", NULL, t->step, start);
  return NULL;
}

// ---- result

static bool is_emitted(const lm_plan_port *p) {
  return p->rank == 0 && p->id != LM_PORT_SUM && p->id != LM_PORT_WEIGHT;
}

static void totals_read(const lm_trainer *t, const double *totals, lm_step_result *r,
                        double *out_sum) {
  const lm_plan_func *f = t->micro->f;
  for (int i = 0; i < f->n_out; i++) {
    const lm_plan_port *p = &f->out[i];
    if (p->id == LM_PORT_SUM)
      *out_sum = totals[i];
    else if (p->id == LM_PORT_WEIGHT)
      r->weight = totals[i];
    else if (is_emitted(p) && r->n_emitted < LM_TRAIN_METRICS)
      r->emitted[r->n_emitted++] = (lm_metric){p->name, totals[i] / (double)t->o.n_micro};
  }
  if (t->extra_ran && r->n_emitted < LM_TRAIN_METRICS)
    r->emitted[r->n_emitted++] = (lm_metric){"extra_loss", t->extra_loss};
}

lm_status lm_trainer_result(lm_trainer *t, lm_step_result *out) {
  const double *totals;
  double sum = 0;
  *out = (lm_step_result){
      .lr = t->lr,
      .tokens = t->tokens,
      .loss_scale = t->loss_scale.scale > 0 ? t->applied : 0,
  };
  LM_TRY(lm_totals_read(t->o.exec, &totals));
  totals_read(t, totals, out, &sum);
  if (out->weight <= 0) { // the update changed nothing (hal/scale.h)
    out->loss = out->grad_norm = NAN;
    return NULL;
  }
  out->loss = sum / out->weight;
  double norm = lm_port_get(t->o.exec, t->norm, LM_PORT_NORM, NAN);
  out->grad_norm = norm / t->applied / out->weight;
  out->overflow = isfinite(out->loss) && !isfinite(norm) && out->loss_scale > 0 &&
                  lm_loss_scale_can_halve(&t->loss_scale);
  return NULL;
}

void lm_trainer_rescale(lm_trainer *t, const lm_step_result *r) {
  if (r->overflow || (r->loss_scale > 0 && isfinite(r->loss) && isfinite(r->grad_norm)))
    lm_loss_scale_move(&t->loss_scale, r->overflow);
}

lm_loss_scale lm_trainer_loss_scale(const lm_trainer *t) {
  return t->loss_scale;
}

void lm_trainer_set_loss_scale(lm_trainer *t, lm_loss_scale s) {
  if (t->loss_scale.scale > 0 && s.scale > 0)
    t->loss_scale = s;
}

static lm_status step_run(lm_trainer *t, int64_t step, int64_t batch, double limit,
                          lm_step_result *out) {
  LM_TRY(lm_trainer_gradients(t, step, batch));
  LM_TRY(lm_trainer_update(t, limit));
  LM_TRY(lm_trainer_result(t, out));
  lm_trainer_rescale(t, out);
  return NULL;
}

lm_status lm_trainer_step(lm_trainer *t, int64_t step, int64_t batch, double limit,
                          lm_step_result *out) {
  char name[32];
  snprintf(name, sizeof name, "step %lld", (long long)step);
  lm_exec_range(t->o.exec, name);
  lm_status s = step_run(t, step, batch, limit, out);
  lm_exec_range(t->o.exec, NULL);
  return s;
}

// ---- weights of evaluations

static lm_status exchange(const lm_trainer *t, lm_func_id id) {
  const lm_plan_func *f = lm_plan_func_get(t->o.plan, id, 0);
  return f ? lm_exec_run(t->o.exec, f, t->extents) : NULL;
}

lm_status lm_trainer_eval_begin(const lm_trainer *t) {
  return exchange(t, LM_FUNC_TO_EVAL);
}

lm_status lm_trainer_eval_end(const lm_trainer *t) {
  return exchange(t, LM_FUNC_TO_TRAIN);
}

// ---- check for finite values

// All bits of the exponent are set in infinities and NAN.
static bool all_finite(const float *x, int64_t n) {
  uint32_t found = 0, bits;
  for (int64_t i = 0; i < n; i++) {
    memcpy(&bits, &x[i], sizeof bits);
    found |= (bits & 0x7f800000) == 0x7f800000;
  }
  return !found;
}

static lm_status tensor_check(const lm_trainer *t, lm_plan_tensor x, float *buffer, bool *finite) {
  for (int64_t at = 0; *finite && at < x.param->elements; at += LM_TENSOR_CHUNK) {
    int64_t left = x.param->elements - at;
    int64_t n = left < LM_TENSOR_CHUNK ? left : LM_TENSOR_CHUNK;
    memset(buffer, 0, (size_t)n * sizeof *buffer); // elements of other ranks
    LM_TRY(lm_tensor_get(t->o.exec, t->o.plan, x, at, n, buffer));
    *finite = all_finite(buffer, n);
  }
  return NULL;
}

static lm_status param_check(const lm_trainer *t, const lm_plan_param *p, float *buffer,
                             bool *finite) {
  LM_TRY(tensor_check(t, (lm_plan_tensor){p, LM_ROLE_PARAM}, buffer, finite));
  for (int k = 0; k < t->o.plan->n_states; k++)
    LM_TRY(tensor_check(t, (lm_plan_tensor){p, LM_ROLE_STATE, k}, buffer, finite));
  return NULL;
}

lm_status lm_trainer_not_finite(const lm_trainer *t, const char **out) {
  const lm_plan *p = t->o.plan;
  float *buffer = lm_alloc((size_t)lm_tensor_room(t->o.plan) * sizeof *buffer);
  lm_status s = NULL;
  int found = 0; // parameters, then own states, from 1
  for (int i = 0; !s && !found && i < p->n_params + p->n_own_states; i++) {
    bool finite = true, own = i >= p->n_params;
    lm_plan_tensor state = {own ? &p->states[i - p->n_params] : NULL, LM_ROLE_PARAM};
    s = own ? tensor_check(t, state, buffer, &finite)
            : param_check(t, &p->params[i], buffer, &finite);
    found = finite ? 0 : 1 + i;
  }
  lm_free(buffer);
  if (!s)
    s = lm_comm_any(t->o.comm, "the check for finite values", &found);
  *out = s || !found            ? NULL
         : found <= p->n_params ? p->params[found - 1].path
                                : p->states[found - 1 - p->n_params].path;
  return s;
}
