// import.h - a Hugging Face model as a run folder.
#ifndef LM_DRIVER_IMPORT_H
#define LM_DRIVER_IMPORT_H
#include "driver/events.h"

typedef struct lm_import_options {
  const char *from;  // the folder with config.json, *.safetensors and a tokenizer
  const char *dir;   // the folder to write
  const char *model; // "FILE:NAME" or "FILE:NAME(ARGUMENTS)"; NULL: by config.json's model_type
  const char *const *ignored;
  int n_ignored; // keys of config.json that are neither used nor checked; "*": none is checked
} lm_import_options;

typedef struct lm_import_result {
  const char *call; // the model with its arguments: "Llama(depth = 2, d = 64)"
  const char *next; // a command that uses the folder
  int tensors;
  int64_t params; // elements of all parameters
} lm_import_result;

// Writes a folder that can be run, generated from and exported:
//   imported.lm         the model with its arguments, and a recipe to train it further
//   program/…           the files of the model
//   model.safetensors   the weights under the model's own names
//   program.json        the manifest of a run folder (bundle.h)
// After an error the folder is as before, without program.json.
lm_status lm_import_hf(lm_ctx *ctx, const lm_events *events, const lm_import_options *o,
                       lm_import_result *out);
#endif
