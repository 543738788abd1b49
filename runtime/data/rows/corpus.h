// corpus.h - the token ids of all documents, concatenated, and the range of each document. Both are
// files of the cache.
#ifndef LM_DATA_ROWS_CORPUS_H
#define LM_DATA_ROWS_CORPUS_H
#include "runtime/data/read/reader.h"
#include "runtime/data/read/store.h"
#include "runtime/data/rows/options.h"

typedef struct lm_doc {
  uint64_t start, end; // tokens start … end - 1; never empty
  uint64_t second; // of a pair, or a source and its target: where the second text begins; else 0
} lm_doc;

typedef struct lm_corpus {
  lm_store *tokens, *docs;
  int width; // bytes of a stored id: 1 for vocabularies up to 256, 2 up to 65,536, else 4
  // some source has untrained tokens: the highest bit of a stored id is LM_TOKEN_UNTRAINED, so a
  // width holds the ids of half as large a vocabulary
  bool marked;
  uint64_t n_docs;
  int64_t vocab; // all ids are less than this
  // [n_sources + 1]: source i has documents source_first[i] … source_first[i + 1] - 1
  const uint64_t *source_first;
  // [n_docs][n_columns]: the numbers of each document in the columns that are fields of JSON
  const double *values;
  int n_columns;
  uint64_t read, bad;   // documents that were read; how many of them were skipped
  const char *bad_list; // the first skipped documents, one a line
  bool from_cache;
} lm_corpus;

// Reads n tokens from index `first`; the range must exist. weights: of each token as a target, 0 or
// 1; optional. LM_ENV: the file is damaged.
lm_status lm_corpus_read(const lm_corpus *c, uint64_t first, uint64_t n, int32_t *out,
                         float *weights);
// Reads the ranges of n documents from index `first`; they must exist. LM_ENV: as above.
lm_status lm_corpus_docs(const lm_corpus *c, uint64_t first, uint64_t n, lm_doc *out);
// LM_ENV: a file was changed since it was opened.
lm_status lm_corpus_unchanged(const lm_corpus *c);

// The document that holds token `at`. LM_ENV: the file is damaged.
lm_status lm_corpus_doc_of(const lm_corpus *c, uint64_t at, uint64_t *out);
// True if a column is a field of JSON.
bool lm_column_is_field(const lm_data_options *o, const lm_data_column *x);

// Opens the corpus in o->cache, or reads and tokenizes the files. LM_USER: the share of bad
// documents exceeds o->bad.
lm_status lm_corpus_open(const lm_data_options *o, const lm_file_list *files, lm_corpus *out);
void lm_corpus_close(lm_corpus *c);

// The path of a file of the cache, allocated in `a`; NULL if dir is NULL.
const char *lm_cache_path(lm_arena *a, const char *dir, const uint64_t key[2], const char *ending);
#endif
