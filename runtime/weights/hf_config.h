// hf_config.h - config.json of a model in Hugging Face's layout, as far as the names and shapes of
// its tensors tell.
#ifndef LM_IO_HF_CONFIG_H
#define LM_IO_HF_CONFIG_H
#include "runtime/weights/foreign.h"
#include "runtime/io/json.h"

// model_type, architectures and sizes of Llama-, Qwen- and GPT-2-style models; sizes alone where
// some of their tensors are missing, an empty object where the names are of none of these. Mistral
// has Llama's tensors. The caller owns it.
json_t *lm_hf_config_infer(const lm_foreign_map *maps, size_t n);
#endif
