// sealed_data.h - the data whose files in the cache sealed_test.c and sealed_fuzz.c change: two
// sources of JSON lines with two columns, two holdouts, and room for some of the rows.
#ifndef LM_TEST_SEALED_DATA_H
#define LM_TEST_SEALED_DATA_H
#include "runtime/data/feed/data.h"

enum {
  SEQ = 16,
  ROWS = 4,
  DOCS_OF_ROW = 4,
  LINES = 12
};

typedef struct {
  int32_t ids[4][ROWS * SEQ];
  float w[ROWS * SEQ];
  float score[ROWS * DOCS_OF_ROW];
  int32_t rank[ROWS * DOCS_OF_ROW];
} values;

// Appends LINES documents, numbered from `from` on.
static inline void sealed_lines(lm_buf *b, int from) {
  for (int i = from; i < from + LINES; i++)
    lm_buf_printf(b, "{\"text\": \"%.*s %d\", \"score\": %d.5, \"rank\": %d}\n", 3 + i % 20,
                  "abcdefghijklmnopqrstuvwxyzabcd", i, i, -i);
}

// bad: the share of documents that may be left out.
static inline lm_data_options sealed_options(const lm_data_source *sources,
                                             const lm_tokenizer *tokenizer, const char *cache,
                                             double bad) {
  static const double weights[] = {1, 2};
  static const lm_data_stage stage = {.first_step = 0, .seq = SEQ, .weights = weights};
  static const lm_data_column columns[] = {{"score", LM_F32, LM_COLUMN_OF_DOCUMENTS},
                                           {"rank", LM_INT, LM_COLUMN_OF_DOCUMENTS}};
  static const lm_data_holdout holdouts[] = {{"dev", LM_HOLDOUT_SAMPLE, 0, 3},
                                             {"end", LM_HOLDOUT_TAIL, 0.1, 0}};
  return (lm_data_options){.sources = sources,
                           .n_sources = 2,
                           .holdouts = holdouts,
                           .n_holdouts = 2,
                           .tokenizer = tokenizer,
                           .seq = SEQ,
                           .stages = &stage,
                           .n_stages = 1,
                           .cache = cache,
                           .bad = bad,
                           .threads = 1,
                           .docs = DOCS_OF_ROW,
                           .columns = columns,
                           .n_columns = 2};
}

// A batch of ROWS rows in *v; its columns are in `more`.
static inline lm_batch sealed_batch(values *v, lm_batch_column more[2]) {
  more[0] = (lm_batch_column){"score", v->score, DOCS_OF_ROW};
  more[1] = (lm_batch_column){"rank", v->rank, DOCS_OF_ROW};
  return (lm_batch){{v->ids[0], v->ids[1], v->ids[2], v->ids[3], v->w, more, 2}};
}
#endif
