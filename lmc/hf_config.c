// hf_config.c - config.json of a lowered model.
#include <string.h>

#include "lmc/hf.h"

// ---- what the model's own numbers are called there

static const struct { const char *arg, *key; } ARGS[] = {
  {"theta", "rope_theta"}, {"rope_theta", "rope_theta"}, {"eps", "rms_norm_eps"}, {"rms_norm_eps", "rms_norm_eps"}};

static void args_add(json_t *config, const lm_lowered *l) {
  for (uint32_t i = 0; i < l->n_args; i++)
    for (size_t k = 0; k < LM_COUNT(ARGS); k++)
      if (!strcmp(l->args[i].name, ARGS[k].arg)) json_object_set_new(config, ARGS[k].key, json_real(l->args[i].value));
}

// What transformers takes where its config does not say, and tensors cannot tell.
static const struct { const char *key; double value; } ASSUMED[] = {{"rope_theta", 10000}, {"rms_norm_eps", 1e-6}};

static void assumed_add(const lm_session *s, json_t *config, const char **out_assumed) {
  for (size_t i = 0; i < LM_COUNT(ASSUMED); i++) {
    if (json_object_get(config, ASSUMED[i].key)) continue;
    json_object_set_new(config, ASSUMED[i].key, json_real(ASSUMED[i].value));
    *out_assumed = lm_arena_printf(s->ctx->arena, "%s%s%s = %g", *out_assumed ? *out_assumed : "", *out_assumed ? ", " : "", ASSUMED[i].key, ASSUMED[i].value);
  }
}

static void special_add(const lm_session *s, json_t *config) {
  int32_t eos = s->tokenizer ? s->tokenizer->eos : -1;
  json_object_set_new(config, "bos_token_id", json_null());
  json_object_set_new(config, "eos_token_id", eos < 0 ? json_null() : json_integer(eos));
  json_object_set_new(config, "pad_token_id", json_null());
}

static json_t *declared_value(const lm_lowered_config *c) { return json_loads(c->json, JSON_DECODE_ANY, NULL); }

json_t *lm_hf_config_make(const lm_session *s, const char *dtype, const char **out_assumed) {
  const lm_lowered *l = s->lowered;
  json_t *config = lm_hf_config_infer(l->maps, l->n_maps);
  bool rotary = json_object_get(config, "intermediate_size") != NULL;
  *out_assumed = NULL;
  if (json_object_size(config)) special_add(s, config);
  if (rotary) args_add(config, l);
  if (rotary && s->recipe->data.seq) json_object_set_new(config, "max_position_embeddings", json_integer(s->recipe->data.seq));
  for (uint32_t i = 0; i < l->n_config; i++) json_object_set_new(config, l->config[i].key, declared_value(&l->config[i]));
  if (rotary) assumed_add(s, config, out_assumed);
  if (json_object_size(config)) json_object_set_new(config, "torch_dtype", json_string(dtype));
  return config;
}

// ---- the other way round

static bool same_value(const json_t *a, const json_t *b) {
  if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
  return json_equal(a, b);
}

lm_status lm_hf_config_check(const lm_session *s, const json_t *config, const char *path) {
  const lm_lowered *l = s->lowered;
  lm_buf faults = {0};
  for (uint32_t i = 0; i < l->n_config; i++) {
    json_t *mine = declared_value(&l->config[i]), *theirs = lm_hf_config_get(config, l->config[i].key);
    if (theirs && !same_value(mine, theirs)) {
      char *text = json_dumps(theirs, JSON_ENCODE_ANY | JSON_COMPACT);
      lm_buf_printf(&faults, "\n  %s is %s, the model's %s", l->config[i].key, text, l->config[i].json);
      lm_free(text);
    }
    json_decref(mine);
  }
  lm_status status = faults.n ? lm_fail(LM_USER, "%s is not of this model:%s", path, faults.p) : NULL;
  lm_buf_free(&faults);
  return status;
}
