// import.c - lmc import: weights of Hugging Face's into a model of the language.
//
// DIR holds config.json, *.safetensors, a tokenizer; the model says by its `map hf` what they are called there. A key of
// its `config { … }` that is the bare name of one of its parameters is read from config.json; every other key must agree.
// What is written can be run, generated from and exported as any run's folder:
//   imported.lm         the model with its numbers, and a recipe to go on training with
//   program/…           the files of the model
//   model.safetensors   the weights under the model's own names
//   program.json        what is asked for by name of the folder
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "lmc/bundle.h"
#include "lmc/hf.h"
#include "lmc/output.h"
#include "lmc/trained.h"
#include "lmc/weights.h"

static const lm_opt options[] = {
  {.name = "model", .letter = 'm', .kind = LM_OPT_TEXT, .value = "FILE:NAME", .help = "the model; NAME may be a call such as Llama(d = 512)"},
  {.name = "out", .letter = 'o', .kind = LM_OPT_TEXT, .value = "DIR", .help = "the folder to write"},
  LM_OPT_JSON, {0}};

typedef struct importer {
  lm_cli *cli;
  lm_arena *arena;
  const char *from, *dir;              // folders
  const char *file, *name;             // of --model
  json_t *config;                      // NULL: DIR has none
  lm_program *program;                 // of FILE
  const char *call;                    // the instance as text: "Llama(depth = 2, d = 64)"
  lm_buf text;                         // of imported.lm
} importer;

static bool exists(importer *x, const char *name) { return !access(lm_path_join(x->arena, x->from, name), R_OK); }
static char *out_path(const importer *x, const char *name) { return lm_path_join(x->arena, x->dir, name); }

static lm_status options_read(importer *x) {
  const lm_args *a = &x->cli->args;
  const char *model = lm_args_text(a, "model", NULL), *colon = model ? strrchr(model, ':') : NULL;
  x->from = a->rest[1];
  x->dir = lm_args_text(a, "out", NULL);
  if (strcmp(a->rest[0], "hf")) return lm_fail(LM_USER, "lmc import reads hf, not '%s'", a->rest[0]);
  if (!x->dir) return lm_fail(LM_USER, "--out DIR is missing: the folder to write");
  if (!colon || colon == model || !colon[1]) return lm_fail(LM_USER, "--model FILE:NAME is missing, such as --model llama.lm:Llama");
  x->file = lm_arena_strndup(x->arena, model, (size_t)(colon - model));
  x->name = colon + 1;
  if (access(x->from, R_OK)) return lm_fail(LM_USER, "there is no folder %s", x->from);
  return exists(x, "config.json") ? lm_json_read(lm_path_join(x->arena, x->from, "config.json"), 16 << 20, &x->config) : NULL;
}

// ---- the model's numbers

static lm_status model_find(importer *x, lm_decl_ref *out) {
  lm_ctx *c = x->cli->ctx;
  x->program = lm_program_load(c, x->file);
  LM_TRY(lm_cli_verdict(x->cli));
  lm_sym name = lm_intern_n(c->intern, x->name, strcspn(x->name, "( "));
  *out = lm_program_find(x->program, x->program->files[0], name);
  if (out->decl && (out->decl->kind == DC_MODEL || out->decl->kind == DC_MODEL_INST)) return NULL;
  int n;
  const char *const *names = lm_program_names(x->program, x->program->files[0], DC_MODEL, &n);
  const char *near = lm_nearest(name, names, n);
  return near ? lm_fail(LM_USER, "%s has no model '%s'; did you mean '%s'?", x->file, name, near) : lm_fail(LM_USER, "%s has no model '%s'", x->file, name);
}

// Whether the call's text already gives the argument.
static bool is_given(const char *call, const char *param) {
  size_t n = strlen(param);
  for (const char *p = call; (p = strstr(p, param)); p += n) {
    const char *after = p + n + strspn(p + n, " ");
    if (p > call && strchr("(, ", p[-1]) && *after == '=') return true;
  }
  return false;
}

static void arg_add(importer *x, lm_buf *b, const lm_config_param *p, bool *first) {
  json_t *value = lm_hf_config_get(x->config, p->key);
  if (!json_is_number(value) || is_given(x->name, p->param) || is_given(b->p, p->param)) return;
  lm_buf_printf(b, "%s%s = ", *first ? "" : ", ", p->param);
  if (json_is_integer(value)) lm_buf_printf(b, "%lld", (long long)json_integer_value(value));
  else lm_json_number(b, json_real_value(value));
  *first = false;
}

// "Llama", or "Llama(d = 512)" with more arguments behind.
static const char *call_make(importer *x, const ast_decl *model) {
  lm_buf b = {0};
  size_t n = strlen(x->name);
  bool called = x->name[n - 1] == ')', first = !called || x->name[n - 2] == '(';
  lm_buf_printf(&b, "%.*s", (int)(called ? n - 1 : n), x->name);
  lm_buf_puts(&b, called ? "" : "(");
  lm_config_params params = lm_config_params_of(x->cli->ctx, model);
  for (uint32_t i = 0; x->config && i < params.n; i++) arg_add(x, &b, &params.v[i], &first);
  const char *text = lm_arena_printf(x->arena, "%s)", b.p);
  lm_buf_free(&b);
  return text;
}

static lm_status call_find(importer *x, const char **out_model) {
  lm_decl_ref ref;
  LM_TRY(model_find(x, &ref));
  *out_model = ref.decl->name.text;
  if (ref.decl->kind == DC_MODEL) {
    x->call = call_make(x, ref.decl);
    return NULL;
  }
  lm_buf b = {0};
  lm_expr_write(ref.decl->inst, &b);
  x->call = lm_arena_strndup(x->arena, b.p, b.n);
  *out_model = lm_arena_strndup(x->arena, b.p, strcspn(b.p, "("));
  lm_buf_free(&b);
  return NULL;
}

// ---- imported.lm

static const char *const OUTPUTS[] = {"imported.lm", "program", "model.safetensors"};   // beside program.json and
static const char *const TOKENIZER_FILES[] = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"};

static const char *tokenizer_of(importer *x) {
  if (exists(x, "tokenizer.json")) return "bpe(\"tokenizer.json\")";
  if (exists(x, "vocab.json") && exists(x, "merges.txt")) return "bpe(\"vocab.json\", \"merges.txt\")";
  return "bytes()";
}

static void text_make(importer *x, const char *model, const char *main) {
  lm_buf_printf(&x->text, "# %s with the weights of %s.\nimport \"program/%s\": %s\n\nmodel Imported = %s from \"model.safetensors\"\n\n", model, x->from, main, model, x->call);
  lm_buf_printf(&x->text,
                "# To go on training: name the text, then lmc run.\ndata Text {\n  tokenizer = %s\n  source text = text(\"*.txt\")\n"
                "  holdout dev = tail(1%%)\n  pack best_fit(seq = 512 tokens)\n}\n\n"
                "recipe Tune {\n  model = Imported\n  data = Text\n  run = 1 epochs; batch = 8Ki tokens\n"
                "  optimizer = adamw(lr = 1e-4, betas = (0.9, 0.95), decay = 0.1)\n  schedule = warmup_cosine(warmup = 20 steps, floor = 10%%)\n"
                "  clip = global_norm(max = 1.0)\n  eval dev { data = Text.dev; every = 100 steps; metrics = [loss, perplexity] }\n"
                "  save = checkpoint(\"tuned\", every = 100 steps, keep = 2)\n}\n",
                tokenizer_of(x));
}

static lm_status file_copy(importer *x, const char *name) {
  lm_buf text = {0};
  lm_status s = lm_file_read(lm_path_join(x->arena, x->from, name), (size_t)1 << 30, &text);
  if (!s) s = lm_file_write_atomic(out_path(x, name), text.p, text.n);
  lm_buf_free(&text);
  return s;
}

static lm_status program_write(importer *x) {
  static const char manifest[] = "{\n  \"main\": \"../imported.lm\",\n  \"recipe\": \"Tune\",\n  \"set\": []\n}\n";
  const char *model, *main;
  LM_TRY(call_find(x, &model));
  LM_TRY(lm_dir_make(x->dir));
  LM_TRY(lm_bundle_copy(x->arena, x->program, x->dir, &main));
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++)
    if (exists(x, TOKENIZER_FILES[i])) LM_TRY(file_copy(x, TOKENIZER_FILES[i]));
  text_make(x, model, main);
  LM_TRY(lm_file_write_atomic(out_path(x, "imported.lm"), x->text.p, x->text.n));
  return lm_file_write_atomic(out_path(x, "program.json"), manifest, strlen(manifest));
}

// ---- weights

// Keys that change what is computed; a model that says nothing of them computes what their usual value means.
static const struct { const char *key, *usual; } MATTERS[] = {
  {"rope_scaling", "null"}, {"rope_type", "\"default\""}, {"use_sliding_window", "false"}, {"attn_logit_softcapping", "null"},
  {"final_logit_softcapping", "null"}, {"partial_rotary_factor", "1.0"}, {"scale_attn_by_inverse_layer_idx", "false"}};

static bool is_declared(const lm_lowered *l, const char *key) {
  for (uint32_t i = 0; i < l->n_config; i++)
    if (!strcmp(l->config[i].key, key)) return true;
  return false;
}

static void silence_warn(const importer *x, const lm_lowered *l) {
  for (size_t i = 0; x->config && i < LM_COUNT(MATTERS); i++) {
    json_t *value = lm_hf_config_get(x->config, MATTERS[i].key), *usual = json_loads(MATTERS[i].usual, JSON_DECODE_ANY, NULL);
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (value && !json_is_null(value) && !json_equal(value, usual) && !is_declared(l, MATTERS[i].key))
      lm_cli_note("note: config.json has %s = %s, of which the model's config says nothing\n", MATTERS[i].key, text);
    lm_free(text);
    json_decref(usual);
  }
}

static lm_status weights_write(importer *x, lm_session *s) {
  LM_TRY(lm_session_open(s, x->cli, out_path(x, "imported.lm"), NULL, NULL, 0));
  LM_TRY(lm_trained_params(s));
  if (x->config) LM_TRY(lm_hf_config_check(s, x->config, lm_path_join(x->arena, x->from, "config.json")));
  silence_warn(x, s->lowered);
  float *params = lm_alloc((size_t)s->plan->arena_bytes[LM_ARENA_PARAM]);
  lm_status status = lm_weights_import(s, x->from, params);
  if (!status) status = lm_weights_save(s, out_path(x, "model.safetensors"), params);
  lm_free(params);
  return status;
}

static void outcome_print(const importer *x, const lm_session *s) {
  lm_buf b = {0};
  if (x->cli->json) {
    lm_buf_puts(&b, "{\"folder\": ");
    lm_buf_json(&b, x->dir);
    lm_buf_puts(&b, ", \"model\": ");
    lm_buf_json(&b, x->call);
    lm_buf_printf(&b, ", \"tensors\": %d, \"parameters\": %lld}\n", s->plan->n_params, (long long)s->params);
  } else {
    lm_show_count(&b, (double)s->params);
    lm_buf_printf(&b, " parameters in %d tensors, as %s\nnext: lmc generate %s --prompt '...'\n", s->plan->n_params, x->call, lm_show_word(x->arena, x->dir));
  }
  lm_cli_print("%s", b.p);
  lm_buf_free(&b);
}

// ---- a failure leaves what stood in the folder before

typedef struct { bool folder, of[LM_COUNT(OUTPUTS)], tokenizer[LM_COUNT(TOKENIZER_FILES)]; } standing;

static bool stands(const importer *x, const char *name) { return !access(out_path(x, name), F_OK); }

static standing standing_of(const importer *x) {
  standing was = {.folder = !access(x->dir, F_OK)};
  for (size_t i = 0; i < LM_COUNT(OUTPUTS); i++) was.of[i] = stands(x, OUTPUTS[i]);
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++) was.tokenizer[i] = stands(x, TOKENIZER_FILES[i]);
  return was;
}

// The failure itself is the one to tell.
static void output_remove(const importer *x, const char *name) { lm_status_free(lm_path_remove(out_path(x, name))); }

static void outputs_remove(const importer *x, const standing *was) {
  for (size_t i = 0; i < LM_COUNT(OUTPUTS); i++)
    if (!was->of[i]) output_remove(x, OUTPUTS[i]);
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++)
    if (!was->tokenizer[i]) output_remove(x, TOKENIZER_FILES[i]);
  output_remove(x, "program.json");    // no folder of a run, even if it was
  if (!was->folder) rmdir(x->dir);
}

static lm_status import(importer *x) {
  lm_session s = {0};
  LM_TRY(options_read(x));
  LM_TRY(lm_output_check(x->dir, &x->from, 1));
  LM_TRY(lm_output_check(out_path(x, "imported.lm"), &x->file, 1));
  standing was = standing_of(x);
  lm_status status = program_write(x);
  if (!status) status = weights_write(x, &s);
  if (!status) outcome_print(x, &s);
  else outputs_remove(x, &was);
  lm_session_close(&s);
  return status;
}

static lm_status run(lm_cli *cli) {
  importer x = {.cli = cli, .arena = cli->ctx->arena};
  lm_status status = import(&x);
  json_decref(x.config);
  lm_buf_free(&x.text);
  return status;
}

const lm_command lm_cmd_import = {
  .name = "import", .usage = "hf DIR --model FILE:NAME -o DIR [options]", .summary = "reads a model of Hugging Face's", .options = options,
  .least = 2, .most = 2, .run = run,
  .help = "Sizes come from config.json where the model's `map hf { config { … } }` ties them to its parameters, weights through\n"
          "its map; every tensor must find its place. The folder that is written can be generated from, run and exported.\n\n"
          "  lmc import hf ckpt/qwen --model examples/llama.lm:Llama -o runs/qwen\n"};
