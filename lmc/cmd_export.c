// export.c - lmc export: a trained model as other programs read it.
#include <string.h>

#include "driver/weights/hf.h"
#include "driver/outputs.h"
#include "driver/trained.h"
#include "lmc/open.h"
#include "driver/weights/weights.h"

static const lm_opt options[] = {
    {.name = "format",
     .kind = LM_OPT_TEXT,
     .value = "hf",
     .help = "Hugging Face's: config.json, model.safetensors, tokenizer (hf)"},
    {.name = "out",
     .letter = 'o',
     .kind = LM_OPT_TEXT,
     .value = "DIR",
     .help = "the folder to write"},
    {.name = "dtype",
     .kind = LM_OPT_TEXT,
     .value = "f32|bf16|f16",
     .help = "what the weights are rounded to (f32)"},
    LM_OPT_STEP,
    LM_OPT_RECIPE,
    LM_OPT_JSON,
    {0}};

static const struct {
  const char *name, *torch;
  lm_st_dtype type;
} DTYPES[] = {
    {"f32", "float32", LM_ST_F32}, {"bf16", "bfloat16", LM_ST_BF16}, {"f16", "float16", LM_ST_F16}};

typedef struct exporter {
  lm_session *s;
  const char *dir;
  size_t dtype; // index into DTYPES
  size_t tensors;
  const char *config, *tokenizer; // what was written of them, for people; NULL: nothing
} exporter;

static lm_status options_read(const lm_args *a, exporter *x) {
  const char *format = lm_args_text(a, "format", "hf");
  const char *dtype = lm_args_text(a, "dtype", "f32");
  x->dir = lm_args_text(a, "out", NULL);
  if (!x->dir)
    return lm_fail(LM_USER, "--out DIR is missing: the folder to write");
  if (strcmp(format, "hf"))
    return lm_fail(LM_USER, "--format is hf, not '%s'", format);
  while (x->dtype < LM_COUNT(DTYPES) && strcmp(DTYPES[x->dtype].name, dtype))
    x->dtype++;
  return x->dtype < LM_COUNT(DTYPES)
             ? NULL
             : lm_fail(LM_USER, "--dtype is f32, bf16 or f16, not '%s'", dtype);
}

// ---- weights

static lm_status foreign_write(exporter *x, const lm_foreign_native *views) {
  lm_foreign *f;
  LM_TRY(lm_weights_foreign(x->s, views, &f));
  x->tensors = lm_foreign_count(f);
  lm_status status = lm_foreign_export(
      f, lm_path_join(x->s->ctx->arena, x->dir, "model.safetensors"), DTYPES[x->dtype].type);
  lm_foreign_destroy(f);
  return status;
}

static lm_status weights_write(exporter *x, const char *weights) {
  lm_session *s = x->s;
  float *params = lm_alloc((size_t)s->plan->arena_bytes[LM_ARENA_PARAM]);
  lm_status status = lm_trained_load(s, weights, params);
  if (!status)
    status = foreign_write(x, lm_weights_views(s->ctx->arena, s->plan, params));
  lm_free(params);
  return status;
}

// ---- what stands beside them

static lm_status json_write(exporter *x, const char *name, const json_t *j) {
  char *text = json_dumps(j, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
  lm_buf b = {0};
  lm_buf_printf(&b, "%s\n", text);
  lm_free(text);
  lm_status status = lm_file_write_atomic(lm_path_join(x->s->ctx->arena, x->dir, name), b.p, b.n);
  lm_buf_free(&b);
  return status;
}

static lm_status config_write(exporter *x) {
  const char *assumed;
  json_t *config = lm_hf_config_make(x->s, DTYPES[x->dtype].torch, &assumed);
  const char *type = json_string_value(json_object_get(config, "model_type"));
  x->config = type ? lm_arena_strndup(x->s->ctx->arena, type, strlen(type)) : NULL;
  if (!type)
    lm_cli_note("note: the tensors' names tell no architecture, so there is no config.json; map hf "
                "{ config { model_type = \"…\" } } gives one\n");
  if (assumed)
    lm_cli_note("note: config.json says %s, which nothing tells; map hf { config { … } } does\n",
                assumed);
  lm_status status = type ? json_write(x, "config.json", config) : NULL;
  json_decref(config);
  return status;
}

static void outcome_print(const exporter *x, bool json) {
  if (json) {
    lm_buf b = {0};
    lm_buf_puts(&b, "{\"folder\": ");
    lm_buf_json(&b, x->dir);
    lm_buf_printf(&b, ", \"tensors\": %zu, \"parameters\": %lld, \"model_type\": ", x->tensors,
                  (long long)x->s->params);
    if (x->config)
      lm_buf_json(&b, x->config);
    else
      lm_buf_puts(&b, "null");
    lm_cli_print("%s}\n", b.p);
    lm_buf_free(&b);
    return;
  }
  lm_cli_print("%s: model.safetensors (%zu tensors, %s)", x->dir, x->tensors,
               DTYPES[x->dtype].name);
  if (x->config)
    lm_cli_print(", config.json (%s)", x->config);
  if (x->tokenizer)
    lm_cli_print(", %s", x->tokenizer);
  lm_cli_print("\n");
}

static lm_status export_all(exporter *x, lm_cli *cli) {
  lm_session *s = x->s;
  const char *weights;
  LM_TRY(options_read(&cli->args, x));
  LM_TRY(lm_cli_open_trained(cli, s, &weights));
  if (!s->recipe->data.replays)
    LM_TRY(lm_session_tokenizer(s));
  LM_TRY(lm_trained_params(s));
  if (!s->lowered->n_maps)
    return lm_weights_no_map(s);
  const char *read[] = {cli->args.rest[0],
                        weights ? lm_path_dir(s->ctx->arena, weights) : s->recipe->from};
  LM_TRY(lm_output_check(x->dir, read, LM_COUNT(read)));
  LM_TRY(lm_dir_make(x->dir));
  LM_TRY(weights_write(x, weights));
  LM_TRY(config_write(x));
  if (s->tokenizer)
    LM_TRY(lm_hf_tokenizer_write(s, x->dir, &x->tokenizer));
  outcome_print(x, cli->json);
  return NULL;
}

static lm_status run(lm_cli *cli) {
  lm_session s = {0};
  exporter x = {.s = &s};
  lm_status status = export_all(&x, cli);
  lm_session_close(&s);
  return status;
}

const lm_command lm_cmd_export = {
    .name = "export",
    .usage = "RUN|FILE -o DIR [options]",
    .summary = "writes a trained model for transformers",
    .options = options,
    .least = 1,
    .most = 1,
    .run = run,
    .help = "The weights go out under the names and layouts of the model's `map hf`; config.json "
            "holds what its tensors and its\n"
            "`config { … }` tell. transformers loads the folder: "
            "AutoModelForCausalLM.from_pretrained(\"DIR\").\n\n"
            "  lmc export runs/quickstart --format hf -o quickstart-hf\n"};
