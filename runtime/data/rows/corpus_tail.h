// corpus_tail.h - the tail of the file of documents, and what a recipe asks of it.
#ifndef LM_DATA_ROWS_CORPUS_TAIL_H
#define LM_DATA_ROWS_CORPUS_TAIL_H
#include "runtime/data/rows/corpus.h"

enum {
  LM_CORPUS_FORMAT = 6
};

typedef struct lm_corpus_tail {
  uint64_t format, token_root, n_docs, read, bad, width, marked, n_sources, n_list, n_columns;
} lm_corpus_tail; // followed by source_first, values, and the list of bad documents

// True if a number of a field fits the type of its column.
bool lm_column_fits(lm_dtype dtype, double x);
// True if some source has untrained tokens.
bool lm_corpus_has_marks(const lm_data_options *o);
// Bytes of a stored id.
int lm_corpus_width(const lm_data_options *o);
// Sets the fields of c from the tail of c->docs. False if the tail is not one of this recipe.
bool lm_corpus_tail_read(lm_corpus *c, const lm_data_options *o);
#endif
