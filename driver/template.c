// template.c - see template.h.
#include "driver/template.h"

#include <string.h>

#include "driver/bundle.h"
#include "runtime/base/diag_code.h"
#include "runtime/io/json.h"

// ---- the template

// The first source that names a template, else the first chat; NULL: none.
static const lm_recipe_source *source_find(const lm_session *s) {
  const lm_recipe_data *d = &s->project.recipe->data;
  const lm_recipe_source *chat = NULL;
  for (uint32_t i = 0; i < d->n_sources; i++) {
    if (d->sources[i].template)
      return &d->sources[i];
    if (!chat && d->sources[i].kind == LM_RECIPE_SOURCE_CHAT)
      chat = &d->sources[i];
  }
  return chat;
}

// The text of `chat_template` in tokenizer_config.json: a text, or a list with one named "default".
static const char *config_template(const json_t *config) {
  const json_t *x = json_object_get(config, "chat_template");
  size_t i;
  json_t *named;
  if (json_is_string(x))
    return json_string_value(x);
  json_array_foreach(x, i, named) {
    const char *name = json_string_value(json_object_get(named, "name"));
    if (name && !strcmp(name, "default"))
      return json_string_value(json_object_get(named, "template"));
  }
  return NULL;
}

static lm_status config_read(const lm_session *s, json_t **out) {
  const lm_session_file *f = &s->companions[LM_COMPANION_TOKENIZER_CONFIG];
  *out = NULL;
  return f->name ? lm_json_parse(f->text.p, f->text.n, f->name, out) : NULL;
}

static void template_keep(lm_session *s, const char *text, size_t n) {
  lm_session_file *f = &s->companions[LM_COMPANION_CHAT_TEMPLATE];
  lm_buf kept = {0};
  lm_buf_add(&kept, text, n);
  lm_buf_free(&f->text);
  *f = (lm_session_file){LM_COMPANION_NAMES[LM_COMPANION_CHAT_TEMPLATE], kept};
}

static bool is_tokenizers_own(const lm_recipe_source *x) {
  return !strcmp(x->template, "tokenizer");
}

static lm_status named_read(lm_session *s, const lm_recipe_source *x) {
  const char *text = lm_chat_builtin(x->template);
  lm_buf file = {0};
  size_t n = strlen(x->template);
  if (text) {
    template_keep(s, text, strlen(text));
    return NULL;
  }
  if (n < 6 || strcmp(x->template + n - 6, ".jinja"))
    return lm_fail(LM_USER, "%s is neither one of %s nor the path of a .jinja file", x->template,
                   lm_chat_builtin_names);
  lm_status status = lm_file_read(x->template_path, LM_TEMPLATE_SIZE, &file);
  if (status)
    status->kind = LM_USER;
  else
    template_keep(s, file.p ? file.p : "", file.n);
  lm_buf_free(&file);
  return status;
}

static lm_status tokenizers_own_read(lm_session *s, const lm_recipe_source *named) {
  json_t *config;
  LM_TRY(config_read(s, &config));
  const char *text = config_template(config);
  if (text)
    template_keep(s, text, strlen(text));
  json_decref(config);
  if (text)
    return NULL;
  return lm_fail(LM_USER,
                 named
                     ? "none comes with the tokenizer; name one of %s, or a .jinja file, as in "
                       "template = \"plain\""
                     : "the model has none, so it was not trained on conversations; `lmc generate "
                       "--prompt` continues texts, and a source chat(…, template = …) with one "
                       "of %s trains answers",
                 lm_chat_builtin_names);
}

static lm_status template_open(lm_session *s, const lm_recipe_source *named) {
  const lm_session_file *kept = &s->companions[LM_COMPANION_CHAT_TEMPLATE];
  if (named && named->template && !is_tokenizers_own(named) && !(s->project.bundle && kept->name))
    LM_TRY(named_read(s, named));
  else if (!kept->name)
    LM_TRY(tokenizers_own_read(s, named));
  return lm_template_parse(kept->text.p ? kept->text.p : "", kept->text.n,
                           named && named->template ? named->template : kept->name, &s->template);
}

// {% generation %} marks the answers, so no other role can be trained.
static lm_status generation_check(const lm_session *s) {
  const lm_recipe_data *d = &s->project.recipe->data;
  for (uint32_t i = 0; i < d->n_sources; i++)
    if (d->sources[i].kind == LM_RECIPE_SOURCE_CHAT &&
        d->sources[i].train_on != 1u << LM_CHAT_ASSISTANT &&
        lm_template_has_generation(s->template))
      return lm_fail(LM_USER,
                     "its {%% generation %%} marks the trained text; source %s must have "
                     "train_on = [assistant]",
                     d->sources[i].name);
  return NULL;
}

bool lm_session_has_messages(const lm_session *s) {
  return source_find(s) != NULL;
}

lm_status lm_session_template(lm_session *s) {
  const lm_recipe_source *named = source_find(s);
  if (s->template)
    return NULL;
  lm_status fault = template_open(s, named);
  if (!fault)
    fault = generation_check(s);
  if (!fault || fault->kind != LM_USER || !named)
    return lm_annotate(fault, "chat template");
  LM_REPORT(s->project.ctx, named->template_loc, E264, fault->text);
  lm_status_free(fault);
  return lm_verdict(s->project.ctx);
}

// ---- conversations as tokens

// The text of `bos_token` or `eos_token` in tokenizer_config.json, else of token `id`; NULL: none.
static const char *token_text(const lm_session *s, const json_t *config, const char *key,
                              int32_t id) {
  const json_t *x = json_object_get(config, key);
  const char *text = json_string_value(json_is_object(x) ? json_object_get(x, "content") : x);
  lm_arena *a = s->project.ctx->arena;
  size_t n = 0;
  if (text)
    return lm_arena_strndup(a, text, strlen(text));
  const char *piece = id >= 0 ? lm_tokenizer_piece(s->tokenizer, id, &n) : NULL;
  return piece && n ? lm_arena_strndup(a, piece, n) : NULL;
}

void lm_session_chat_fill(const lm_session *s, bool with_template, lm_chat *c) {
  const lm_tokenizer *t = s->tokenizer;
  const lm_buf *text = &s->companions[LM_COMPANION_CHAT_TEMPLATE].text;
  json_t *config = NULL;
  lm_status_free(config_read(s, &config)); // an error was reported when the tokenizer was opened
  c->tokenizer = t;
  c->template = with_template ? s->template : NULL;
  c->bos = token_text(s, config, "bos_token", t->n_prefix ? t->prefix[0] : -1);
  c->eos = token_text(s, config, "eos_token", t->eos);
  json_decref(config);
  lm_chat_key_set(c, with_template ? text->p : "", with_template ? text->n : 0);
}

int32_t lm_session_source_start(const lm_session *s, const lm_recipe_source *x) {
  lm_tokens ids = {0};
  lm_status fault = lm_tokenizer_encode(s->tokenizer, x->start, strlen(x->start), &ids);
  if (fault || ids.n != 1)
    LM_REPORT(s->project.ctx, x->start_loc, E277, x->start, (long long)ids.n);
  int32_t id = ids.n ? ids.ids[0] : 0;
  lm_status_free(fault);
  lm_tokens_free(&ids);
  return id;
}

// Warns if the template ends answers with a marker, such as <|im_end|>, that is not a special token
// of the tokenizer.
static void marker_check(const lm_session *s, const lm_recipe_source *x, const lm_chat *c) {
  lm_buf stop = {0};
  int32_t id = -1;
  lm_status fault = lm_chat_stop(c, &stop, &id); // the sources report what a template cannot do
  char *begin = !fault && id < 0 && stop.n ? strstr(stop.p, "<|") : NULL;
  char *end = begin ? strstr(begin, "|>") : NULL;
  if (end) {
    end[2] = 0;
    LM_REPORT(s->project.ctx, x->template_loc, W21D, begin);
  }
  lm_status_free(fault);
  lm_buf_free(&stop);
}

const lm_chat *lm_session_source_chat(const lm_session *s, const lm_recipe_source *x) {
  lm_chat *c = LM_NEW(s->project.ctx->arena, lm_chat);
  bool chat = x->kind == LM_RECIPE_SOURCE_CHAT;
  *c = (lm_chat){.train_on = chat ? x->train_on : 1u << LM_CHAT_ASSISTANT,
                 .field = x->field,
                 .prompt = x->prompt,
                 .completion = x->completion,
                 .chosen = x->chosen,
                 .rejected = x->rejected,
                 .now = x->date,
                 .has_target = x->start != NULL};
  if (x->start)
    c->start = lm_session_source_start(s, x);
  lm_session_chat_fill(s, chat || x->template, c);
  if (c->template && !s->project.bundle)
    marker_check(s, x, c);
  return c;
}
