// train.h - trains vocabularies; the result is the text of a tokenizer.json.
//
// BPE (byte level): id 0 is <|endoftext|>, ids 1 … 256 are the bytes in the order of their
// characters (bytechar.h), and the merges follow in the order in which they were made. Text is
// split into words as in GPT-2. Each iteration merges the most frequent pair; ties are resolved by
// the least left id, then the least right id (as in Hugging Face's trainer with min_frequency 2).
// Training ends when the vocabulary has the requested size, or when no pair occurs twice.
//
// UNIGRAM: id 0 is <|endoftext|>, id 1 <unk>, ids 2 … 257 are the bytes <0x00> … <0xFF> of
// characters that are not in the vocabulary, and the pieces follow by decreasing probability. Text
// is split at line breaks and before spaces, which become U+2581. The pieces are chosen by
// expectation maximization (train_unigram.c).
//
// The result depends only on the text, not on its order or on the number of threads.
#ifndef LM_TOKENIZER_TRAIN_H
#define LM_TOKENIZER_TRAIN_H
#include "contract/tokenizer.h"
#include "runtime/base/base.h"

enum {
  LM_TRAINED_BPE_MIN = 257, // the least sizes of vocabularies
  LM_TRAINED_UNIGRAM_MIN = 300
};

typedef struct lm_vocab_trainer lm_vocab_trainer;
// kind: BPE or UNIGRAM.
lm_vocab_trainer *lm_vocab_trainer_create(lm_tokenizer_kind kind, int workers);
void lm_vocab_trainer_destroy(lm_vocab_trainer *t); // t may be NULL
// Counts the words of a text. Different workers may call this concurrently. Text may be split by
// lm_tokenizer_cut. Bytes that are not valid UTF-8 and words over 1 KiB are not counted.
lm_status lm_vocab_trainer_add(lm_vocab_trainer *t, int worker, const char *text, size_t n);
// Trains at most `vocab` tokens. Only destroy may be called afterwards. LM_USER: `vocab` is less
// than the least size of the kind.
lm_status lm_vocab_trainer_finish(lm_vocab_trainer *t, int32_t vocab, lm_buf *out_json);
// The least size of a vocabulary of a kind.
int32_t lm_trained_min(lm_tokenizer_kind kind);
#endif
