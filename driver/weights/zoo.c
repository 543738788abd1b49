// zoo.c - the models of examples/zoo in the binary.
#include "driver/weights/zoo.h"

#include <string.h>

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_zoo[];

static const lm_zoo_model MODELS[] = {{"gemma2", "gemma2.lm", "Gemma2"},
                                      {"gemma3_text", "gemma3.lm", "Gemma3"},
                                      {"gpt2", "gpt2.lm", "GPT2"},
                                      {"gpt_neox", "gpt_neox.lm", "GPTNeoX"},
                                      {"granite", "granite.lm", "Granite"},
                                      {"llama", "llama.lm", "Llama"},
                                      {"mamba", "mamba.lm", "Mamba"},
                                      {"mamba2", "mamba2.lm", "Mamba2"},
                                      {"mistral", "mistral.lm", "Mistral"},
                                      {"mixtral", "mixtral.lm", "Mixtral"},
                                      {"olmo2", "olmo2.lm", "Olmo2"},
                                      {"olmoe", "olmoe.lm", "Olmoe"},
                                      {"phi", "phi.lm", "Phi"},
                                      {"phi3", "phi3.lm", "Phi3"},
                                      {"qwen2", "qwen2.lm", "Qwen2"},
                                      {"qwen3", "qwen3.lm", "Qwen3"},
                                      {"qwen3_moe", "qwen3moe.lm", "Qwen3Moe"},
                                      {"smollm3", "smollm3.lm", "SmolLM3"}};

const lm_zoo_model *lm_zoo_find(const char *type) {
  for (size_t i = 0; i < LM_COUNT(MODELS); i++)
    if (!strcmp(MODELS[i].type, type))
      return &MODELS[i];
  return NULL;
}

const char *lm_zoo_text(const lm_zoo_model *m) {
  for (const struct lm_embedded *e = lm_zoo; e->path; e++) {
    const char *name = strrchr(e->path, '/');
    if (!strcmp(name ? name + 1 : e->path, m->file))
      return e->text;
  }
  LM_BUG("no %s in the binary", m->file);
}

const char *lm_zoo_types(lm_arena *a) {
  const char *list = MODELS[0].type;
  for (size_t i = 1; i < LM_COUNT(MODELS); i++)
    list = lm_arena_printf(a, "%s, %s", list, MODELS[i].type);
  return list;
}
