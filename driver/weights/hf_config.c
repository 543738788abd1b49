// hf_config.c - config.json of a lowered model.
#include <string.h>

#include "driver/weights/hf.h"

// ---- keys for the model's parameters

static const struct {
  const char *arg, *key;
} ARGS[] = {{"theta", "rope_theta"},
            {"rope_theta", "rope_theta"},
            {"eps", "rms_norm_eps"},
            {"rms_norm_eps", "rms_norm_eps"}};

static void args_add(json_t *config, const lm_lowered *l) {
  for (uint32_t i = 0; i < l->n_args; i++)
    for (size_t k = 0; k < LM_COUNT(ARGS); k++)
      if (!strcmp(l->args[i].name, ARGS[k].arg))
        json_object_set_new(config, ARGS[k].key, json_real(l->args[i].value));
}

// Defaults of transformers for keys that are missing in config.json and that the tensors do not
// determine.
static const struct {
  const char *key, *value;
} ASSUMED[] = {{"rope_theta", "10000.0"}, {"rms_norm_eps", "1e-6"}, {"hidden_act", "\"silu\""}};

// Gemma calls its activation so.
static bool names_act(const json_t *config, const char *key) {
  return !strcmp(key, "hidden_act") && json_object_get(config, "hidden_activation");
}

static void assumed_add(const lm_session *s, json_t *config, const char **out_assumed) {
  lm_arena *a = s->project.ctx->arena;
  for (size_t i = 0; i < LM_COUNT(ASSUMED); i++) {
    if (json_object_get(config, ASSUMED[i].key) || names_act(config, ASSUMED[i].key))
      continue;
    json_object_set_new(config, ASSUMED[i].key,
                        json_loads(ASSUMED[i].value, JSON_DECODE_ANY, NULL));
    const char *before = *out_assumed ? lm_arena_printf(a, "%s, ", *out_assumed) : "";
    *out_assumed = lm_arena_printf(a, "%s%s = %s", before, ASSUMED[i].key, ASSUMED[i].value);
  }
}

const char *const LM_HF_TOKEN_IDS[LM_HF_TOKEN_ID_KEYS] = {"bos_token_id", "eos_token_id",
                                                          "pad_token_id"};

// Writes the special ids of the imported model; for other models only the end of a document is
// known.
static void special_add(const lm_session *s, json_t *config) {
  int32_t eos = s->tokenizer ? s->tokenizer->eos : -1;
  const lm_buf *kept = &s->companions[LM_COMPANION_TOKEN_IDS].text;
  json_t *ids = kept->n ? json_loadb(kept->p, kept->n, 0, NULL) : NULL;
  for (int i = 0; i < LM_HF_TOKEN_ID_KEYS; i++)
    json_object_set_new(config, LM_HF_TOKEN_IDS[i], json_null());
  if (eos >= 0)
    json_object_set_new(config, "eos_token_id", json_integer(eos));
  for (int i = 0; i < LM_HF_TOKEN_ID_KEYS; i++)
    if (json_object_get(ids, LM_HF_TOKEN_IDS[i]))
      json_object_set(config, LM_HF_TOKEN_IDS[i], json_object_get(ids, LM_HF_TOKEN_IDS[i]));
  json_decref(ids);
}

static json_t *declared_value(const lm_lowered_config *c) {
  return json_loads(c->json, JSON_DECODE_ANY, NULL);
}

// Keys that transformers 5 takes as a real alone: a whole number is written as 30.0.
static const char *const REALS[] = {"rms_norm_eps",
                                    "layer_norm_eps",
                                    "layer_norm_epsilon",
                                    "rope_theta",
                                    "rotary_pct",
                                    "partial_rotary_factor",
                                    "attn_logit_softcapping",
                                    "final_logit_softcapping",
                                    "rope_scaling.factor",
                                    "rope_scaling.low_freq_factor",
                                    "rope_scaling.high_freq_factor",
                                    "rope_scaling.beta_fast",
                                    "rope_scaling.beta_slow",
                                    "rope_scaling.attention_factor"};

static json_t *as_real(const char *key, json_t *value) {
  bool real = false;
  for (size_t i = 0; i < LM_COUNT(REALS); i++)
    real |= !strcmp(REALS[i], key);
  if (!real || !json_is_integer(value))
    return value;
  json_t *out = json_real(json_number_value(value));
  json_decref(value);
  return out;
}

// A key of a table that is null is left out; the table is null if all its keys are.
static void declared_add(json_t *config, const lm_lowered_config *c) {
  const char *dot = strchr(c->key, '.');
  json_t *value = declared_value(c);
  if (!dot || !json_is_null(value)) {
    lm_hf_config_set(config, c->key, as_real(c->key, value));
    return;
  }
  json_decref(value);
  if (!json_object_getn(config, c->key, (size_t)(dot - c->key)))
    json_object_setn_new(config, c->key, (size_t)(dot - c->key), json_null());
}

// Before transformers 4.43, linear scaling was the only one here, and its key was called `type`,
// which later versions read too, but not for Gemma 3, which version 4.50 added.
static void rope_type_rename(json_t *config) {
  const char *model = json_string_value(json_object_get(config, "model_type"));
  json_t *rope = json_object_get(config, "rope_scaling");
  json_t *type = json_object_get(rope, "rope_type");
  if (!json_is_string(type) || strcmp(json_string_value(type), "linear") ||
      (model && !strcmp(model, "gemma3_text")))
    return;
  json_object_set(rope, "type", type);
  json_object_del(rope, "rope_type");
}

// The keys that the names of the tensors determine, if the model is a decoder alone.
static json_t *inferred(const lm_lowered *l) {
  for (uint32_t i = 0; i < l->config.n; i++)
    if (!strcmp(l->config.v[i].key, "is_encoder_decoder") && !strcmp(l->config.v[i].json, "true"))
      return json_object();
  return lm_hf_config_infer(l->maps, l->n_maps);
}

json_t *lm_hf_config_make(const lm_session *s, const char *dtype, const char **out_assumed) {
  const lm_lowered *l = s->compiled.lowered;
  json_t *config = inferred(l);
  bool rotary = json_object_get(config, "intermediate_size") != NULL;
  *out_assumed = NULL;
  if (json_object_size(config) || l->config.n)
    special_add(s, config);
  if (rotary)
    args_add(config, l);
  if (rotary && s->project.recipe->data.seq)
    json_object_set_new(config, "max_position_embeddings",
                        json_integer(s->project.recipe->data.seq));
  for (uint32_t i = 0; i < l->config.n; i++)
    declared_add(config, &l->config.v[i]);
  rope_type_rename(config);
  if (rotary)
    assumed_add(s, config, out_assumed);
  if (json_object_size(config))
    json_object_set_new(config, "torch_dtype", json_string(dtype));
  return config;
}

// ---- the other way round

static bool same_value(const json_t *a, const json_t *b) {
  if (json_is_number(a) && json_is_number(b))
    return json_number_value(a) == json_number_value(b);
  return json_equal(a, b);
}

bool lm_hf_config_names(const char *const *ignored, int n, const char *key) {
  for (int i = 0; i < n; i++) {
    size_t length = strlen(ignored[i]);
    if (!strcmp(ignored[i], key))
      return true;
    if (!strncmp(ignored[i], key, length) && key[length] == '.')
      return true;
  }
  return false;
}

bool lm_hf_config_ignores(const char *const *ignored, int n, const char *key) {
  return lm_hf_config_names(ignored, n, "*") || lm_hf_config_names(ignored, n, key);
}

typedef struct checking {
  const lm_lowered *l;
  const char *const *ignored;
  int n_ignored;
  lm_buf faults;
} checking;

static const lm_lowered_config *declaration_find(const lm_lowered *l, const char *key) {
  for (uint32_t i = 0; i < l->config.n; i++)
    if (!strcmp(l->config.v[i].key, key))
      return &l->config.v[i];
  return NULL;
}

static bool is_neutral(const lm_hf_key *k, const json_t *value) {
  json_t *neutral = k->neutral ? json_loads(k->neutral, JSON_DECODE_ANY, NULL) : NULL;
  bool same = neutral && (json_is_null(value) || same_value(value, neutral));
  json_decref(neutral);
  return same;
}

static void fault_add(checking *c, const char *key, const json_t *value, const char *fmt,
                      const char *more) {
  char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
  lm_buf_printf(&c->faults, "\n  %s is %s", key, text);
  lm_buf_printf(&c->faults, fmt, more);
  lm_free(text);
}

static void undeclared_check(checking *c, const char *key, const json_t *value) {
  lm_hf_key k = lm_hf_key_find(key);
  if (k.meaning == LM_HF_IGNORED || k.meaning == LM_HF_SHAPE || is_neutral(&k, value))
    return;
  if (k.meaning == LM_HF_NUMBERS)
    fault_add(c, key, value, " (%s), the model's config does not declare it", k.what);
  else if (!json_is_null(value))
    fault_add(c, key, value, ", a key that is unknown to lmc%s", "");
}

static void entry_check(void *user, const char *key, const json_t *theirs) {
  checking *c = user;
  const lm_lowered_config *declared = declaration_find(c->l, key);
  if (lm_hf_config_ignores(c->ignored, c->n_ignored, key))
    return;
  if (!declared) {
    undeclared_check(c, key, theirs);
    return;
  }
  json_t *mine = declared_value(declared);
  if (!same_value(mine, theirs))
    fault_add(c, key, theirs, ", the model's %s", declared->json);
  json_decref(mine);
}

// Keys that the model declares and config.json does not have: there they have their neutral value.
static void absent_check(checking *c, const json_t *config) {
  for (uint32_t i = 0; i < c->l->config.n; i++) {
    const char *key = c->l->config.v[i].key;
    lm_hf_key k = lm_hf_key_find(key);
    if (lm_hf_config_at(config, key) || !k.neutral ||
        lm_hf_config_ignores(c->ignored, c->n_ignored, key))
      continue;
    json_t *mine = declared_value(&c->l->config.v[i]);
    if (!is_neutral(&k, mine))
      lm_buf_printf(&c->faults, "\n  %s is not there, the model's is %s", key,
                    c->l->config.v[i].json);
    json_decref(mine);
  }
}

lm_status lm_hf_config_check(const lm_session *s, const json_t *config, const char *path,
                             const char *const *ignored, int n_ignored) {
  checking c = {
      .l = s->compiled.lowered,
      .ignored = ignored,
      .n_ignored = n_ignored,
  };
  lm_hf_config_each(config, entry_check, &c);
  absent_check(&c, config);
  lm_status status =
      !c.faults.n ? NULL
                  : lm_fail(LM_USER,
                            "%s is not of this model:%s\n"
                            "  help: declare the value in the model's `map hf { config { KEY = "
                            "VALUE } }`; --ignore-config KEY imports without a check of KEY",
                            path, c.faults.p);
  lm_buf_free(&c.faults);
  return status;
}
