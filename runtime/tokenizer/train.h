// train.h - learns a byte-level BPE vocabulary from text; the result is the text of a
// tokenizer.json.
//
//   id 0 is <|endoftext|>, ids 1 … 256 the bytes in the order of their characters (bytechar.h),
//   then merges as they were made. Words are cut as GPT-2 cuts them. Every round merges the pair
//   that stands most often in the text; of equally frequent ones that with the least left id, then
//   the least right id (as Hugging Face's trainer does, with min_frequency 2). It ends at the size
//   asked for, or when no pair stands there twice.
// The result is a function of the text alone, in whatever order and by however many threads it was
// given.
#ifndef LM_TOKENIZER_TRAIN_H
#define LM_TOKENIZER_TRAIN_H
#include "runtime/base/base.h"

enum {
  LM_BPE_VOCAB_MIN = 257
};

typedef struct lm_bpe_trainer lm_bpe_trainer;
lm_bpe_trainer *lm_bpe_trainer_create(int workers);
void lm_bpe_trainer_destroy(lm_bpe_trainer *t); // NULL is fine
// Counts the words of a text. Different workers may do so at the same time. Text may be cut where
// lm_tokenizer_cut says. Bytes that are no UTF-8 and words over 1 KiB are not counted.
lm_status lm_bpe_trainer_add(lm_bpe_trainer *t, int worker, const char *text, size_t n);
// Merges up to `vocab` tokens, LM_BPE_VOCAB_MIN at the least. Once; only destroy may follow.
lm_status lm_bpe_trainer_finish(lm_bpe_trainer *t, int32_t vocab, lm_buf *out_json);
#endif
