// hf_config.c - see hf_config.h.
#include "runtime/weights/hf_config.h"

#include <stdlib.h>
#include <string.h>

// The family is the first one whose tensor exists.
static const struct {
  const char *tensor;
  const char *type;
  const char *architecture;
} FAMILIES[] = {
    {"layers.0.self_attn.q_norm.weight", "qwen3", "Qwen3ForCausalLM"},
    {"layers.0.self_attn.q_proj.bias", "qwen2", "Qwen2ForCausalLM"},
    {"layers.0.self_attn.q_proj.weight", "llama", "LlamaForCausalLM"},
    {"h.0.attn.c_attn.weight", "gpt2", "GPT2LMHeadModel"},
};

// How a size of the config follows from a tensor.
typedef enum {
  SIZE,  // a dim of the tensor
  HEADS, // the number of heads in that dim
  HEAD,  // the size of a head, whose elements are innermost in that dim
  LAYERS // the number of layers; the tensor belongs to the first
} meaning;
typedef struct {
  const char *key;
  const char *tensor;
  int dim;
  meaning what;
} fact;

static const fact LLAMA[] = {
    {"vocab_size", "embed_tokens.weight", 0, SIZE},
    {"hidden_size", "embed_tokens.weight", 1, SIZE},
    {"intermediate_size", "layers.0.mlp.gate_proj.weight", 0, SIZE},
    {"num_hidden_layers", "layers.0.self_attn.q_proj.weight", 0, LAYERS},
    {"num_attention_heads", "layers.0.self_attn.q_proj.weight", 0, HEADS},
    {"num_key_value_heads", "layers.0.self_attn.k_proj.weight", 0, HEADS},
    {"head_dim", "layers.0.self_attn.q_proj.weight", 0, HEAD},
    {0},
};
static const fact GPT2[] = {
    {"vocab_size", "wte.weight", 0, SIZE},
    {"n_positions", "wpe.weight", 0, SIZE},
    {"n_embd", "wte.weight", 1, SIZE},
    {"n_inner", "h.0.mlp.c_fc.weight", 1, SIZE},
    {"n_layer", "h.0.attn.c_attn.weight", 0, LAYERS},
    {"n_head", "h.0.attn.c_proj.weight", 0, HEADS},
    {0},
};

// The tensor of that name, after any prefix that ends with a dot.
static const lm_foreign_map *tensor_find(const lm_foreign_map *maps, size_t n, const char *name) {
  size_t tail = strlen(name);
  for (size_t i = 0; i < n; i++) {
    size_t whole = strlen(maps[i].foreign);
    const char *at = maps[i].foreign + whole - tail;
    if (whole >= tail && !strcmp(at, name) && (whole == tail || at[-1] == '.'))
      return &maps[i];
  }
  return NULL;
}

// The size of the native axis with the smallest stride within a foreign dim.
static int64_t innermost(const lm_foreign_map *m, int dim) {
  int64_t stride = 1;
  for (int i = m->rank_f - 1; i > dim; i--)
    stride *= m->shape_f[i];
  for (int i = 0; i < m->n; i++)
    if (m->stride_foreign[i] == stride)
      return m->size[i];
  return 1;
}

// The highest index that other names have where `first` (layers.0.…) has the 0, plus one.
static int64_t layers_count(const lm_foreign_map *maps, size_t n, const char *first) {
  size_t head = (size_t)(strstr(first, ".0.") - first) + 1;
  size_t tail = strlen(first) - head - 1;
  int64_t most = 0;
  for (size_t i = 0; i < n; i++) {
    const char *name = maps[i].foreign;
    const char *end = name + strlen(name) - tail;
    const char *number = end;
    if (end < name || strcmp(end, first + head + 1))
      continue;
    while (number > name && number[-1] >= '0' && number[-1] <= '9')
      number--;
    if (number - name >= (ptrdiff_t)head && !memcmp(number - head, first, head) &&
        atoll(number) + 1 > most)
      most = atoll(number) + 1;
  }
  return most;
}

static int64_t value_of(const lm_foreign_map *maps, size_t n, const fact *f) {
  const lm_foreign_map *m = tensor_find(maps, n, f->tensor);
  if (!m || f->dim >= m->rank_f)
    return 0;
  switch (f->what) {
  case SIZE: return m->shape_f[f->dim];
  case HEAD: return innermost(m, f->dim);
  case HEADS: return m->shape_f[f->dim] / innermost(m, f->dim);
  case LAYERS: return layers_count(maps, n, f->tensor);
  }
  return 0;
}

// Adds the sizes that follow from the tensors; true if these are all sizes of the family.
static bool facts_add(json_t *config, const fact *facts, const lm_foreign_map *maps, size_t n) {
  bool all = true;
  for (; facts->key; facts++) {
    int64_t value = value_of(maps, n, facts);
    if (value)
      json_object_set_new(config, facts->key, json_integer(value));
    all &= value != 0;
  }
  return all;
}

// True if the tensor is of the whole model, not of a part such as `student.model.layers…`.
static bool is_of_whole(const lm_foreign_map *m, const char *name) {
  static const char *const prefixes[] = {"", "model.", "transformer."};
  size_t n = m ? strlen(m->foreign) - strlen(name) : 0;
  for (size_t i = 0; m && i < LM_COUNT(prefixes); i++)
    if (strlen(prefixes[i]) == n && !strncmp(m->foreign, prefixes[i], n))
      return true;
  return false;
}

json_t *lm_hf_config_infer(const lm_foreign_map *maps, size_t n) {
  json_t *config = json_object();
  for (size_t i = 0; i < LM_COUNT(FAMILIES); i++) {
    if (!is_of_whole(tensor_find(maps, n, FAMILIES[i].tensor), FAMILIES[i].tensor))
      continue;
    bool gpt2 = !strcmp(FAMILIES[i].type, "gpt2");
    json_object_set_new(config, "architectures", json_pack("[s]", FAMILIES[i].architecture));
    json_object_set_new(config, "model_type", json_string(FAMILIES[i].type));
    // A model with some of the names, such as one with experts or fused projections, belongs to
    // another family.
    if (!facts_add(config, gpt2 ? GPT2 : LLAMA, maps, n)) {
      json_object_del(config, "architectures");
      json_object_del(config, "model_type");
    }
    if (tensor_find(maps, n, "o_proj.bias"))
      json_object_set_new(config, "attention_bias", json_true());
    if (tensor_find(maps, n, "gate_proj.bias"))
      json_object_set_new(config, "mlp_bias", json_true());
    json_object_set_new(config, "tie_word_embeddings",
                        json_boolean(!tensor_find(maps, n, "lm_head.weight")));
    break;
  }
  return config;
}
