// trace.c - lmc trace: values of a few steps, to lay beside another framework's.
#include <math.h>
#include <string.h>

#include "lmc/open.h"
#include "lmc/output.h"
#include "driver/weights/weights.h"

static const lm_opt options[] = {{.name = "steps",
                                  .kind = LM_OPT_WHOLE,
                                  .value = "N",
                                  .help = "steps to run (the recipe's)",
                                  .least = 1,
                                  .most = 1e9},
                                 {.name = "out",
                                  .letter = 'o',
                                  .kind = LM_OPT_TEXT,
                                  .value = "FILE",
                                  .help = "the safetensors file to write"},
                                 {.name = "values",
                                  .kind = LM_OPT_TEXT,
                                  .value = "A,B",
                                  .help = "of loss,grad_norm,lr,logits,grads,params (all)"},
                                 {.name = "names",
                                  .kind = LM_OPT_TEXT,
                                  .value = "native|hf",
                                  .help = "names and layouts of tensors (native)"},
                                 LM_OPT_PASSES,
                                 LM_OPT_KERNELS,
                                 LM_OPT_TARGET,
                                 LM_OPT_RECIPE,
                                 LM_OPT_JSON,
                                 {0}};

enum {
  LOSS = 1,
  GRAD_NORM = 2,
  LR = 4,
  LOGITS = 8,
  GRADS = 16,
  PARAMS = 32,
  ALL = 63
};
static const char *const VALUES[] = {"loss", "grad_norm", "lr", "logits", "grads", "params"};

typedef struct tracer {
  lm_session *s;
  lm_arena *arena; // of all that will be written
  unsigned values;
  bool foreign;
  int64_t steps;
  lm_st_tensor *tensors;
  uint32_t n_tensors, cap_tensors;
  float *curves[3]; // loss, grad_norm, lr: [steps]
} tracer;

static lm_status values_parse(const char *text, unsigned *out) {
  *out = text ? 0 : ALL;
  for (const char *p = text; p;) {
    size_t n = strcspn(p, ","), i = 0;
    while (i < LM_COUNT(VALUES) && (strlen(VALUES[i]) != n || memcmp(VALUES[i], p, n)))
      i++;
    if (i == LM_COUNT(VALUES))
      return lm_fail(
          LM_USER,
          "--values has no '%.*s'; there are loss, grad_norm, lr, logits, grads and params", (int)n,
          p);
    *out |= 1u << i;
    p = p[n] ? p + n + 1 : NULL;
  }
  return NULL;
}

static float *tensor_add(tracer *t, const char *name, int rank, const int64_t *shape) {
  lm_st_tensor x = {.name = name, .dtype = LM_ST_F32, .rank = rank, .elements = 1};
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

static lm_status native_add(tracer *t, const char *prefix, const float *arena, double scale) {
  const lm_plan *plan = t->s->plan;
  for (int i = 0; i < plan->n_params; i++) {
    const lm_plan_param *p = &plan->params[i];
    if (p->rank > LM_ST_RANK)
      return lm_fail(LM_USER, "%s has %d axes, a file's tensors at most %d", p->path, p->rank,
                     LM_ST_RANK);
    float *out =
        tensor_add(t, lm_arena_printf(t->arena, "%s.%s", prefix, p->path), p->rank, p->shape);
    for (int64_t k = 0; k < p->elements; k++)
      out[k] = (float)(arena[p->offset + k] * scale);
  }
  return NULL;
}

static lm_status foreign_add(tracer *t, const char *prefix, float *arena, double scale) {
  lm_foreign *f;
  LM_TRY(lm_weights_foreign(t->s, lm_weights_views(t->arena, t->s->plan, arena), &f));
  for (size_t i = 0; i < lm_foreign_count(f); i++) {
    lm_st_tensor x;
    lm_foreign_describe(f, i, &x);
    float *out = tensor_add(t, lm_arena_printf(t->arena, "%s.%s", prefix, x.name), x.rank, x.shape);
    lm_foreign_gather(f, i, out);
    for (int64_t k = 0; k < x.elements; k++)
      out[k] = (float)(out[k] * scale);
  }
  lm_foreign_destroy(f);
  return NULL;
}

static lm_status arena_add(tracer *t, const char *prefix, lm_arena_id id, double scale) {
  float *arena = (float *)lm_exec_arena_read(t->s->exec, id);
  LM_TRY(lm_exec_wait(t->s->exec));
  return t->foreign ? foreign_add(t, prefix, arena, scale) : native_add(t, prefix, arena, scale);
}

// ---- logits

static lm_status logits_add(tracer *t) {
  const lm_session *s = t->s;
  const lm_plan_func *apply = lm_plan_func_find(s->plan, "apply");
  const lm_plan_port *logits = lm_plan_port_find(apply, "logits", true);
  lm_batch_ports in;
  LM_TRY(lm_batch_ports_open(s->exec, apply, &in));
  int64_t shape[3] = {s->run.n_micro * in.rows, in.seq, logits->shape[2]},
          part = in.rows * in.seq * shape[2];
  float *out = tensor_add(t, "logits", 3, shape);
  lm_status status = NULL;
  for (int64_t i = 0; !status && i < s->run.n_micro; i++) {
    status = lm_data_fill(s->data, 0, i, s->run.n_micro, in.rows, &in.batch);
    if (!status)
      status = lm_exec_call(s->exec, apply, NULL);
    if (!status)
      memcpy(out + i * part, lm_exec_port(s->exec, logits), (size_t)part * sizeof *out);
  }
  lm_batch_ports_close(&in);
  return status;
}

// ---- steps

static lm_status step_trace(tracer *t, int64_t step) {
  lm_step_result r;
  if (step == 1 && t->values & LOGITS)
    LM_TRY(logits_add(t));
  LM_TRY(lm_trainer_gradients(t->s->trainer, step, step - 1));
  LM_TRY(lm_trainer_result(t->s->trainer, &r));
  LM_TRY(lm_step_check(step, &r));
  if (step == 1 && t->values & GRADS)
    LM_TRY(arena_add(t, "grad", LM_ARENA_GRAD, 1 / r.weight));
  LM_TRY(lm_trainer_update(t->s->trainer, INFINITY));
  const double values[3] = {r.loss, r.grad_norm, r.lr};
  for (int i = 0; i < 3; i++)
    if (t->curves[i])
      t->curves[i][step - 1] = (float)values[i];
  return NULL;
}

static lm_status steps_trace(tracer *t) {
  for (int i = 0; i < 3; i++)
    if (t->values & 1u << i)
      t->curves[i] = tensor_add(t, VALUES[i], 1, &t->steps);
  for (int64_t step = 1; step <= t->steps; step++)
    LM_TRY(step_trace(t, step));
  return t->values & PARAMS ? arena_add(t, "final", LM_ARENA_PARAM, 1) : NULL;
}

static lm_status model_start(tracer *t) {
  lm_session *s = t->s;
  LM_TRY(lm_session_data(s));
  LM_TRY(lm_session_lower(s,
                          LM_LOWER_TRAIN | (t->foreign ? LM_LOWER_MAPS : 0) |
                              (t->values & LOGITS ? LM_LOWER_APPLY : 0),
                          0));
  LM_TRY(lm_session_plan(s));
  LM_TRY(lm_session_check_ids(s));
  LM_TRY(lm_session_start(s, NULL));
  return lm_session_train(s);
}

static void result_json(const tracer *t, const char *out) {
  lm_buf b = {0};
  lm_buf_puts(&b, "{\"file\": ");
  lm_buf_json(&b, out);
  lm_buf_printf(&b, ", \"tensors\": %u, \"steps\": %lld", t->n_tensors, (long long)t->steps);
  for (int i = 0; i < 3; i++) {
    if (!t->curves[i])
      continue;
    lm_buf_printf(&b, ", \"%s\": [", VALUES[i]);
    for (int64_t k = 0; k < t->steps; k++)
      lm_buf_printf(&b, "%s%.9g", k ? ", " : "", t->curves[i][k]);
    lm_buf_puts(&b, "]");
  }
  lm_cli_print("%s}\n", b.p);
  lm_buf_free(&b);
}

static lm_status trace(tracer *t, lm_cli *cli) {
  const char *out = lm_args_text(&cli->args, "out", NULL);
  const char *names = lm_args_text(&cli->args, "names", "native");
  t->foreign = !strcmp(names, "hf");
  if (!out)
    return lm_fail(LM_USER, "--out FILE is missing: the safetensors file to write");
  if (!t->foreign && strcmp(names, "native"))
    return lm_fail(LM_USER, "--names is native or hf, not '%s'", names);
  LM_TRY(values_parse(lm_args_text(&cli->args, "values", NULL), &t->values));
  t->s->variant = lm_cli_variant(cli);
  lm_cli_kernels(cli, t->s);
  LM_TRY(lm_cli_target(cli, &t->s->target));
  LM_TRY(lm_cli_open(cli, t->s));
  LM_TRY(lm_output_check_recipe(cli, t->s->recipe, out));
  LM_TRY(lm_output_file_check(out));
  t->s->last_step = lm_args_whole(&cli->args, "steps", 0);
  LM_TRY(model_start(t));
  t->steps = t->s->last_step ? t->s->last_step : t->s->run.steps;
  LM_TRY(steps_trace(t));
  LM_TRY(lm_st_write(out, t->tensors, t->n_tensors));
  if (cli->json)
    result_json(t, out);
  return NULL;
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  tracer t = {.s = &s, .arena = lm_arena_create()};
  lm_status status = trace(&t, cli);
  lm_arena_destroy(t.arena);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_trace = {
    .name = "trace",
    .usage = "FILE --out FILE [options]",
    .summary = "runs steps and writes loss, gradients, weights to compare",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "loss, grad_norm (before clipping) and lr are [N], one of each step; logits [b, t, "
            "vocab] and grad.NAME (of the mean\n"
            "loss, before clipping) are of the first step; final.NAME are the parameters after the "
            "last.\n\n"
            "  lmc trace tests/reference/gemma2/reference.lm --steps 8 --names hf --out "
            "trace.safetensors\n"};
