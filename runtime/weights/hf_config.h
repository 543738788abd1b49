// hf_config.h - infers the config.json of a Hugging Face model from the names and shapes of its
// tensors.
#ifndef LM_WEIGHTS_HF_CONFIG_H
#define LM_WEIGHTS_HF_CONFIG_H
#include "runtime/io/json.h"
#include "runtime/weights/foreign.h"

// Returns model_type, architectures and sizes for Llama-, Qwen- and GPT-2-style tensors; only sizes
// if some of these tensors are missing; an empty object if the names match none of them. Mistral
// models have Llama's tensors and are reported as such. The caller owns the object.
json_t *lm_hf_config_infer(const lm_foreign_map *maps, size_t n);
#endif
