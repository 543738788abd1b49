// import.c - a Hugging Face model as a run folder.
//
// The model is the one of examples/zoo for config.json's model_type, or the one that the caller
// names; its `map hf` gives the foreign names of its parameters. Keys of its `config { … }` that
// can be inverted to a parameter of the model set that parameter; every other key that affects the
// computation must agree (hf_config.c).
#include "driver/weights/import.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "driver/bundle.h"
#include "driver/request.h"
#include "driver/text.h"
#include "driver/tokenizer_files.h"
#include "driver/trained.h"
#include "driver/weights/hf.h"
#include "driver/weights/import_check.h"
#include "driver/weights/import_folder.h"
#include "driver/weights/weights.h"
#include "driver/weights/zoo.h"
#include "runtime/base/utf8.h"
#include "runtime/io/json.h"

typedef struct importer {
  lm_ctx *ctx;
  const lm_events *events;
  lm_arena *arena;
  const char *from, *dir;  // folders
  const char *file, *name; // of the model
  const lm_zoo_model *zoo; // NULL: --model was given
  json_t *config;          // in its canonical form; NULL: DIR has none
  const char *const *ignored;
  int n_ignored;
  lm_program *program;   // of FILE
  const char *tokenizer; // of DIR, as in a recipe; NULL: it has none
  bool unmapped;         // the model itself has no `map hf`
  bool causal;           // it has `apply`
  bool has_columns;      // its loss takes columns that text does not have
  const char *request;   // lm_request_option
  const char *start;     // the text of decoder_start_token_id; NULL: unknown
  const char *call;      // the instance as text: "Llama(depth = 2, d = 64)"
  lm_buf text;           // of imported.lm
} importer;

static bool exists(importer *x, const char *name) {
  return !access(lm_path_join(x->arena, x->from, name), R_OK);
}
static char *out_path(const importer *x, const char *name) {
  return lm_path_join(x->arena, x->dir, name);
}

static lm_status config_read(importer *x) {
  const char *path = lm_path_join(x->arena, x->from, "config.json");
  json_t *j;
  if (!exists(x, "config.json"))
    return NULL;
  LM_TRY(lm_json_read_python(path, 16 << 20, &j));
  if (json_is_object(j))
    x->config = lm_hf_config_canonical(j);
  json_decref(j);
  return x->config ? NULL : lm_fail(LM_USER, "%s is not a JSON object", path);
}

static lm_status ignored_check(const importer *x) {
  for (int i = 0; i < x->n_ignored; i++)
    if (strcmp(x->ignored[i], "*") && !lm_hf_config_at(x->config, x->ignored[i]))
      return lm_fail(LM_USER, "--ignore-config %s: %s/config.json has no such key", x->ignored[i],
                     x->from);
  return NULL;
}

static lm_status named_model(importer *x, const char *model) {
  const char *colon = strrchr(model, ':');
  if (!colon || colon == model || !colon[1])
    return lm_fail(LM_USER, "--model takes FILE:NAME, such as --model llama.lm:Llama");
  x->file = lm_arena_strndup(x->arena, model, (size_t)(colon - model));
  x->name = colon + 1;
  return NULL;
}

static lm_status zoo_model(importer *x) {
  const char *type = json_string_value(json_object_get(x->config, "model_type"));
  if (!type)
    return lm_fail(
        LM_USER,
        "%s has no config.json with a model_type, so --model FILE:NAME must name the model",
        x->from);
  x->zoo = lm_zoo_find(type);
  if (!x->zoo)
    return lm_fail(LM_USER,
                   "%s/config.json: model_type \"%s\" has no ready model; there are %s; a model of "
                   "your own is named by --model FILE:NAME",
                   x->from, lm_shown(x->arena, type), lm_zoo_types(x->arena));
  x->name = x->zoo->model;
  x->file = lm_path_join(x->arena, lm_path_join(x->arena, x->dir, "program"), x->zoo->file);
  return NULL;
}

// A name such as org/model is that of a model on Hugging Face's hub.
static lm_status no_folder(const char *path) {
  const char *slash = strchr(path, '/');
  bool hub = slash && slash[1] && !strchr(slash + 1, '/') && *path != '/' && *path != '.';
  if (hub)
    return lm_fail(LM_USER,
                   "there is no folder %s; a model of Hugging Face's hub is downloaded before: hf "
                   "download %s --local-dir DIR",
                   path, path);
  return lm_fail(LM_USER, "there is no folder %s", path);
}

static lm_status source_read(importer *x, const lm_import_options *o) {
  x->from = o->from;
  x->dir = o->dir;
  x->ignored = o->ignored;
  x->n_ignored = o->n_ignored;
  if (access(x->from, R_OK))
    return no_folder(x->from);
  if (access(lm_path_join(x->arena, x->from, "."), F_OK) && errno == ENOTDIR)
    return lm_fail(LM_USER, "%s is a file; name the folder of the model", x->from);
  LM_TRY(config_read(x));
  LM_TRY(ignored_check(x));
  LM_TRY(lm_import_numbers_check(x->config, lm_path_join(x->arena, x->from, "config.json")));
  return o->model ? named_model(x, o->model) : zoo_model(x);
}

// ---- the arguments of the model

static lm_status model_find(importer *x, lm_decl_ref *out) {
  lm_ctx *c = x->ctx;
  x->program = lm_program_load(c, x->file);
  LM_TRY(lm_verdict(x->ctx));
  lm_sym name = lm_intern_n(c->intern, x->name, strcspn(x->name, "( "));
  *out = lm_program_find(x->program, x->program->files[0], name);
  if (out->decl && (out->decl->kind == DC_MODEL || out->decl->kind == DC_MODEL_INST))
    return NULL;
  int n;
  const char *const *names = lm_program_names(x->program, x->program->files[0], DC_MODEL, &n);
  const char *near = lm_nearest(name, names, n);
  return near ? lm_fail(LM_USER, "%s has no model '%s'; did you mean '%s'?", x->file, name, near)
              : lm_fail(LM_USER, "%s has no model '%s'", x->file, name);
}

// True if the call's text already gives the argument.
static bool is_given(const char *call, const char *param) {
  size_t n = strlen(param);
  for (const char *p = call; (p = strstr(p, param)); p += n) {
    const char *after = p + n + strspn(p + n, " ");
    if (p > call && strchr("(, ", p[-1]) && *after == '=')
      return true;
  }
  return false;
}

// The text of the parameter's default, NULL if it has none.
static const char *default_text(importer *x, const ast_decl *model, const char *param) {
  lm_buf b = {0};
  const char *text = NULL;
  for (uint32_t i = 0; i < model->sig.n_params; i++) {
    if (strcmp(model->sig.params[i].name.text, param) || !model->sig.params[i].init)
      continue;
    lm_expr_write(model->sig.params[i].init, &b);
    text = lm_arena_strndup(x->arena, b.p, b.n);
  }
  lm_buf_free(&b);
  return text;
}

static const char *literal(importer *x, const json_t *value) {
  lm_buf b = {0};
  if (json_is_boolean(value))
    lm_buf_puts(&b, json_is_true(value) ? "true" : "false");
  else if (json_is_string(value))
    lm_buf_json(&b, json_string_value(value));
  else if (json_is_integer(value))
    lm_buf_printf(&b, "%lld", (long long)json_integer_value(value));
  else if (json_is_real(value))
    lm_json_number(&b, json_real_value(value));
  const char *text = b.n ? lm_arena_strndup(x->arena, b.p, b.n) : NULL;
  lm_buf_free(&b);
  return text;
}

// The value of the parameter in config.json, as text of the language; NULL: there is none, or it is
// the default.
static const char *arg_text(importer *x, const ast_decl *model, const lm_config_param *p) {
  json_t *value = lm_hf_config_at(x->config, p->key);
  if (lm_hf_config_names(x->ignored, x->n_ignored, p->key))
    return NULL; // "*" takes every usable key
  bool null = value ? json_is_null(value) : strchr(p->key, '.') != NULL;
  if (!null)
    return value ? literal(x, value) : NULL;
  const char *usual = default_text(x, model, p->param);
  return p->absent && !(usual && !strcmp(usual, p->absent)) ? p->absent : NULL;
}

static void arg_add(importer *x, const ast_decl *model, lm_buf *b, const lm_config_param *p,
                    bool *first) {
  const char *text = arg_text(x, model, p);
  if (!text || is_given(x->name, p->param) || is_given(b->p, p->param))
    return;
  lm_buf_printf(b, "%s%s = %s", *first ? "" : ", ", p->param, text);
  *first = false;
}

// "Llama", or "Llama(d = 512)" with more arguments behind.
static const char *call_make(importer *x, const ast_decl *model) {
  lm_buf b = {0};
  size_t n = strlen(x->name);
  bool called = x->name[n - 1] == ')';
  bool first = !called || x->name[n - 2] == '(';
  lm_buf_printf(&b, "%.*s", (int)(called ? n - 1 : n), x->name);
  lm_buf_puts(&b, called ? "" : "(");
  lm_config_params params = lm_config_params_of(x->ctx, model);
  for (uint32_t i = 0; x->config && i < params.n; i++)
    arg_add(x, model, &b, &params.v[i], &first);
  const char *text = lm_arena_printf(x->arena, "%s)", b.p);
  lm_buf_free(&b);
  return text;
}

// LM_USER if an argument that config.json gives a model of the zoo is a name that none computes. A
// model that the caller names may know more of them.
static lm_status names_check(importer *x, const ast_decl *model) {
  const char *path = lm_path_join(x->arena, x->from, "config.json");
  lm_config_params params = lm_config_params_of(x->ctx, model);
  for (uint32_t i = 0; x->zoo && i < params.n; i++) {
    const char *key = params.v[i].key;
    if (!lm_hf_config_ignores(x->ignored, x->n_ignored, key))
      LM_TRY(lm_import_name_check(key, lm_hf_config_at(x->config, key), path));
  }
  return NULL;
}

static lm_status call_find(importer *x, const char **out_model) {
  lm_decl_ref ref;
  LM_TRY(model_find(x, &ref));
  *out_model = ref.decl->name.text;
  x->causal = true;
  if (ref.decl->kind == DC_MODEL) {
    LM_TRY(names_check(x, ref.decl));
    x->unmapped = !lm_model_has_map(x->ctx, ref.decl);
    x->causal = lm_model_has_apply(x->ctx, ref.decl);
    x->has_columns = lm_model_columns_of(x->ctx, ref.decl).n > 0;
    x->request = lm_request_option(x->ctx, ref.decl);
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

static const char *const OUTPUTS[] = {"imported.lm", "program", "model.safetensors",
                                      "token_ids.json"}; // beside program.json and
static const char *const TOKENIZER_FILES[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json",   "chat_template.jinja",
    "vocab.json",     "merges.txt",      "special_tokens_map.json", "generation_config.json"};

static void ignored_write(void *user, const char *key, const json_t *value) {
  importer *x = user;
  if (!lm_hf_config_ignores(x->ignored, x->n_ignored, key) ||
      lm_hf_key_find(key).meaning == LM_HF_IGNORED)
    return;
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  lm_buf_printf(&x->text, "# Not checked (--ignore-config): config.json says %s = %s.\n",
                lm_shown(x->arena, key), lm_shown(x->arena, text));
  lm_free(text);
}

// The usual 512, or the largest power of two that a model of fewer positions knows.
static int sequence_length(const importer *x) {
  json_int_t most = json_integer_value(json_object_get(x->config, "max_position_embeddings"));
  if (!most)
    most = json_integer_value(json_object_get(x->config, "n_positions"));
  int length = 512;
  while (most > 0 && length > most)
    length /= 2;
  return length;
}

static const char TUNE_TEXT[] =
    "# To fine-tune: put text beside this file, or name it here, then lmc run.\n"
    "data Text {\n  tokenizer = %s\n  source text = text(\"*.txt\")\n"
    "  holdout dev = tail(1%%)\n  pack best_fit(seq = %d tokens)\n}\n\n"
    "recipe Tune {\n  model = Imported\n  data = Text\n  run = 1 epoch; batch = 8Ki tokens\n"
    "  optimizer = adamw(lr = 1e-4, betas = (0.9, 0.95), decay = 0.1)\n"
    "  schedule = warmup_cosine(warmup = 20 steps, floor = 10%%)\n"
    "  clip = global_norm(max = 1.0)\n"
    "  eval dev { data = Text.dev; every = 100 steps; metrics = [%s] }\n"
    "  save = checkpoint(\"tuned\", every = 100 steps, keep = 2)\n}\n";
static const char TUNE_BATCHES[] =
    "# To fine-tune: put batches.safetensors beside this file, with the columns of the model.\n"
    "data Batches { source rows = batches(\"batches.safetensors\") }\n\n"
    "recipe Tune {\n  model = Imported\n  data = Batches\n  run = 1 epoch\n"
    "  optimizer = adamw(lr = 1e-4, betas = (0.9, 0.95), decay = 0.1)\n"
    "  schedule = warmup_cosine(warmup = 20 steps, floor = 10%%)\n"
    "  clip = global_norm(max = 1.0)\n"
    "  save = checkpoint(\"tuned\", every = 100 steps, keep = 2)\n}\n";

static const char TUNE_PAIRS[] =
    "# To fine-tune: put pairs.jsonl beside this file, a line for each pair of texts:\n"
    "# {\"source\": \"a text to encode\", \"target\": \"the text to predict\"}\n"
    "data Pairs {\n  tokenizer = %s\n  source pairs = seq2seq(\"pairs.jsonl\", start = %s)\n"
    "  holdout dev = tail(1%%)\n  long = drop; pack best_fit(seq = %d tokens)\n}\n\n"
    "recipe Tune {\n  model = Imported\n  data = Pairs\n  run = 1 epoch; batch = 8Ki tokens\n"
    "  optimizer = adamw(lr = 1e-4, betas = (0.9, 0.95), decay = 0.1)\n"
    "  schedule = warmup_cosine(warmup = 20 steps, floor = 10%%)\n"
    "  clip = global_norm(max = 1.0)\n"
    "  eval dev { data = Pairs.dev; every = 100 steps; metrics = [loss, perplexity] }\n"
    "  save = checkpoint(\"tuned\", every = 100 steps, keep = 2)\n}\n";

static bool has_pairs(const importer *x) {
  return x->request && !strcmp(x->request, "source") && x->tokenizer && x->start;
}

static const char FROM[] = " from \"model.safetensors\"";

static void text_make(importer *x, const char *model, const char *main) {
  lm_buf_printf(&x->text, "# %s with the weights of %s.\n", model, lm_shown(x->arena, x->from));
  lm_hf_config_each(x->config, ignored_write, x);
  lm_buf_puts(&x->text, "import ");
  lm_buf_json(&x->text, lm_path_join(x->arena, "program", main));
  lm_buf_printf(&x->text, ": %s\n\nmodel Imported = %s%s\n\n", model,
                lm_call_wrap(x->arena, strlen("model Imported = "), x->call, strlen(FROM)), FROM);
  if (has_pairs(x)) {
    lm_buf start = {0};
    lm_buf_json(&start, x->start);
    lm_buf_printf(&x->text, TUNE_PAIRS, x->tokenizer, start.p, sequence_length(x));
    lm_buf_free(&start);
  } else if (x->has_columns)
    lm_buf_printf(&x->text, TUNE_BATCHES);
  else
    lm_buf_printf(&x->text, TUNE_TEXT, x->tokenizer ? x->tokenizer : "bytes()", sequence_length(x),
                  x->causal ? "loss, perplexity" : "loss");
}

// The files of a tokenizer, in the order of preference, which is the order of a run folder.
static const char *const TOKENIZERS[][2] = {
    {"tokenizer.json"}, {"tokenizer.model"}, {"vocab.json", "merges.txt"}};

static const char *const *tokenizer_files(importer *x) {
  for (size_t i = 0; i < LM_COUNT(TOKENIZERS); i++)
    if (exists(x, TOKENIZERS[i][0]) && (!TOKENIZERS[i][1] || exists(x, TOKENIZERS[i][1])))
      return TOKENIZERS[i];
  return NULL;
}

static bool has_start(const importer *x) {
  return json_is_integer(json_object_get(x->config, "decoder_start_token_id"));
}

// The text that is encoded as the token with which the decoder begins.
static const char *start_find(const importer *x, const lm_tokenizer *t) {
  json_int_t id = json_integer_value(json_object_get(x->config, "decoder_start_token_id"));
  size_t n = 0;
  if (!has_start(x) || id < 0 || id >= t->vocab)
    return NULL;
  const char *piece = lm_tokenizer_piece(t, (int32_t)id, &n);
  lm_tokens ids = {0};
  lm_status_free(n ? lm_tokenizer_encode(t, piece, n, &ids) : NULL);
  bool same = ids.n == 1 && ids.ids[0] == id && lm_utf8_valid(piece, n) == n;
  lm_tokens_free(&ids);
  return same ? lm_arena_strndup(x->arena, piece, n) : NULL;
}

// Rejects a tokenizer that generate, run and eval would reject later.
static lm_status tokenizer_check(importer *x) {
  const char *const *files = tokenizer_files(x);
  lm_tokenizer *t = NULL;
  if (!files) {
    lm_event_note(x->events,
                  "%s has no tokenizer; imported.lm declares bytes(), which the "
                  "model was not trained with: give token ids",
                  x->from);
    return NULL;
  }
  const char *path = lm_path_join(x->arena, x->from, files[0]);
  const char *merges = files[1] ? lm_path_join(x->arena, x->from, files[1]) : NULL;
  lm_status s = lm_tokenizer_open(path, merges, &t);
  if (s)
    return lm_annotate(s, "the tokenizer cannot be used; a copy of the folder without it imports "
                          "the weights alone");
  int64_t vocab = t->vocab;
  const char *kind = lm_tokenizer_names[t->kind];
  x->start = start_find(x, t);
  x->tokenizer = merges ? lm_arena_printf(x->arena, "%s(\"%s\", \"%s\")", kind, files[0], files[1])
                        : lm_arena_printf(x->arena, "%s(\"%s\")", kind, files[0]);
  lm_tokenizer_destroy(t);
  return lm_import_vocab_check(x->config, x->from, vocab);
}

static lm_status file_copy(importer *x, const char *name) {
  lm_buf text = {0};
  lm_status s = lm_file_read(lm_path_join(x->arena, x->from, name), (size_t)1 << 30, &text);
  if (!s)
    s = lm_file_write_atomic(out_path(x, name), text.p, text.n);
  lm_buf_free(&text);
  return s;
}

// The ids of special tokens, which the model's text does not hold.
static lm_status token_ids_write(const importer *x) {
  json_t *ids = json_object();
  for (int i = 0; i < LM_HF_TOKEN_ID_KEYS; i++) {
    json_t *id = json_object_get(x->config, LM_HF_TOKEN_IDS[i]);
    if (id)
      json_object_set(ids, LM_HF_TOKEN_IDS[i], id);
  }
  char *text = json_dumps(ids, JSON_INDENT(2));
  const char *path = out_path(x, LM_COMPANION_NAMES[LM_COMPANION_TOKEN_IDS]);
  lm_status status = lm_file_write_atomic(path, text, strlen(text));
  lm_free(text);
  json_decref(ids);
  return status;
}

// Writes the files of the model to DIR/program: a file of the zoo, or the program that --model
// names.
static lm_status model_copy(importer *x, const char **out_main) {
  if (!x->zoo)
    return lm_bundle_copy(x->arena, x->program, x->dir, out_main);
  *out_main = x->zoo->file; // written before the program was loaded
  return NULL;
}

static lm_status zoo_write(const importer *x) {
  const char *text = lm_zoo_text(x->zoo);
  LM_TRY(lm_dir_make(lm_path_dir(x->arena, x->file)));
  return lm_file_write_atomic(x->file, text, strlen(text));
}

static lm_status program_write(importer *x) {
  const char *model, *main;
  LM_TRY(lm_dir_make(x->dir));
  if (x->zoo)
    LM_TRY(zoo_write(x));
  LM_TRY(call_find(x, &model));
  LM_TRY(model_copy(x, &main));
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++)
    if (exists(x, TOKENIZER_FILES[i]))
      LM_TRY(file_copy(x, TOKENIZER_FILES[i]));
  if (x->config)
    LM_TRY(token_ids_write(x));
  text_make(x, model, main);
  return lm_file_write_atomic(out_path(x, "imported.lm"), x->text.p, x->text.n);
}

static lm_status manifest_write(const importer *x, lm_session *s) {
  lm_fingerprint tokenizer = {0};
  LM_TRY(lm_session_tokenizer(s));
  lm_tokenizer_files_add(s, &tokenizer);
  return lm_import_manifest_write(x->dir, &x->text, &tokenizer);
}

// ---- weights

// The instance with its arguments from config.json, which the model may not support.
static lm_status instance_open(importer *x, lm_session *s) {
  lm_status status = lm_session_open(s, x->ctx, x->events,
                                     &(lm_recipe_choice){.path = out_path(x, "imported.lm")});
  if (!status)
    status = manifest_write(x, s);
  if (!status)
    status = lm_trained_params(s, 0);
  if (status && x->unmapped && x->ctx->n_errors)
    lm_event_note(x->events,
                  "model %s has no `map hf { … }`, which ties its parameters to config.json and to "
                  "the names of the tensors in %s",
                  x->call, x->from);
  else if (status && x->config && x->ctx->n_errors)
    lm_event_note(x->events, "%s/config.json requires %s, which this model does not compute",
                  x->from, x->call);
  return status;
}

static lm_status weights_write(importer *x, lm_session *s) {
  LM_TRY(instance_open(x, s));
  if (x->config)
    LM_TRY(lm_hf_config_check(s, x->config, lm_path_join(x->arena, x->from, "config.json"),
                              x->ignored, x->n_ignored));
  const lm_plan *plan = s->compiled.plan;
  LM_TRY(lm_annotate(lm_import_memory_check(x->arena, plan), "%s", x->from));
  lm_weights w = lm_weights_alloc(plan, false);
  lm_status status = lm_weights_import(&s->compiled, x->from, w);
  if (!status)
    status = lm_annotate(lm_import_finite_check(w), "%s", x->from);
  if (!status)
    status = lm_weights_save(&s->compiled, out_path(x, "model.safetensors"), w);
  lm_weights_free(w);
  return status;
}

// ---- the folder is unchanged after an error

typedef struct {
  bool folder, of[LM_COUNT(OUTPUTS)], tokenizer[LM_COUNT(TOKENIZER_FILES)];
} existing;

static bool output_exists(const importer *x, const char *name) {
  return !access(out_path(x, name), F_OK);
}

static existing existing_outputs(const importer *x) {
  existing was = {.folder = !access(x->dir, F_OK)};
  for (size_t i = 0; i < LM_COUNT(OUTPUTS); i++)
    was.of[i] = output_exists(x, OUTPUTS[i]);
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++)
    was.tokenizer[i] = output_exists(x, TOKENIZER_FILES[i]);
  return was;
}

// LM_USER if the folder holds files that were not written by an earlier import.
static lm_status outputs_check(const importer *x) {
  bool own;
  LM_TRY(lm_import_folder_check(x->dir, &own));
  for (size_t i = 0; i < LM_COUNT(OUTPUTS) && !own; i++)
    if (output_exists(x, OUTPUTS[i]))
      return lm_import_refuse(x->dir, OUTPUTS[i]);
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES) && !own; i++)
    if (output_exists(x, TOKENIZER_FILES[i]))
      return lm_import_refuse(x->dir, TOKENIZER_FILES[i]);
  return NULL;
}

// The error that led here is the one to report.
static void output_remove(const importer *x, const char *name) {
  lm_status_free(lm_path_remove(out_path(x, name)));
}

static void outputs_remove(const importer *x, const existing *was) {
  for (size_t i = 0; i < LM_COUNT(OUTPUTS); i++)
    if (!was->of[i])
      output_remove(x, OUTPUTS[i]);
  for (size_t i = 0; i < LM_COUNT(TOKENIZER_FILES); i++)
    if (!was->tokenizer[i])
      output_remove(x, TOKENIZER_FILES[i]);
  output_remove(x, "program.json"); // the folder is no longer a run folder
  if (!was->folder)
    rmdir(x->dir);
}

static const char *next_command(const importer *x) {
  const char *dir = lm_show_word(x->arena, x->dir);
  bool starts = x->request && has_start(x);
  const char *prompt = starts ? "" : x->tokenizer ? " --prompt '...'" : " --prompt-ids 1,2,3";
  const char *ids = x->tokenizer ? "" : " --ids";
  const char *request = !x->request                      ? ""
                        : !strcmp(x->request, "columns") ? " --columns FILE"
                        : x->tokenizer                   ? " --source '...'"
                                                         : " --source-ids 1,2,3";
  if (!x->causal)
    return lm_arena_printf(x->arena, "lmc run %s",
                           lm_show_word(x->arena, out_path(x, "imported.lm")));
  return lm_arena_printf(x->arena, "lmc generate %s%s%s%s", dir, request, prompt, ids);
}

static lm_status import(importer *x, const lm_import_options *o, lm_import_result *out) {
  lm_session s = {0};
  LM_TRY(source_read(x, o));
  LM_TRY(tokenizer_check(x));
  LM_TRY(outputs_check(x));
  existing before = existing_outputs(x);
  lm_status status = program_write(x);
  if (!status)
    status = weights_write(x, &s);
  if (!status)
    *out =
        (lm_import_result){x->call, next_command(x), s.compiled.plan->n_params, s.compiled.params};
  else
    outputs_remove(x, &before);
  lm_session_close(&s);
  return status;
}

lm_status lm_import_hf(lm_ctx *ctx, const lm_events *events, const lm_import_options *o,
                       lm_import_result *out) {
  importer x = {
      .ctx = ctx,
      .events = events,
      .arena = ctx->arena,
  };
  lm_status status = import(&x, o, out);
  json_decref(x.config);
  lm_buf_free(&x.text);
  return status;
}
