// pack.h - the row index: which pieces of which documents stand in which row.
#ifndef LM_DATA_PACK_H
#define LM_DATA_PACK_H
#include "runtime/base/base.h"

typedef struct lm_piece {
  uint64_t start;                      // first token in the corpus
  uint32_t len;
  bool begins, ends;                   // holds the first, the last token of its document
} lm_piece;

// Row r is pieces[first[r]] … pieces[first[r + 1] - 1], in the order of the corpus; so are rows, by their first piece.
typedef struct lm_rows { lm_piece *pieces; uint64_t *first; uint64_t n_rows; } lm_rows;

// Cuts the documents for which take(user, i) holds into windows of at most `seq` tokens and packs them, the longest
// first, each into the fullest row where it fits. starts: as in lm_corpus. Deterministic; O(pieces * seq / 64).
lm_status lm_rows_pack(const uint64_t *starts, uint64_t n_docs, bool (*take)(void *user, uint64_t doc), void *user, int64_t seq,
                       lm_rows *out);
void lm_rows_free(lm_rows *r);
#endif
