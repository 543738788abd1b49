// data.h - training data: documents, tokens, packed rows, and the batch of any step.
//
//   sources --read, split--> documents --tokenizer--> corpus --holdout, pack--> rows --(seed, step)--> batches
//
// A row has `seq` places. A document longer than that is cut into windows; the windows and the short documents are
// packed best-fit. Place by place: tok; pos, from 0 in every window; seg, the window's number in its row; next, the
// document's following token, also across a cut; w, 1 except at the last token of a document, which predicts nothing.
// What stays free has tok 0, pos 0, seg -1, next 0, w 0.
//
// Which row stands where is a function of (seed, step) alone: row q of the endless sequence of training rows is row
// permutation(seed, q / rows)(q mod rows) of the index, so any step can be had without those before it.
//
// Or the source is one file of finished batches, which are replayed as they stand.
#ifndef LM_DATA_H
#define LM_DATA_H
#include "runtime/tokenizer/tokenizer.h"

typedef enum { LM_SOURCE_TEXT, LM_SOURCE_BATCHES } lm_source_kind;
typedef struct lm_data_source {
  lm_source_kind kind;
  const char *name;                    // for messages
  const char *path;                    // text: a glob; batches: a safetensors file
  const char *split;                   // text: what separates documents; NULL: a file is one
} lm_data_source;

typedef enum { LM_HOLDOUT_TAIL, LM_HOLDOUT_SAMPLE } lm_holdout_kind;
typedef struct lm_data_holdout {
  const char *name;
  lm_holdout_kind kind;
  double fraction;                     // tail: of the rows, the last ones
  int64_t docs;                        // sample: so many documents, the same ones for every seed
} lm_data_holdout;

typedef struct lm_data_options {
  const lm_data_source *sources; int n_sources;
  const lm_data_holdout *holdouts; int n_holdouts;
  const lm_tokenizer *tokenizer;       // must outlive the data; not used by batches
  int64_t seq;                         // places in a row; batches: ignored
  uint64_t seed;
} lm_data_options;

// Part 0 is what is trained on, part 1 + i the i-th holdout.
typedef struct lm_data_part_info {
  const char *name;                    // "train", or the holdout's
  int64_t docs, tokens, rows;          // documents: those that begin here; tokens: places that are no padding
} lm_data_part_info;

typedef struct lm_data_info {
  int n_parts;
  int64_t seq;
  int64_t batch_rows, steps;           // batches only: rows of a step, steps there are; else 0
  int32_t max_id, max_pos;             // greatest tok, next and pos that will ever be filled in
} lm_data_info;

typedef struct lm_batch { int32_t *tok, *pos, *seg, *next; float *w; } lm_batch;   // each [rows, seq]

typedef struct lm_data lm_data;
// Reads, tokenises and packs everything. LM_USER: what the options name is not there or not right.
lm_status lm_data_open(const lm_data_options *o, lm_data **out);
void lm_data_close(lm_data *d);        // NULL is fine
lm_data_info lm_data_info_of(const lm_data *d);
lm_data_part_info lm_data_part(const lm_data *d, int part);
int lm_data_part_find(const lm_data *d, const char *name);   // -1: none

// Rows of micro-batch `micro` of `n_micro` of step `step` (from 0), each `rows` rows.
lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows, const lm_batch *b);
// Rows first … first + rows - 1 of a part in the order of its index; padding behind the last.
void lm_data_fill_part(const lm_data *d, int part, int64_t first, int64_t rows, const lm_batch *b);
// Bytes of text that the predicted tokens (w = 1) of a part stand for: the denominator of bits per byte. 0: not known.
int64_t lm_data_predicted_bytes(const lm_data *d, int part);
#endif
