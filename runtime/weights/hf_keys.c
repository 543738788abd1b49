// hf_keys.c - the canonical form of a config.json, with the defaults of model types.
#include "runtime/weights/hf_keys.h"

#include <string.h>

// ---- defaults of transformers' configuration classes

static const struct {
  const char *types;
  const char *key;
  const char *value;
  bool null_too;
} DEFAULTS[] = {
#define DEFAULT(...) {__VA_ARGS__},
#include "runtime/weights/hf_defaults.def"
#undef DEFAULT
};

static bool has_word(const char *words, const char *word) {
  size_t n = strlen(word);
  for (const char *at = words; n && (at = strstr(at, word)); at += n)
    if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' '))
      return true;
  return false;
}

static const char *type_of(const json_t *config) {
  const char *type = json_string_value(json_object_get(config, "model_type"));
  return type ? type : "";
}

static json_t *default_value(const json_t *config, const char *value) {
  if (*value == '=')
    return json_incref(json_object_get(config, value + 1));
  return json_loads(value, JSON_DECODE_ANY, NULL);
}

static void defaults_add(json_t *config) {
  const char *type = type_of(config);
  for (size_t i = 0; i < LM_COUNT(DEFAULTS); i++) {
    const json_t *given = json_object_get(config, DEFAULTS[i].key);
    if (!has_word(DEFAULTS[i].types, type) ||
        (given && !(json_is_null(given) && DEFAULTS[i].null_too)))
      continue;
    json_t *value = default_value(config, DEFAULTS[i].value);
    if (value)
      json_object_set_new(config, DEFAULTS[i].key, value);
  }
}

// The default of an inner size is four times that of the model.
static void inner_add(json_t *config, const char *key, const json_t *width) {
  if (!json_is_integer(json_object_get(config, key)) && json_is_integer(width))
    json_object_set_new(config, key,
                        json_integer(4 * (json_int_t)(int32_t)json_integer_value(width)));
}

// Without head_dim, the heads divide the hidden size. The number of labels is that of their names.
static void sizes_add(json_t *config) {
  json_t *heads = json_object_get(config, "num_attention_heads");
  json_t *width = json_object_get(config, "hidden_size");
  json_t *head = json_object_get(config, "head_dim");
  json_t *embedding = json_object_get(config, "n_embd");
  bool shares = has_word("llama mistral mixtral qwen2 qwen3 qwen3_moe olmo2 olmoe smollm3 granite",
                         type_of(config)) &&
                (!head || json_is_null(head));
  if (shares && json_integer_value(heads) > 0 && json_is_integer(width))
    json_object_set_new(config, "head_dim",
                        json_integer(json_integer_value(width) / json_integer_value(heads)));
  if (has_word("gpt2 gptj", type_of(config)))
    inner_add(config, "n_inner", embedding);
  if (!strcmp(type_of(config), "falcon"))
    inner_add(config, "ffn_hidden_size", width);
  const json_t *labels = json_object_get(config, "id2label");
  if (json_is_object(labels) && !json_object_get(config, "num_labels"))
    json_object_set_new(config, "num_labels", json_integer((json_int_t)json_object_size(labels)));
  if (has_word("vit mobilenet_v2 efficientnet", type_of(config)) &&
      !json_object_get(config, "num_labels"))
    json_object_set_new(config, "num_labels", json_integer(2));
}

// RWKV-7 in the form of flash-linear-attention. The number of heads is computed from the size of a
// head, and the size of the feed-forward part from its ratio, rounded up to a multiple of 32. In
// published models the values of a head together are as wide as the model.
static void rwkv_canonical(json_t *config) {
  enum {
    MULTIPLE = 32,
    RATIO = 4
  };
  json_int_t width = json_integer_value(json_object_get(config, "hidden_size"));
  json_int_t head = json_integer_value(json_object_get(config, "head_dim"));
  json_t *ratio = json_object_get(config, "hidden_ratio");
  json_t *values = json_object_get(config, "value_dim"), *value;
  bool equal = !values || json_is_null(values) || json_integer_value(values) == width;
  size_t i;
  if (head > 0)
    json_object_set_new(config, "num_heads", json_integer(width / head));
  if (!json_is_integer(json_object_get(config, "intermediate_size")) && width < INT32_MAX) {
    double inner = (double)width * (json_is_number(ratio) ? json_number_value(ratio) : RATIO);
    json_int_t blocks =
        inner >= 0 && inner < INT32_MAX ? ((json_int_t)inner + MULTIPLE - 1) / MULTIPLE : 0;
    json_object_set_new(config, "intermediate_size", json_integer(MULTIPLE * blocks));
  }
  if (json_is_array(values)) {
    equal = true;
    json_array_foreach(values, i, value) {
      equal &= json_integer_value(value) == width;
    }
  }
  if (equal)
    json_object_del(config, "value_dim");
}

// ---- towers

static const char *const TOWERS[][3] = {
    {"text_config", "text_config_dict", "clip_text_model"},
    {"vision_config", "vision_config_dict", "clip_vision_model"}};

// Of CLIP, each tower has a table, which a second one, of older files, overrides. That
// projection_dim counts that is outside of them.
static void towers_canonical(json_t *config) {
  for (size_t i = 0; i < LM_COUNT(TOWERS); i++) {
    json_t *given = json_object_get(config, TOWERS[i][0]);
    json_t *tower = json_is_object(given) ? json_copy(given) : json_object();
    json_object_update(tower, json_object_get(config, TOWERS[i][1]));
    json_object_set_new(tower, "model_type", json_string(TOWERS[i][2]));
    json_object_set(tower, "projection_dim", json_object_get(config, "projection_dim"));
    json_object_del(tower, "tie_word_embeddings"); // of an output projection, which there is not
    defaults_add(tower);
    json_object_set_new(config, TOWERS[i][0], tower);
    json_object_del(config, TOWERS[i][1]);
  }
}

// ---- rotary positions

static const char *const TABLES[] = {"rope_scaling", "rope_parameters"};

static void key_move(json_t *from, const char *key, json_t *to, const char *name) {
  json_t *value = json_object_get(from, key);
  if (value && !json_is_null(value))
    json_object_set(to, name, value);
  json_object_del(from, key);
}

// Transformers 5 writes a table for each kind of layer of Gemma 3. Layers with a window have
// another base and no scaling.
static void rope_by_layer(json_t *config) {
  json_t *tables = json_object_get(config, "rope_parameters");
  json_t *whole = json_object_get(tables, "full_attention");
  json_t *window = json_object_get(tables, "sliding_attention");
  if (!json_is_object(whole) || !json_is_object(window))
    return;
  window = json_copy(window);
  key_move(window, "rope_theta", config, "rope_local_base_freq");
  const char *type = json_string_value(json_object_get(window, "rope_type"));
  if (type && !strcmp(type, "default"))
    json_object_del(window, "rope_type");
  whole = json_copy(whole);
  if (json_object_size(window))
    json_object_set(whole, "sliding_attention", window); // unknown: import refuses it
  json_object_set_new(config, "rope_parameters", whole);
  json_decref(window);
}

// Transformers 5, and 4 from 4.43 on, write one table. Its theta and its share move to the keys
// that version 4 has for them; the rest becomes rope_scaling.
static void rope_canonical(json_t *config, const char *table) {
  bool neox = !strcmp(type_of(config), "gpt_neox");
  json_t *rope = json_object_get(config, table);
  if (!json_is_object(rope))
    return;
  rope = json_copy(rope);
  json_object_del(config, table);
  key_move(rope, "rope_theta", config, neox ? "rotary_emb_base" : "rope_theta");
  key_move(rope, "partial_rotary_factor", config, neox ? "rotary_pct" : "partial_rotary_factor");
  if (json_is_string(json_object_get(rope, "rope_type")))
    json_object_del(rope, "type");
  else
    key_move(rope, "type", rope, "rope_type");
  const char *type = json_string_value(json_object_get(rope, "rope_type"));
  bool scales = json_object_size(rope) && !(type && !strcmp(type, "default"));
  if (!scales)
    json_object_set_new(config, "rope_scaling", json_null());
  else
    json_object_set(config, "rope_scaling", rope);
  json_decref(rope);
}

// Transformers 4.57 writes the values of GPT-NeoX under two names each.
static void neox_canonical(json_t *config) {
  static const char *const twice[][2] = {{"rope_theta", "rotary_emb_base"},
                                         {"partial_rotary_factor", "rotary_pct"}};
  for (size_t i = 0; i < LM_COUNT(twice); i++) {
    json_t *value = json_object_get(config, twice[i][0]);
    json_t *same = json_object_get(config, twice[i][1]);
    if (value && json_number_value(value) == json_number_value(same))
      json_object_del(config, twice[i][0]);
  }
}

// Transformers 4.57 writes infinite numbers as {"__float__": "Infinity"}.
static void infinite_canonical(json_t *config, const char *key) {
  json_t *list = json_object_get(config, key);
  json_t *copy = json_array();
  json_t *element;
  size_t i;
  json_array_foreach(list, i, element) {
    json_t *named = json_object_get(element, "__float__");
    json_array_append(copy, named ? named : element);
  }
  if (json_is_array(list))
    json_object_set(config, key, copy);
  json_decref(copy);
}

// With YaRN, the context length of the original model is optional.
static void context_add(json_t *config) {
  json_t *rope = json_object_get(config, "rope_scaling");
  json_t *positions = json_object_get(config, "max_position_embeddings");
  const char *type = json_string_value(json_object_get(rope, "rope_type"));
  json_t *context = json_object_get(rope, "original_max_position_embeddings");
  if (type && !strcmp(type, "yarn") && positions && (!context || json_is_null(context)))
    json_object_set(rope, "original_max_position_embeddings", positions);
}

// ---- sliding windows

// True if layer i has a window in a model of this type without layer_types.
static bool has_window(const json_t *config, json_int_t i) {
  if (!json_is_integer(json_object_get(config, "sliding_window")))
    return false;
  if (has_word("gemma2 gpt_oss", type_of(config)))
    return i % 2 == 0;
  json_int_t period = json_integer_value(json_object_get(config, "sliding_window_pattern"));
  if (!strcmp(type_of(config), "gemma3_text"))
    return period <= 0 || (i + 1) % period != 0;
  return i >= json_integer_value(json_object_get(config, "max_window_layers"));
}

static const char *layer_kind(const json_t *config, json_int_t i) {
  json_int_t period = json_integer_value(json_object_get(config, "full_attention_interval"));
  if (!strcmp(type_of(config), "qwen3_next"))
    return period > 0 && (i + 1) % period == 0 ? "full_attention" : "linear_attention";
  period = json_integer_value(json_object_get(config, "no_rope_layer_interval"));
  if (!strcmp(type_of(config), "llama4_text"))
    return period > 0 && (i + 1) % period == 0 ? "full_attention" : "chunked_attention";
  return has_window(config, i) ? "sliding_attention" : "full_attention";
}

static bool layers_are_default(const json_t *config, const json_t *layers) {
  size_t i;
  json_t *layer;
  if (!json_is_array(layers))
    return json_is_null(layers);
  json_array_foreach(layers, i, layer) {
    const char *kind = json_string_value(layer);
    if (!kind || strcmp(kind, layer_kind(config, (json_int_t)i)))
      return false;
  }
  return true;
}

static void windows_canonical(json_t *config) {
  json_t *use = json_object_get(config, "use_sliding_window");
  json_t *layers = json_object_get(config, "layer_types");
  if (json_is_false(use))
    json_object_set_new(config, "sliding_window", json_null());
  if (use && json_is_null(json_object_get(config, "sliding_window")))
    json_object_set_new(config, "use_sliding_window", json_false());
  if (layers && layers_are_default(config, layers))
    json_object_del(config, "layer_types");
}

// Transformers 4.53 and later write the period of the layers with an underscore or, as 5 does,
// only layer_types, which has it: the index plus 1 of the first layer without a window.
static void period_canonical(json_t *config) {
  json_t *layers = json_object_get(config, "layer_types"), *layer;
  size_t i;
  key_move(config, "_sliding_window_pattern", config, "sliding_window_pattern");
  if (json_object_get(config, "sliding_window_pattern"))
    return;
  json_array_foreach(layers, i, layer) {
    const char *kind = json_string_value(layer);
    if (!kind || strcmp(kind, "full_attention"))
      continue;
    json_object_set_new(config, "sliding_window_pattern", json_integer((json_int_t)i + 1));
    return;
  }
}

// SmolLM 3 writes for each layer whether it has rotary positions, 1, or not, 0, and beside that the
// period, from which the list follows.
// Llama 4 writes the list alone: the period is the index plus 1 of the first layer without them.
static void no_rope_period_add(json_t *config) {
  json_t *layers = json_object_get(config, "no_rope_layers"), *layer;
  json_int_t period = (json_int_t)json_array_size(layers) + 1;
  size_t i;
  if (strcmp(type_of(config), "llama4_text") || !json_array_size(layers))
    return;
  json_array_foreach(layers, i, layer) {
    if (json_integer_value(layer) == 0 && (json_int_t)i + 1 < period)
      period = (json_int_t)i + 1;
  }
  json_object_set_new(config, "no_rope_layer_interval", json_integer(period));
}

// Llama 4 writes which layers have experts, and beside that the step, from which the list follows.
static void expert_layers_canonical(json_t *config) {
  json_t *layers = json_object_get(config, "moe_layers"), *layer;
  json_int_t step = json_integer_value(json_object_get(config, "interleave_moe_layer_step"));
  json_int_t depth = json_integer_value(json_object_get(config, "num_hidden_layers"));
  size_t i;
  if (step < 1 ||
      (layers && (json_int_t)json_array_size(layers) != depth / step && !json_is_null(layers)))
    return;
  json_array_foreach(layers, i, layer) {
    if (json_integer_value(layer) != ((json_int_t)i + 1) * step - 1)
      return;
  }
  json_object_del(config, "moe_layers");
}

static void no_rope_canonical(json_t *config) {
  json_t *layers = json_object_get(config, "no_rope_layers"), *layer;
  json_int_t period = json_integer_value(json_object_get(config, "no_rope_layer_interval"));
  size_t i;
  json_array_foreach(layers, i, layer) {
    bool rotary = period <= 0 || ((json_int_t)i + 1) % period != 0;
    if (!json_is_integer(layer) || (json_integer_value(layer) != 0) != rotary)
      return;
  }
  json_object_del(config, "no_rope_layers");
}

json_t *lm_hf_config_canonical(const json_t *config) {
  json_t *out = json_copy((json_t *)config);
  if (has_word("gemma2 gemma3_text", type_of(out)))
    json_object_del(out, "hidden_act"); // transformers reads hidden_activation
  if (!strcmp(type_of(out), "gemma3_text")) {
    rope_by_layer(out);
    period_canonical(out);
  }
  for (size_t i = 0; i < LM_COUNT(TABLES); i++)
    rope_canonical(out, TABLES[i]);
  if (!strcmp(type_of(out), "gpt_neox"))
    neox_canonical(out);
  if (!strcmp(type_of(out), "phi3") && json_is_null(json_object_get(out, "rope_scaling")))
    json_object_del(out, "original_max_position_embeddings"); // a term of the scaling
  infinite_canonical(out, "time_step_limit");
  no_rope_period_add(out);
  defaults_add(out);
  sizes_add(out);
  if (!strcmp(type_of(out), "rwkv7"))
    rwkv_canonical(out);
  if (!strcmp(type_of(out), "clip"))
    towers_canonical(out);
  context_add(out);
  no_rope_canonical(out);
  expert_layers_canonical(out);
  windows_canonical(out);
  return out;
}

// ---- keys of tables

static bool is_table(const char *key) {
  for (size_t i = 0; i < LM_COUNT(TABLES); i++)
    if (!strcmp(TABLES[i], key))
      return true;
  for (size_t i = 0; i < LM_COUNT(TOWERS); i++)
    if (!strcmp(TOWERS[i][0], key))
      return true;
  return false;
}

void lm_hf_config_each(const json_t *config, lm_hf_each *each, void *user) {
  const char *key;
  const char *inner;
  json_t *value, *part;
  json_object_foreach((json_t *)config, key, value) {
    if (!is_table(key) || !json_is_object(value)) {
      each(user, key, value);
      continue;
    }
    json_object_foreach(value, inner, part) {
      lm_buf path = {0};
      lm_buf_printf(&path, "%s.%s", key, inner);
      each(user, path.p, part);
      lm_buf_free(&path);
    }
  }
}

json_t *lm_hf_config_at(const json_t *config, const char *key) {
  const char *dot = strchr(key, '.');
  json_t *whole = json_object_get(config, key);
  if (whole || !dot)
    return whole;
  json_t *table = json_object_getn(config, key, (size_t)(dot - key));
  return json_object_get(table, dot + 1);
}

void lm_hf_config_set(json_t *config, const char *key, json_t *value) {
  const char *dot = strchr(key, '.');
  if (!dot) {
    json_object_set_new(config, key, value);
    return;
  }
  json_t *table = json_object_getn(config, key, (size_t)(dot - key));
  if (!json_is_object(table)) {
    table = json_object();
    json_object_setn_new(config, key, (size_t)(dot - key), table);
  }
  json_object_set_new(table, dot + 1, value);
}
