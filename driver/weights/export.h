// export.h - a trained model as a Hugging Face folder, or its adapters as a folder of PEFT.
#ifndef LM_DRIVER_EXPORT_H
#define LM_DRIVER_EXPORT_H
#include "driver/session.h"

typedef struct lm_export_options {
  const char *dir;     // the folder to write
  const char *dtype;   // "f32", "bf16" or "f16": the type to which weights are rounded
  const char *weights; // of lm_trained_open
  const char *from;    // the run folder or file that is read
} lm_export_options;

typedef struct lm_export_result {
  size_t tensors;
  const char *weights;   // the name of the file of tensors
  const char *config;    // the model_type of config.json; NULL: none was written
  const char *tokenizer; // names of the tokenizer's files; NULL: none
} lm_export_result;

// Writes config.json, model.safetensors and the tokenizer of a session that lm_trained_open has
// opened. LM_USER if the model has no `map hf`, or if a folder that is read would be overwritten.
lm_status lm_export_hf(lm_session *s, const lm_export_options *o, lm_export_result *out);
// Writes adapter_config.json and adapter_model.safetensors, of which `config` is the peft_type.
// LM_USER if PEFT's files cannot hold the adapters, or if a parameter of the base is trained.
lm_status lm_export_peft(lm_session *s, const lm_export_options *o, lm_export_result *out);
#endif
