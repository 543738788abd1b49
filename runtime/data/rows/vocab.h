// vocab.h - trains a vocabulary on the sources.
#ifndef LM_DATA_ROWS_VOCAB_H
#define LM_DATA_ROWS_VOCAB_H
#include "runtime/data/rows/options.h"

typedef struct lm_data_trained_on {
  int64_t documents, unusable; // documents that were read; how many of them were skipped
  lm_buf list;                 // the first skipped documents, as in lm_data_info.bad_list
} lm_data_trained_on;          // the caller frees list

// Trains a vocabulary of a kind (BPE, UNIGRAM) and of `vocab` tokens (at least lm_trained_min) and
// appends its tokenizer.json to out_json, from the cache if it holds one. Reads at most 1 GiB of
// text: the first part of each file, in proportion to its size. Only `sources`, `cache`, `threads`
// and `progress` of the options are used. out_on may be NULL. LM_USER: no document is usable; the
// message names the first one and says why.
lm_status lm_data_tokenizer_train(const lm_data_options *o, lm_tokenizer_kind kind, int64_t vocab,
                                  lm_buf *out_json, lm_data_trained_on *out_on);
#endif
