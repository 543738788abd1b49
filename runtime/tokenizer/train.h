// train.h - trains a byte-level BPE vocabulary; the result is the text of a tokenizer.json.
//
// Id 0 is <|endoftext|>, ids 1 … 256 are the bytes in the order of their characters (bytechar.h),
// and the merges follow in the order in which they were made. Text is split into words as in GPT-2.
// Each iteration merges the most frequent pair; ties are resolved by the least left id, then the
// least right id (as in Hugging Face's trainer with min_frequency 2). Training ends when the
// vocabulary has the requested size, or when no pair occurs twice.
//
// The result depends only on the text, not on its order or on the number of threads.
#ifndef LM_TOKENIZER_TRAIN_H
#define LM_TOKENIZER_TRAIN_H
#include "runtime/base/base.h"

enum {
  LM_BPE_VOCAB_MIN = 257
};

typedef struct lm_bpe_trainer lm_bpe_trainer;
lm_bpe_trainer *lm_bpe_trainer_create(int workers);
void lm_bpe_trainer_destroy(lm_bpe_trainer *t); // t may be NULL
// Counts the words of a text. Different workers may call this concurrently. Text may be split by
// lm_tokenizer_cut. Bytes that are not valid UTF-8 and words over 1 KiB are not counted.
lm_status lm_bpe_trainer_add(lm_bpe_trainer *t, int worker, const char *text, size_t n);
// Trains at most `vocab` tokens (vocab >= LM_BPE_VOCAB_MIN). Only destroy may be called afterwards.
lm_status lm_bpe_trainer_finish(lm_bpe_trainer *t, int32_t vocab, lm_buf *out_json);
#endif
