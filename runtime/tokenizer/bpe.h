// bpe.h - byte-pair encoding: what a file's reader fills in. Private to runtime/tokenizer.
//
// A byte-level vocabulary has a token for each byte, and words begin as bytes. A SentencePiece
// vocabulary (`chars`) has tokens of characters, and words begin as characters; a character without
// a token is its bytes' tokens <0x00> … <0xFF> (byte_fallback). SentencePiece writes a space as
// U+2581. Here its pieces hold a space instead, and U+2581 in a text becomes one.
//
// text --cut at bytes that are no UTF-8--> --added tokens--> --normalizers--> --added tokens-->
// --pre-tokenizer--> words
// --merges--> ids. In a word the pair of the least rank is merged, the leftmost first, until no
// pair has a rank.
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
} lm_bpe_pair; // made < 0: an empty place

#define LM_SPACE_MARK "\xe2\x96\x81" // U+2581
// Where spaces are handled as SentencePiece does: nowhere; with the normalizers; with the
// pre-tokenizers, behind added tokens.
typedef enum {
  LM_SPACES_NONE,
  LM_SPACES_NORMAL,
  LM_SPACES_SPLIT
} lm_spaces;
// A space in front of a text: none; always; unless it begins with one; as that, but only in front
// of the whole text.
typedef enum {
  LM_PREFIX_NONE,
  LM_PREFIX_ALWAYS,
  LM_PREFIX_UNLESS,
  LM_PREFIX_FIRST
} lm_space_prefix;

typedef struct lm_bpe {
  lm_tokenizer base;
  lm_arena *arena; // of the pieces
  lm_bpe_piece *pieces;
  uint32_t cap_pieces;  // [base.vocab]; p NULL: no such id
  int32_t byte_id[256]; // -1: the vocabulary lacks it
  lm_bpe_pair *pairs;
  uint32_t n_pairs, cap_pairs; // hash table; cap_pairs is a power of two
  int32_t unk;                 // what bytes without an id become; -1: nothing
  bool fuse_unk;               // … a run of them one
  bool chars;                  // a SentencePiece vocabulary
  lm_spaces spaces;
  lm_space_prefix prefix;
  bool whole_words; // a word that is a token is that token, whatever the merges
  int32_t *words;
  uint32_t cap_words; // hash table of ids by piece, if needed; -1: an empty place
  lm_normal_form forms[4];
  int n_forms;
  lm_added *added, *added_normal; // found before and after normalizing
  lm_pretok *pretok;
  // what threads write to while they encode; taken and given back under the lock
  pthread_mutex_t lock;
  struct lm_bpe_encoder *idle;
} lm_bpe;

lm_bpe *lm_bpe_create(void); // with lm_bpe_ops: lm_tokenizer_destroy(&b->base) takes it away
void lm_bpe_piece_set(lm_bpe *b, int32_t id, const char *p, size_t n); // copies; id < LM_BPE_IDS
// Of two merges of one pair the later one holds, as in Hugging Face tokenizers.
void lm_bpe_merge_set(lm_bpe *b, int32_t left, int32_t right, int32_t made, uint32_t rank);
void lm_bpe_words_index(lm_bpe *b); // when all pieces are set
extern const lm_tokenizer_ops lm_bpe_ops;
#endif
