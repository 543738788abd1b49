// bpe.h - byte-pair encoding. Private to runtime/tokenizer.
//
// With a byte-level vocabulary, a word starts as bytes, and each byte has a token. With a
// SentencePiece vocabulary (`chars`), a word starts as characters; a character without a token
// becomes the byte tokens <0x00> … <0xFF> (byte_fallback). SentencePiece files write a space as
// U+2581; here the tokens contain a space instead, and U+2581 in a text is treated as a space.
//
//   text --split at invalid UTF-8--> --added tokens--> --normalizers--> --added tokens-->
//        --pre-tokenizer--> words --merges--> ids
// In a word, the pair of the least rank (the leftmost of equal ones) is merged, until no pair has a
// rank.
#ifndef LM_TOKENIZER_BPE_H
#define LM_TOKENIZER_BPE_H
#include <pthread.h>

#include "runtime/tokenizer/added.h"
#include "runtime/tokenizer/normal.h"
#include "runtime/tokenizer/pretok.h"
#include "runtime/tokenizer/tokenizer.h"

enum {
  LM_BPE_IDS = 1 << 22
}; // ids are less than this
typedef struct lm_bpe_piece {
  const char *p;
  uint32_t n;
} lm_bpe_piece;
typedef struct lm_bpe_pair {
  int32_t left, right, made;
  uint32_t rank;
} lm_bpe_pair; // made < 0: an empty slot

#define LM_SPACE_MARK "\xe2\x96\x81" // U+2581
// The stage that handles spaces as SentencePiece does: none, the normalizers, or the pre-tokenizer.
typedef enum {
  LM_SPACES_NONE,
  LM_SPACES_NORMAL,
  LM_SPACES_SPLIT
} lm_spaces;
// Whether a space is prepended to text: never; always; unless the text begins with one; as UNLESS,
// but only to the beginning of the whole text.
typedef enum {
  LM_PREFIX_NONE,
  LM_PREFIX_ALWAYS,
  LM_PREFIX_UNLESS,
  LM_PREFIX_FIRST
} lm_space_prefix;

typedef struct lm_bpe {
  lm_tokenizer base;
  lm_arena *arena;      // holds the bytes of the pieces
  lm_bpe_piece *pieces; // [base.vocab]; p NULL: no such id
  uint32_t cap_pieces;
  int32_t byte_id[256]; // -1: the vocabulary has no token for the byte
  lm_bpe_pair *pairs;
  uint32_t n_pairs, cap_pairs; // hash table; cap_pairs is a power of two
  int32_t unk;                 // id of bytes without a token; -1: they are dropped
  bool fuse_unk;               // consecutive unk ids become one
  bool chars;                  // a SentencePiece vocabulary
  lm_spaces spaces;
  lm_space_prefix prefix;
  bool whole_words; // ignore_merges: a word that is in the vocabulary becomes that token
  int32_t *words;   // hash table from pieces to ids, if needed; -1: an empty slot
  uint32_t cap_words;
  lm_normal_form forms[4];
  int n_forms;
  lm_added *added, *added_normal; // matched before, after normalization
  lm_pretok *pretok;
  pthread_mutex_t lock;        // protects idle
  struct lm_bpe_encoder *idle; // list of workspaces that no thread uses
} lm_bpe;

lm_bpe *lm_bpe_create(void); // free with lm_tokenizer_destroy(&b->base)
void lm_bpe_piece_set(lm_bpe *b, int32_t id, const char *p, size_t n); // copies; id < LM_BPE_IDS
// A merge replaces an earlier merge of the same pair, as in Hugging Face tokenizers.
void lm_bpe_merge_set(lm_bpe *b, int32_t left, int32_t right, int32_t made, uint32_t rank);
void lm_bpe_words_index(lm_bpe *b); // builds `words`; call it after all pieces were set
extern const lm_tokenizer_ops lm_bpe_ops;
#endif
