// cmd_trace.c - lmc trace: writes the values of a few steps, to compare with another framework.
#include <string.h>

#include "driver/ranks.h"
#include "driver/trace.h"
#include "lmc/open.h"
#include "driver/outputs.h"

static const lm_opt options[] = {
    {.name = "steps",
     .kind = LM_OPT_WHOLE,
     .value = "N",
     .help = "steps to run (the recipe's)",
     .least = 1,
     .most = 1e9},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "FILE",
     .help = "the safetensors file to write; an existing file is replaced"},
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
#include "lmc/ranks.def"
    LM_OPT_TARGET,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static lm_status values_parse(const char *text, unsigned *out) {
  *out = text ? 0 : (1u << LM_TRACE_VALUES) - 1;
  for (const char *p = text; p;) {
    size_t n = strcspn(p, ","), i = 0;
    while (i < LM_TRACE_VALUES &&
           (strlen(LM_TRACE_NAMES[i]) != n || memcmp(LM_TRACE_NAMES[i], p, n)))
      i++;
    if (i == LM_TRACE_VALUES)
      return lm_fail(
          LM_USER,
          "--values has no '%.*s'; there are loss, grad_norm, lr, logits, grads and params", (int)n,
          p);
    *out |= 1u << i;
    p = p[n] ? p + n + 1 : NULL;
  }
  return NULL;
}

static void result_json(const lm_trace *t) {
  lm_buf b = {0};
  lm_buf_puts(&b, "{\"file\": ");
  lm_buf_json(&b, t->o.path);
  lm_buf_printf(&b, ", \"tensors\": %u, \"steps\": %lld", t->n_tensors, (long long)t->steps);
  for (int i = 0; i < LM_TRACE_CURVES; i++) {
    if (!t->curves[i])
      continue;
    lm_buf_printf(&b, ", \"%s\": [", LM_TRACE_NAMES[i]);
    for (int64_t k = 0; k < t->steps; k++)
      lm_buf_printf(&b, "%s%.9g", k ? ", " : "", t->curves[i][k]);
    lm_buf_puts(&b, "]");
  }
  lm_cli_print("%s}\n", b.p);
  lm_buf_free(&b);
}

static lm_status options_read(lm_cli *cli, lm_trace_options *o) {
  const lm_args *a = &cli->args;
  const char *names = lm_args_text(a, "names", "native");
  o->path = lm_args_text(a, "out", NULL);
  o->foreign = !strcmp(names, "hf");
  if (!o->path)
    return lm_fail(LM_USER, "--out FILE is missing: the safetensors file to write");
  if (!o->foreign && strcmp(names, "native"))
    return lm_fail(LM_USER, "--names is native or hf, not '%s'", names);
  LM_TRY(values_parse(lm_args_text(a, "values", NULL), &o->values));
  o->s->variant = lm_cli_variant(cli);
  lm_cli_kernels(cli, o->s);
  LM_TRY(lm_cli_target(cli, &o->s->target));
  LM_TRY(lm_cli_open(cli, o->s));
  LM_TRY(lm_ranks_need(o->s));
  LM_TRY(lm_output_check_recipe(o->s->project.recipe, o->path));
  LM_TRY(lm_output_file_check(o->path));
  o->s->last_step = lm_args_whole(a, "steps", 0);
  return NULL;
}

static lm_status trace_run(lm_cli *cli) {
  lm_session s = {0};
  lm_trace t = {0};
  lm_trace_options o = {.s = &s};
  lm_status status = options_read(cli, &o);
  if (!status)
    status = lm_trace_run(&o, &t);
  if (!status && cli->json)
    result_json(&t);
  else if (!status)
    lm_cli_print("%s: %u tensors of %lld steps\n", lm_shown(cli->ctx->arena, o.path), t.n_tensors,
                 (long long)t.steps);
  lm_trace_free(&t);
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
    .run = trace_run,
    .help = "loss, grad_norm (before clipping) and lr are [N], one of each step; logits [b, t, "
            "vocab] and grad.NAME (of the mean loss, before clipping) are of the first step; "
            "final.NAME are the parameters after the last.\n"
            "\n"
            "  lmc trace examples/quickstart.lm --steps 8 --names hf -o t.safetensors\n"};
