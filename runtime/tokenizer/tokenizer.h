// tokenizer.h - encodes text as token ids and decodes it. A tokenizer is immutable and thread-safe.
//
// Byte-level tokenizers accept any bytes, and decoding returns exactly the encoded bytes. Bytes
// that are not valid UTF-8 are separated from the text around them and encoded as byte tokens, to
// which merges apply.
#ifndef LM_TOKENIZER_H
#define LM_TOKENIZER_H
#include "contract/tokenizer.h"
#include "runtime/base/base.h"

typedef struct lm_tokens {
  int32_t *ids;
  size_t n, cap;
} lm_tokens;
void lm_tokens_add(lm_tokens *t, int32_t id);
void lm_tokens_add_n(lm_tokens *t, const int32_t *ids, size_t n);
void lm_tokens_free(lm_tokens *t);

typedef struct lm_tokenizer lm_tokenizer;

// What a text is a part of, as a set. A tokenizer may insert a space before a text, and remove
// spaces at its ends, but not where the text was cut.
typedef enum {
  LM_TEXT_WHOLE = 0,
  LM_TEXT_FOLLOWS = 1,  // continues text that was encoded before
  LM_TEXT_PRECEDES = 2, // more text follows
  LM_TEXT_BEGUN = 4     // text was encoded before, and a special token ends it
} lm_text_part;

// The functions of a kind of tokenizer. The first member of the object is the lm_tokenizer.
typedef struct lm_tokenizer_ops {
  // Appends the ids of text. own: see lm_tokenizer_encode_own; NULL: lm_tokenizer_encode_part.
  lm_status (*encode)(const lm_tokenizer *self, const char *text, size_t n,
                      const unsigned char *own, int part, lm_tokens *out);
  // lm_tokenizer_special_find; NULL: there are no special tokens.
  lm_status (*special_find)(const lm_tokenizer *self, const char *text, size_t n,
                            const unsigned char *own, size_t *out_end, bool *out_found);
  bool (*is_special)(const lm_tokenizer *self, int32_t id); // NULL: none is
  // The bytes of one token; NULL: no such token.
  const char *(*piece)(const lm_tokenizer *self, int32_t id, size_t *out_n);
  void (*destroy)(lm_tokenizer *self);
} lm_tokenizer_ops;

enum {
  LM_TOKENIZER_FRAME = 8
};
struct lm_tokenizer {
  const lm_tokenizer_ops *ops;
  lm_tokenizer_kind kind;
  int32_t vocab;     // ids are 0 … vocab - 1
  int32_t eos;       // appended to every document; -1: none
  bool prefix_space; // encoding prepends a space, which decoding removes
  int32_t spaced;    // a token at whose beginning decoding removes no space; -1: none
  bool needs_utf8;   // text must be valid UTF-8; else any bytes are accepted
  // tokens that lm_tokenizer_encode_framed puts before and after a text
  int32_t prefix[LM_TOKENIZER_FRAME], suffix[LM_TOKENIZER_FRAME];
  int n_prefix, n_suffix;
  uint64_t key[2]; // hash: tokenizers with equal keys give equal ids for every text
};

lm_tokenizer *lm_tokenizer_bytes_create(void); // vocab 256: a token is a byte

// Opens a Hugging Face tokenizer.json or SentencePiece's tokenizer.model (merges NULL), or GPT-2's
// encoder.json and vocab.bpe. eos is the token that tokenizer_config.json in the same folder names,
// else the one of a tokenizer.model, else a special token with a common name. LM_USER: a file is
// missing or malformed, or needs an unsupported feature, which the message names.
lm_status lm_tokenizer_open(const char *path, const char *merges, lm_tokenizer **out);
// Whether the content of a file is a tokenizer.model rather than JSON.
bool lm_tokenizer_is_sentencepiece(const char *text, size_t n);
// Parses the content of a tokenizer.json or tokenizer.model; messages call it `what`.
lm_status lm_tokenizer_parse(const char *text, size_t n, const char *what, lm_tokenizer **out);

// LM_USER: the tokenizer of the file `path` is of another kind.
lm_status lm_tokenizer_kind_check(const lm_tokenizer *t, lm_tokenizer_kind kind, const char *path);

// Appends the ids of text.
lm_status lm_tokenizer_encode(const lm_tokenizer *t, const char *text, size_t n, lm_tokens *out);
// Also appends the tokens that the post-processor of the file adds before and after a text, as
// Hugging Face's encode() does.
lm_status lm_tokenizer_encode_framed(const lm_tokenizer *t, const char *text, size_t n,
                                     lm_tokens *out);
// Appends the ids of a part of a text, a set of lm_text_part.
lm_status lm_tokenizer_encode_part(const lm_tokenizer *t, const char *text, size_t n, int part,
                                   lm_tokens *out);
// The same, but a special token is made only of bytes that own[n] marks with 1: elsewhere its text
// is plain text, whatever the vocabulary holds. Special are the added tokens of a tokenizer.json
// with `special`, and the control pieces of a tokenizer.model.
lm_status lm_tokenizer_encode_own(const lm_tokenizer *t, const char *text, size_t n,
                                  const unsigned char *own, int part, lm_tokens *out);
bool lm_tokenizer_is_special(const lm_tokenizer *t, int32_t id); // true of such a token
// Whether the text holds such a token; *out_end: the index behind the first one.
lm_status lm_tokenizer_special_find(const lm_tokenizer *t, const char *text, size_t n,
                                    const unsigned char *own, size_t *out_end, bool *out_found);
// An index at which text can be split without changing its ids, with all common pre-tokenizers:
// between a letter or digit and a space that precedes a letter, or after a line break that follows
// text and precedes a letter. Returns the last such index in the upper half of text; if there is
// none, a character boundary.
size_t lm_tokenizer_cut(const char *text, size_t n);

// Appends the text of the ids. LM_USER: an id is not in the vocabulary.
lm_status lm_tokenizer_decode(const lm_tokenizer *t, const int32_t *ids, size_t n, lm_buf *out);
// The bytes of token id < vocab; NULL, with *out_n = 0: no such token.
const char *lm_tokenizer_piece(const lm_tokenizer *t, int32_t id, size_t *out_n);
void lm_tokenizer_destroy(lm_tokenizer *t); // t may be NULL
#endif
