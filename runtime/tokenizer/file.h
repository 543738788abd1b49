// file.h - shared by the files that read tokenizers. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_FILE_H
#define LM_TOKENIZER_FILE_H
#include <math.h>
#include <string.h>

#include "runtime/io/json.h"
#include "runtime/tokenizer/subword.h"

typedef struct {
  lm_subword *t;
  json_t *vocab;      // an object: ids by token
  json_t *decoder;    // NULL: none
  const char *prefix; // WordPiece: of tokens that continue a word
  lm_buf bytes;
  bool byte_level;   // the pre-tokenizer has turned bytes into characters
  bool fallback;     // tokens <0x00> … <0xFF> are bytes
  bool marks_spaces; // spaces become U+2581
} lm_tokenizer_reading;

static inline lm_status lm_unsupported(const char *what) {
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

// Read the members "model", "normalizer" and "pre_tokenizer" of a tokenizer.json. LM_USER: a
// malformed member, or an unsupported feature, which the message names.
lm_status lm_json_model_read(lm_tokenizer_reading *r, const json_t *x);
lm_status lm_json_normalizer_read(lm_tokenizer_reading *r, const json_t *x);
lm_status lm_json_pretok_read(lm_tokenizer_reading *r, const json_t *x);
// GPT-2's vocab.bpe: a merge a line.
lm_status lm_merge_lines_read(lm_tokenizer_reading *r, const char *text, size_t n);
// Sets the text that a token is decoded to.
typedef void lm_token_text_fn(lm_tokenizer_reading *r, int32_t id, const char *token, size_t n);
lm_token_text_fn lm_token_text_set; // of any model but WordPiece, and of added tokens
lm_status lm_json_vocab_read(lm_tokenizer_reading *r, lm_token_text_fn *text_set); // from r->vocab
// The id of a token of r->vocab; -1: there is none.
int32_t lm_json_token_find(const lm_tokenizer_reading *r, const char *token);
lm_status lm_json_id_read(const json_t *x, const char *token, int32_t *out);
// The byte of a token <0x00> … <0xFF>; -1: another token.
int lm_fallback_byte(const char *token, size_t n);

// Reads a tokenizer.json. LM_USER as above.
lm_status lm_json_tokenizer_read(lm_tokenizer_reading *r, const json_t *root);
// Reads SentencePiece's tokenizer.model. LM_USER as above.
lm_status lm_sentencepiece_read(lm_tokenizer_reading *r, const char *file, size_t n);
#endif
