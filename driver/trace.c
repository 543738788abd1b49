// trace.c - the values of a few steps, to compare with another framework.
#include "driver/trace.h"

#include <math.h>
#include <string.h>

#include "driver/ranks.h"
#include "driver/weights/weights.h"
#include "runtime/train/rank_tensors.h"

const char *const LM_TRACE_NAMES[LM_TRACE_VALUES] = {"loss",   "grad_norm", "lr",
                                                     "logits", "grads",     "params"};

static float *tensor_add(lm_trace *t, const char *name, int rank, const int64_t *shape) {
  lm_st_tensor x = {
      .name = name,
      .dtype = LM_ST_F32,
      .rank = rank,
      .elements = 1,
  };
  for (int i = 0; i < rank; i++) {
    x.shape[i] = shape[i];
    x.elements *= shape[i];
  }
  float *data = LM_NEW_N(t->arena, float, x.elements);
  x.data = data;
  LM_PUSH(t->arena, t->tensors, t->n_tensors, t->cap_tensors) = x;
  return data;
}

// ---- parameters and gradients

static lm_status native_add(lm_trace *t, const char *prefix, lm_port_role role, lm_weights w,
                            double scale) {
  const lm_plan *plan = t->o.s->compiled.plan;
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    if (role == LM_ROLE_GRAD && lm_lowered_is_state(t->o.s->compiled.lowered, p->path))
      continue;
    if (p->rank > LM_ST_RANK)
      return lm_fail(LM_USER, "%s has %d axes, a file's tensors at most %d", p->path, p->rank,
                     LM_ST_RANK);
    float *out =
        tensor_add(t, lm_arena_printf(t->arena, "%s.%s", prefix, p->path), p->rank, p->shape);
    for (int64_t k = 0; k < p->elements; k++)
      out[k] = (float)(((const float *)w.host[i].data)[k] * scale);
  }
  return NULL;
}

// True if a foreign tensor holds states of blocks, which have no gradient.
static bool foreign_is_state(const lm_lowered *l, const char *name) {
  for (uint32_t i = 0; i < l->n_maps; i++)
    if (!strcmp(l->maps[i].foreign, name))
      return lm_lowered_is_state(l, l->maps[i].native);
  return false;
}

static lm_status foreign_add(lm_trace *t, const char *prefix, lm_port_role role, lm_weights w,
                             double scale) {
  const lm_lowered *l = t->o.s->compiled.lowered;
  lm_foreign *f;
  LM_TRY(lm_weights_foreign(&t->o.s->compiled, t->arena, w, &f));
  for (size_t i = 0; i < lm_foreign_count(f); i++) {
    lm_st_tensor x;
    lm_foreign_describe(f, i, &x);
    if (role == LM_ROLE_GRAD && foreign_is_state(l, x.name))
      continue;
    float *out = tensor_add(t, lm_arena_printf(t->arena, "%s.%s", prefix, x.name), x.rank, x.shape);
    lm_foreign_gather(f, i, out);
    for (int64_t k = 0; k < x.elements; k++)
      out[k] = (float)(out[k] * scale);
  }
  lm_foreign_destroy(f);
  return NULL;
}

// Fills `out`, on rank 0, with a whole tensor, of which each rank may have a part, as f32.
static lm_status tensor_get(const lm_session *s, lm_plan_tensor x, float *out) {
  enum {
    ELEMENTS = LM_ST_CHUNK / sizeof(float) // of a chunk
  };
  lm_rank_tensors all = {s->comm, s->execution.exec, s->compiled.plan};
  const lm_dtype_info *type = &lm_dtype_table[lm_plan_tensor_dtype(x)];
  int64_t room = x.param->elements < ELEMENTS ? x.param->elements : ELEMENTS;
  void *chunk = lm_alloc((size_t)room * (size_t)type->bits / 8);
  lm_status status = NULL;
  for (int64_t at = 0; !status && at < x.param->elements; at += ELEMENTS) {
    int64_t left = x.param->elements - at, n = left < ELEMENTS ? left : ELEMENTS;
    status = lm_rank_tensor_collect(&all, x, at, n, 0, chunk);
    if (!status && lm_comm_is_first(s->comm))
      lm_st_to_f32(type->stored, chunk, 0, n, out + at);
  }
  lm_free(chunk);
  return status;
}

// Makes the tensors of w those of f32 and fills them.
static lm_status weights_get(const lm_session *s, lm_port_role role, lm_weights w) {
  const lm_plan *plan = s->compiled.plan;
  for (int i = 0; i < plan->n_params; i++) {
    lm_foreign_native *to = &w.host[i];
    lm_free(to->data);
    to->dtype = LM_ST_F32;
    to->data = lm_calloc((size_t)to->elements, sizeof(float));
    LM_TRY(tensor_get(s, (lm_plan_tensor){&plan->params[i], role}, to->data));
  }
  return NULL;
}

static lm_status weights_add(lm_trace *t, const char *prefix, lm_port_role role, double scale) {
  const lm_plan *plan = t->o.s->compiled.plan;
  lm_weights w = lm_weights_alloc(plan, true);
  lm_status s = weights_get(t->o.s, role, w);
  if (!s)
    s = (t->o.foreign ? foreign_add : native_add)(t, prefix, role, w, scale);
  lm_weights_free(w);
  return s;
}

// ---- logits

static lm_status logits_add(lm_trace *t) {
  const lm_session *s = t->o.s;
  const lm_plan_func *apply = lm_plan_func_get(s->compiled.plan, LM_FUNC_APPLY, 0);
  const lm_plan_port *logits = lm_plan_port_get(apply, LM_PORT_LOGITS, true);
  lm_batch_ports in;
  LM_TRY(lm_batch_ports_open(s->execution.exec, s->compiled.plan, apply, &in));
  // Every rank has the logits of all rows.
  int64_t rows = logits->shape[0], first = 0;
  int own, parts = lm_plan_parts(s->compiled.plan, &own);
  if (rows > in.rows)
    first = own * (rows / parts);
  if (logits->rank > LM_ST_RANK)
    return lm_fail(LM_USER, "the output has %d axes, a file's tensors at most %d", logits->rank,
                   LM_ST_RANK);
  int64_t shape[LM_ST_RANK] = {s->run.n_micro * rows};
  int64_t part = rows;
  for (int i = 1; i < logits->rank; i++)
    part *= shape[i] = logits->shape[i];
  float *out = tensor_add(t, "logits", logits->rank, shape);
  lm_status status = NULL;
  for (int64_t i = 0; !status && i < s->run.n_micro; i++) {
    status = lm_data_fill_rows(s->data, 0, i, s->run.n_micro, rows, first, in.rows, &in.batch);
    if (!status)
      status = lm_exec_call(s->execution.exec, apply, NULL);
    if (!status)
      memcpy(out + i * part, lm_exec_port(s->execution.exec, logits), (size_t)part * sizeof *out);
  }
  lm_batch_ports_close(&in);
  return status;
}

// ---- steps

// The gradients of a step. A trace has no steps that are skipped: if they overflow f16, they are
// computed again at half the loss scale.
static lm_status gradients_trace(lm_trainer *t, int64_t step, lm_step_result *r) {
  do {
    LM_TRY(lm_trainer_gradients(t, step, step - 1));
    LM_TRY(lm_trainer_result(t, r));
    lm_trainer_rescale(t, r);
  } while (r->overflow);
  return lm_step_check(step, r);
}

static lm_status step_trace(lm_trace *t, int64_t step) {
  lm_step_result r;
  if (step == 1 && t->o.values & LM_TRACE_LOGITS)
    LM_TRY(logits_add(t));
  LM_TRY(gradients_trace(t->o.s->execution.trainer, step, &r));
  double loss_scale = r.loss_scale > 0 ? r.loss_scale : 1;
  if (step == 1 && t->o.values & LM_TRACE_GRADS)
    LM_TRY(weights_add(t, "grad", LM_ROLE_GRAD, 1 / r.weight / loss_scale));
  LM_TRY(lm_trainer_update(t->o.s->execution.trainer, INFINITY));
  const double values[3] = {r.loss, r.grad_norm, r.lr};
  for (int i = 0; i < 3; i++)
    if (t->curves[i])
      t->curves[i][step - 1] = (float)values[i];
  return NULL;
}

static lm_status steps_trace(lm_trace *t) {
  for (int i = 0; i < 3; i++)
    if (t->o.values & 1u << i)
      t->curves[i] = tensor_add(t, LM_TRACE_NAMES[i], 1, &t->steps);
  for (int64_t step = 1; step <= t->steps; step++)
    LM_TRY(step_trace(t, step));
  return t->o.values & LM_TRACE_PARAMS ? weights_add(t, "final", LM_ROLE_PARAM, 1) : NULL;
}

static lm_status model_start(lm_trace *t) {
  lm_session *s = t->o.s;
  LM_TRY(lm_ranks_data(s));
  LM_TRY(lm_session_compile(s,
                            LM_LOWER_TRAIN | (t->o.foreign ? LM_LOWER_MAPS : 0) |
                                (t->o.values & LM_TRACE_LOGITS ? LM_LOWER_APPLY : 0),
                            0));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_ranks_session_start(s, NULL));
  return lm_session_train(s);
}

lm_status lm_trace_run(const lm_trace_options *o, lm_trace *t) {
  *t = (lm_trace){
      .o = *o,
      .arena = lm_arena_create(),
  };
  LM_TRY(model_start(t));
  t->steps = o->s->last_step ? o->s->last_step : o->s->run.steps;
  LM_TRY(steps_trace(t));
  bool writes = lm_comm_is_first(o->s->comm);
  lm_status written = writes ? lm_st_write(o->path, t->tensors, t->n_tensors) : NULL;
  return lm_comm_settle(o->s->comm, "the file of the trace", written);
}

void lm_trace_free(lm_trace *t) {
  if (t->arena)
    lm_arena_destroy(t->arena);
}
