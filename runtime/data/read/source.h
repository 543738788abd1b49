// source.h - the description of one source of training data.
#ifndef LM_DATA_READ_SOURCE_H
#define LM_DATA_READ_SOURCE_H

#include "runtime/chat/chat.h"

typedef enum {
  LM_SOURCE_TEXT,
  LM_SOURCE_BATCHES,
  LM_SOURCE_JSONL,
  LM_SOURCE_CHAT // conversations, or prompts with completions
} lm_source_kind;

typedef struct lm_data_source {
  lm_source_kind kind;
  const char *name; // used in messages
  const char *
      path; // text, jsonl: a glob; .zst and .gz files are decompressed. batches: a safetensors file
  const char *split;   // text: the separator of documents; NULL: each file is one document
  const char *field;   // jsonl: the field that holds the text; NULL: "text"
  const lm_chat *chat; // chat: how a line becomes tokens
} lm_data_source;
#endif
