// subword.h - tokenizers that split a text into words, and each word into tokens. Private to
// runtime/tokenizer.
//
//   text --split at invalid UTF-8--> --added tokens--> --normalizer--> --added tokens-->
//        --pre-tokenizer--> words --word model--> ids
//
// The vocabulary of a byte-level model consists of strings of bytes; of any other model, of strings
// of characters, in which U+2581 is a space (SentencePiece).
#ifndef LM_TOKENIZER_SUBWORD_H
#define LM_TOKENIZER_SUBWORD_H
#include <pthread.h>

#include "runtime/base/utf8.h"
#include "runtime/tokenizer/added.h"
#include "runtime/tokenizer/normal.h"
#include "runtime/tokenizer/pretok.h"
#include "runtime/tokenizer/tokenizer.h"

enum {
  LM_SUBWORD_IDS = 1 << 22 // ids are less than this
};

// The text to which a token is decoded.
typedef struct lm_subword_piece {
  const char *p;
  uint32_t n;
} lm_subword_piece;

typedef struct lm_subword lm_subword;

// How a word becomes tokens. Its parameters are a member of lm_subword.
typedef struct lm_word_model {
  void *(*room_create)(void); // workspace of one thread
  void (*room_destroy)(void *room);
  // Appends the ids of a word of at most INT32_MAX / 2 bytes. A word that is not valid UTF-8 has no
  // character that is.
  void (*encode)(const lm_subword *t, void *room, const char *p, size_t n, lm_tokens *out);
} lm_word_model;
extern const lm_word_model LM_BPE, LM_UNIGRAM, LM_WORDPIECE;

typedef struct lm_bpe_pair {
  int32_t left, right, made;
  uint32_t rank;
} lm_bpe_pair; // made < 0: an empty slot

// Merges: in a word, the pair of the least rank (the leftmost of equal ones) is merged, until no
// pair has a rank. A word starts as bytes, each of which has a token, or as characters (`chars`).
typedef struct lm_bpe {
  lm_bpe_pair *pairs; // hash table; cap_pairs is a power of two
  uint32_t n_pairs, cap_pairs;
  bool whole_words; // ignore_merges: a word that is in the vocabulary becomes that token
} lm_bpe;

// A word becomes the tokens of the greatest sum of scores. A character without a token scores
// `unknown`.
typedef struct lm_unigram {
  double *scores; // [base.vocab]
  double unknown;
  bool single; // sums are computed in single precision, as SentencePiece does
} lm_unigram;

// A word becomes the longest token that it begins with, then the longest ones that continue it; if
// there are none, or if it has more than `longest` characters, it becomes `unk`. The keys of tokens
// that continue a word begin with a prefix, whose node is `inner`.
typedef struct lm_wordpiece {
  uint32_t inner;
  bool has_inner; // some key begins with the prefix
  size_t longest;
} lm_wordpiece;

struct lm_subword {
  lm_tokenizer base;
  const lm_word_model *model;
  lm_bpe bpe;
  lm_unigram unigram;
  lm_wordpiece wordpiece;
  lm_arena *arena;          // holds the bytes of the pieces
  lm_subword_piece *pieces; // [base.vocab]; p NULL: no such id
  uint32_t cap_pieces;
  lm_trie *words;       // from the strings of the vocabulary to ids; empty for bytes without merges
  int32_t byte_id[256]; // -1: the vocabulary has no token for the byte
  int32_t unk;          // id of units without a token; -1: they are dropped
  bool fuse_unk;        // consecutive unk ids become one
  bool chars;           // the vocabulary consists of strings of characters
  lm_normalizer *normal;
  lm_trie *verbatim;              // strings that the normalizer does not change; NULL: none
  lm_added *added, *added_normal; // matched before, after normalization
  lm_added *special;              // all special tokens, for lm_tokenizer_encode_own
  unsigned char *is_special;      // [cap_special]: by id
  uint32_t cap_special;
  lm_pretok *pretok;
  pthread_mutex_t lock;            // protects idle
  struct lm_subword_encoder *idle; // list of workspaces that no thread uses
};

// Without a model. Free with lm_tokenizer_destroy(&t->base).
lm_subword *lm_subword_create(void);
void lm_subword_piece_set(lm_subword *t, int32_t id, const char *p, size_t n); // copies
// x->text must outlive t, and is not normalized.
void lm_subword_special_add(lm_subword *t, const lm_added_token *x);
// The length of the unit at the beginning of p[0..n), n > 0: of a character, or of a byte that is
// not valid UTF-8.
static inline size_t lm_subword_unit(const char *p, size_t n) {
  uint32_t point;
  int length = lm_utf8_decode(p, n, &point);
  return length ? (size_t)length : 1;
}
// Appends the ids of a unit (a character, or bytes that are not valid UTF-8) without a token:
// the tokens of its bytes, else `unk`. *unknown: whether the unit before became `unk`, and
// whether this one did.
void lm_subword_unknown_add(const lm_subword *t, const char *p, size_t n, bool *unknown,
                            lm_tokens *out);
// A merge replaces an earlier merge of the same pair, as in Hugging Face tokenizers.
void lm_bpe_merge_set(lm_bpe *b, int32_t left, int32_t right, int32_t made, uint32_t rank);
#endif
