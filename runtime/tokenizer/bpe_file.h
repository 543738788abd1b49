// bpe_file.h - shared by the files that read a tokenizer.json. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_BPE_FILE_H
#define LM_TOKENIZER_BPE_FILE_H
#include <string.h>

#include "runtime/io/json.h"
#include "runtime/tokenizer/bpe.h"

typedef struct {
  lm_bpe *b;
  json_t *vocab;
  lm_buf bytes;
  bool byte_level, fallback, prepends, cuts;
} lm_bpe_reading;

static inline lm_status lm_bpe_refuse(const char *what) {
  return lm_fail(LM_USER, "%s is unsupported", what);
}
static inline const char *lm_json_type(const json_t *x) {
  return json_string_value(json_object_get(x, "type"));
}
static inline bool lm_json_is_type(const json_t *x, const char *type) {
  return lm_json_type(x) && !strcmp(lm_json_type(x), type);
}

static inline bool lm_json_flag(const json_t *x, const char *key, bool default_value) {
  json_t *v = json_object_get(x, key);
  return json_is_boolean(v) ? json_is_true(v) : default_value;
}

static inline const char *lm_json_text(const json_t *x, const char *key) {
  const char *s = json_string_value(json_object_get(x, key));
  return s ? s : "";
}

static inline bool lm_json_replaces(const json_t *x, const char *from, const char *to) {
  return !strcmp(lm_json_text(json_object_get(x, "pattern"), "String"), from) &&
         !strcmp(lm_json_text(x, "content"), to);
}

// Read the objects "normalizer" and "pre_tokenizer". LM_USER: an unsupported feature, which the
// message names.
lm_status lm_bpe_normalizer_read(lm_bpe_reading *r, const json_t *x);
lm_status lm_bpe_pretok_read(lm_bpe_reading *r, const json_t *x);
#endif
