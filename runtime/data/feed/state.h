// state.h - the members of lm_data. Private to runtime/data/feed.
#ifndef LM_DATA_FEED_STATE_H
#define LM_DATA_FEED_STATE_H
#include "runtime/data/feed/data.h"
#include "runtime/data/feed/mix.h"
#include "runtime/data/feed/order.h"
#include "runtime/data/feed/prefetch.h"
#include "runtime/data/feed/replay.h"
#include "runtime/data/rows/rows.h"

typedef struct {
  uint64_t set, first, n;
} lm_data_span; // rows first … first + n - 1 of a set
typedef struct {
  char *name;
  lm_data_span *spans; // [groups]
  uint64_t n;          // rows of all spans
  int64_t docs, tokens;
} lm_data_rows;
typedef struct {
  int64_t seq;
  lm_row_index index;
  lm_data_rows *train;
  uint64_t *windows; // [groups]: shuffle window in rows; 0: all
} lm_data_length;
typedef struct {
  int64_t first_step;
  int length;
} lm_data_stage_start;

struct lm_data {
  uint64_t seed, shuffle;
  int64_t seq; // sequence length of the last stage
  const lm_tokenizer *tokenizer;
  lm_replay *replay; // NULL: the members below are used
  unsigned umask;    // see lm_data_info
  lm_data_column_info *columns;
  const lm_data_column *column_options;
  int *fields; // [n_columns]: the index in the corpus of a column of texts; -1: it is `prefer`
  int n_columns;
  int64_t source; // tokens of the sources of a row; 0: documents have none
  lm_corpus corpus;
  lm_data_stage_start *stages;
  int n_stages; // at least one, the first from step 0
  lm_data_length *lengths;
  int n_lengths; // the first is the length of the last stage
  int groups;    // with a mix one per source, else 1
  lm_data_rows *parts;
  int n_parts;           // they belong to the first length
  lm_mix mix;            // n_stages 0: no mix
  lm_mix_cursor *cursor; // used by the thread that fills
  lm_prefetch *prefetch; // optional
};

int lm_data_stage_of(const lm_data *d, int64_t step); // index of the stage that contains a step
// Calls visit for each piece of a span of rows (lm_row_index_visit).
lm_status lm_data_span_visit(const lm_data_length *x, const lm_data_span *s,
                             lm_status (*visit)(void *user, const lm_piece *p), void *user);
// Describes the further columns of texts, whose names are known.
void lm_data_columns_begin(lm_data *d, const lm_data_options *o);
// Clears the further columns of row `row`, of `seq` positions, of b.
void lm_data_columns_clear(const lm_batch *b, int64_t row);
// A document of a row: its number there, its n positions from `at`, and its first token.
typedef struct {
  int64_t row, doc, at, n;
  uint64_t start;
} lm_data_document;
// Fills the further columns for a document.
lm_status lm_data_columns_fill(const lm_data *d, const lm_batch *b, const lm_data_document *x);
// Fills the columns of the source of a document from position *at on, and advances *at. Does
// nothing if documents have no sources. LM_ENV: the cache is damaged.
lm_status lm_data_source_fill(const lm_data *d, const lm_batch *b, const lm_data_document *x,
                              int64_t *at);
// Fills the column `prompt`, if the batch has it, of a document whose weights are filled.
void lm_data_prompt_fill(const lm_batch *b, int64_t first, int64_t n);
lm_status lm_data_batch_fill(void *user, const lm_batch_id *id, const lm_batch *b); // lm_fill_fn
#endif
