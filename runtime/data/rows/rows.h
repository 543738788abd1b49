// rows.h - the row index: a file of the cache with the packed rows of each set of documents.
//
// Sets are packed one after the other, each in blocks of at most 2^18 pieces, which bounds the
// memory of packing. A block is first[rows + 1], then the pieces, as in lm_rows. The tail of the
// file lists blocks and sets.
#ifndef LM_DATA_ROWS_ROWS_H
#define LM_DATA_ROWS_ROWS_H
#include "runtime/data/rows/corpus.h"
#include "runtime/data/rows/pack.h"

typedef struct lm_row_block {
  uint64_t offset;    // in the payload, in bytes
  uint64_t first_row; // in its set
  uint64_t n_rows, n_pieces;
} lm_row_block;
typedef struct lm_row_set {
  uint64_t first_block, n_blocks, n_rows, docs, tokens;
  uint64_t dropped, cut; // documents of more than seq tokens
} lm_row_set;

typedef struct lm_row_index {
  lm_store *store;
  const lm_row_set *sets;
  uint64_t n_sets;
  const lm_row_block *blocks;
  uint64_t n_blocks;
  uint64_t seq, n_tokens; // bounds of a row and of the corpus
} lm_row_index;

typedef struct lm_row_plan {
  int64_t seq;
  int64_t docs;   // of a row at most; 0: any number
  int64_t source; // tokens of the sources of a row; 0: documents have no sources
  lm_long_documents long_documents;
  bool by_source;         // each row holds documents of one source only
  const int64_t *samples; // [n_samples]: documents of each holdout of kind sample
  int n_samples;
  const unsigned char *left_out; // [n_docs]: whether a document is in no set; NULL: none is
  uint64_t left_out_key;         // hash that identifies left_out for a given corpus; 0: none
} lm_row_plan;

// Set k * groups + g has the documents of sample k - 1 (k = 0: those in no sample) of source g (of
// all sources, with groups = 1, unless by_source). Opens the index in o->cache or builds it.
// LM_USER: no row can be made. LM_ENV: the cache cannot be read or written.
lm_status lm_row_index_open(const lm_data_options *o, const lm_corpus *c, const lm_row_plan *plan,
                            lm_row_index *out);
void lm_row_index_close(lm_row_index *x);

// Calls visit for each piece of rows first … first + n - 1 of a set, which must exist, until it
// returns an error. The pieces are in the corpus, and a row of them is at most seq long. LM_ENV:
// the file is damaged, or was changed while it was in use.
lm_status lm_row_index_visit(const lm_row_index *x, uint64_t set, uint64_t first, uint64_t n,
                             lm_status (*visit)(void *user, const lm_piece *p), void *user);
#endif
