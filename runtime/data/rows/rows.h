// rows.h - the row index: a file of the cache with the rows of each set of documents.
//
// Sets are packed one after the other, each in blocks of at most 2^18 pieces, so packing takes
// bounded memory. Block: first[rows + 1], then pieces, as in lm_rows. The tail of the file says
// where blocks and sets are.
#ifndef LM_DATA_ROWS_H
#define LM_DATA_ROWS_H
#include "runtime/data/rows/corpus.h"
#include "runtime/data/rows/pack.h"

typedef struct lm_row_block {
  uint64_t offset, first_row, n_rows, n_pieces;
} lm_row_block; // first_row: in its set
typedef struct lm_row_set {
  uint64_t first_block, n_blocks, n_rows, docs, tokens;
} lm_row_set;

typedef struct lm_row_index {
  lm_store *store;
  const lm_row_set *sets;
  uint64_t n_sets;
  const lm_row_block *blocks;
  uint64_t n_blocks;
} lm_row_index;

typedef struct lm_row_plan {
  int64_t seq;
  bool by_source; // rows of one source each
  const int64_t *samples;
  int n_samples;                 // documents held out, for each sample
  const unsigned char *left_out; // [document]: it is in no set; NULL: none is
  uint64_t left_out_key;         // which ones they are, given the corpus; 0: none
} lm_row_plan;

// Set k * groups + g: documents of sample k - 1 (k = 0: of none), of source g (one group of all if
// not by_source).
lm_status lm_row_index_open(const lm_data_options *o, const lm_corpus *c, const lm_row_plan *plan,
                            lm_row_index *out);
void lm_row_index_close(lm_row_index *x);

// Calls visit for the pieces of rows first … first + n - 1 of a set, which exist, until it fails.
// LM_ENV: the file is damaged.
lm_status lm_row_index_visit(const lm_row_index *x, uint64_t set, uint64_t first, uint64_t n,
                             lm_status (*visit)(void *user, const lm_piece *p), void *user);
#endif
