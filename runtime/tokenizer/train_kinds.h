// train_kinds.h - the trainers of each kind. Private to runtime/tokenizer.
#ifndef LM_TOKENIZER_TRAIN_KINDS_H
#define LM_TOKENIZER_TRAIN_KINDS_H
#include "runtime/tokenizer/words.h"

#define LM_TRAINED_EOS "<|endoftext|>" // id 0

// Train `vocab` tokens on words in any order; the words are changed. They append the rest of a
// tokenizer.json to out_json, from the pre-tokenizer on.
void lm_train_bpe(lm_word *words, size_t n_words, int32_t vocab, lm_buf *out_json);
void lm_train_unigram(lm_word *words, size_t n_words, int32_t vocab, lm_buf *out_json);
#endif
