// pack.h - best-fit packing: which pieces stand in which row.
#ifndef LM_DATA_PACK_H
#define LM_DATA_PACK_H
#include "runtime/base/base.h"

// A document, or a window of one.
typedef struct lm_piece {
  uint64_t start;    // first token in the corpus
  uint32_t len;      // from 1 to the length of a row
  bool begins, ends; // holds the first, the last token of its document
  uint16_t spare;    // 0
} lm_piece;

// Row r is pieces[first[r]] … pieces[first[r + 1] - 1], in the order they were given; so are rows,
// by their first piece.
typedef struct lm_rows {
  lm_piece *pieces;
  uint32_t *first;
  uint32_t n_rows;
} lm_rows;

// Packs pieces, the longest first, each into the fullest row where it fits. Deterministic; O(n *
// seq / 64).
void lm_packed_rows_make(const lm_piece *pieces, uint32_t n, uint32_t seq, lm_rows *out);
void lm_packed_rows_free(lm_rows *r);
#endif
