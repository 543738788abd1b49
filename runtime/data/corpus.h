// corpus.h - every token of every document, one after the other, and where each document is: two
// files of the cache.
#ifndef LM_DATA_CORPUS_H
#define LM_DATA_CORPUS_H
#include "runtime/data/reader.h"
#include "runtime/data/store.h"

typedef struct lm_doc {
  uint64_t start, end;
} lm_doc; // tokens start … end - 1; no document is empty

typedef struct lm_corpus {
  lm_store *tokens, *docs;
  int width; // bytes of an id: 1 for vocabularies up to 256, 2 up to 65,536, else 4
  uint64_t n_docs;
  int64_t vocab; // ids are below it
  // [n_sources + 1]: source i is documents source_first[i] … source_first[i + 1] - 1
  const uint64_t *source_first;
  uint64_t read, bad;   // documents found; those left out
  const char *bad_list; // lines
  bool from_cache;
} lm_corpus;

// Tokens first … first + n - 1, which exist. LM_ENV: the file is damaged.
lm_status lm_corpus_read(const lm_corpus *c, uint64_t first, uint64_t n, int32_t *out);
// Documents first … first + n - 1, which exist.
lm_status lm_corpus_docs(const lm_corpus *c, uint64_t first, uint64_t n, lm_doc *out);
// LM_ENV: a file was changed since it was opened.
lm_status lm_corpus_unchanged(const lm_corpus *c);

// Finds the corpus in o->cache or reads the files. LM_USER: more bad rows than o->bad.
lm_status lm_corpus_open(const lm_data_options *o, const lm_file_list *files, lm_corpus *out);
void lm_corpus_close(lm_corpus *c);

// The path of a file of the cache; NULL without a folder.
const char *lm_cache_path(lm_arena *a, const char *dir, const uint64_t key[2], const char *ending);
#endif
