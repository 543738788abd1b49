// corpus.h - every token of every document, one after the other.
#ifndef LM_DATA_CORPUS_H
#define LM_DATA_CORPUS_H
#include "runtime/data/data.h"

typedef struct lm_corpus {
  bool wide;                           // ids are uint32_t, else uint16_t (vocabularies up to 65,536)
  void *ids; size_t n, cap;
  uint64_t *starts; size_t n_docs, cap_docs;   // document i is tokens starts[i] … starts[i + 1] - 1; no document is empty
} lm_corpus;

static inline int32_t lm_corpus_token(const lm_corpus *c, uint64_t i) {
  return c->wide ? (int32_t)((const uint32_t *)c->ids)[i] : ((const uint16_t *)c->ids)[i];
}

lm_status lm_corpus_read(lm_corpus *c, const lm_data_source *s, const lm_tokenizer *t);   // appends all of a text source
void lm_corpus_free(lm_corpus *c);
#endif
