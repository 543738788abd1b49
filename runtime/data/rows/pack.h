// pack.h - best-fit packing of pieces into rows.
#ifndef LM_DATA_ROWS_PACK_H
#define LM_DATA_ROWS_PACK_H
#include "runtime/base/base.h"

// A document, or a window of one.
typedef struct lm_piece {
  uint64_t start;    // index of the first token in the corpus
  uint32_t len;      // tokens, from 1 to the sequence length
  bool begins, ends; // holds the first, the last token of its document
  bool joined;       // the next piece follows it in its row: they are a pair
  uint8_t spare;     // 0
} lm_piece;

// Row r has pieces[first[r]] … pieces[first[r + 1] - 1]. Pieces keep their order within a row; rows
// are sorted by their first piece.
typedef struct lm_rows {
  lm_piece *pieces;
  uint32_t *first;
  uint32_t n_rows;
} lm_rows;

// What a row has room for.
typedef struct lm_row_room {
  uint32_t seq;    // tokens
  uint32_t docs;   // pieces; 0: any number
  uint32_t source; // tokens beside its pieces
} lm_row_room;

// Packs pieces by decreasing length, each into the fullest row that has room for it; of rows
// without room for beside[i], the tokens beside piece i (NULL: none), only a few are tried. Pieces
// that are joined count as one, but as two of `docs`, which is even. Deterministic; time O(n * seq
// / 64).
void lm_packed_rows_make(const lm_piece *pieces, const uint32_t *beside, uint32_t n,
                         const lm_row_room *room, lm_rows *out);
void lm_packed_rows_free(lm_rows *r);
#endif
