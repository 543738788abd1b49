// options.h - what training data to read, and how to make rows and batches of it.
#ifndef LM_DATA_ROWS_OPTIONS_H
#define LM_DATA_ROWS_OPTIONS_H
#include "contract/port.h"
#include "runtime/data/read/source.h"
#include "runtime/tokenizer/tokenizer.h"

typedef enum {
  LM_HOLDOUT_TAIL,
  LM_HOLDOUT_SAMPLE
} lm_holdout_kind;

typedef struct lm_data_holdout {
  const char *name;
  lm_holdout_kind kind;
  // tail: share of the rows, taken from the end (of each source, if there is a mix).
  double fraction;
  int64_t docs; // sample: the number of documents; the choice does not depend on the seed
} lm_data_holdout;

// A stage begins at first_step (step numbers begin at 0) and ends where the next one begins.
typedef struct lm_data_stage {
  int64_t first_step;
  const double *weights; // [n_sources], >= 0: the mix. NULL (in all stages or in none): no mix
  int64_t seq;           // sequence length; 0: the one of the options
} lm_data_stage;

// What becomes of a document of more tokens than a row has.
typedef enum {
  LM_LONG_SPLIT, // it is split into windows
  LM_LONG_DROP,  // it is left out
  LM_LONG_CUT,   // its first `seq` tokens are kept
  LM_LONG_ERROR
} lm_long_documents;

enum {
  LM_DATA_MIX_MAX = 32, // maximum number of sources of a mix
  LM_DATA_STAGES = 64   // maximum number of stages
};

// A further column of the batches (contract/port.h). Sources of pairs have the column `prefer`: 1
// for the text that is preferred and -1 for the other. `prompt` follows from the weights. Any other
// column of a text is the number in the field of that name in its line of JSON.
typedef struct lm_data_column {
  const char *name;
  lm_dtype dtype; // LM_INT or LM_F32
  lm_column_of of;
} lm_data_column;

// All pointers are borrowed: they must outlive the data that was opened with the options.
typedef struct lm_data_options {
  const lm_data_source *sources;
  int n_sources;
  const lm_data_holdout *holdouts;
  int n_holdouts;
  const lm_tokenizer *tokenizer; // unused if the source is a file of batches
  int64_t seq;                   // tokens in a row, without stages; unused for batches
  uint64_t seed;
  int64_t shuffle; // minimum size, in documents, of a shuffle window; 0: everything
  lm_long_documents long_documents;
  const lm_data_stage *stages; // sorted by first_step, the first from step 0
  int n_stages;                // may be 0
  const char *cache;           // folder of the cache; NULL: keep everything in memory
  double bad;                  // maximum share of bad documents; opening fails if there are more
  int threads;                 // 0: one per core
  bool prefetch;               // a thread fills the next batch while the caller uses this one
  // Called from time to time while files are read, by the thread that opens the data. Optional.
  void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
  void *user;
  int64_t docs;   // documents of a row at most, each text of a pair counted; 0: any number
  int64_t source; // tokens of the sources of a row; 0: documents have no sources
  const lm_data_column *columns;
  int n_columns;
} lm_data_options;
#endif
