// data.h - training data: the batch of any step, and the rows that are held out.
//
//   files --read, split--> documents --tokenizer--> corpus --hold out, pack--> rows
//         --mix, order by (seed, step)--> batches
//
// All cores tokenize documents while they are read. Token ids and row indexes are files (in a cache
// folder, or in memory) that are read on demand, so the text may be larger than memory; a second
// run with the same files, tokenizer and sequence length finds them ready. Damaged cache files are
// rebuilt.
//
// A row has `seq` positions. A longer document is split into windows; best-fit packing puts windows
// and short documents into rows. Here a short document is one window. Each position has: tok; pos,
// from 0 in each window; seg, the index of the window in its row; next, the document's next token,
// also across windows; w, 0 at the last token of a document, which has no target, and 1 elsewhere;
// of a conversation 1 where the next token is trained (runtime/chat).
// Padding has tok 0, pos 0, seg -1, next 0, w 0.
//
// The order of rows is a function of (seed, step), so each step can be computed without the steps
// before it. Without a mix, row q of the endless sequence of training rows is row
// order(seed, q / rows)(q mod rows) of the index: every row once an epoch, shuffled globally, or,
// with `shuffle`, within windows of neighboring documents (order.h). With a mix, q selects a source
// (mix.h) and the next row of that source's own sequence.
//
// Stages may change the sequence length. Each length has its own index and its own sequence of
// rows; a stage continues the sequence of the last stage of equal length. Holdouts are rows of the
// last stage's length, and no other length trains on a document that is partly in them.
//
// A bad document (invalid UTF-8 or a NUL, a line that is not a JSON object with the field, a line
// over 32 MiB) is skipped, counted and named. Byte tokenizers take text as it is.
//
// Alternatively the source is one file of precomputed batches, which are replayed unchanged.
#ifndef LM_DATA_FEED_DATA_H
#define LM_DATA_FEED_DATA_H
#include "contract/port.h"
#include "runtime/data/rows/options.h"
#include "runtime/weights/safetensors.h"

// Part 0 is the training part, part 1 + i is holdout i.
typedef struct lm_data_part_info {
  const char *name; // "train", or the name of the holdout
  int64_t docs;     // documents that begin in this part
  int64_t tokens;   // positions that are not padding
  int64_t rows;
} lm_data_part_info;

// A further column of the options. extent: its axes behind that of rows; 0: the sequence length of
// the step. min, max: over all values of an int column.
typedef struct lm_data_column_info {
  const char *name;
  int rank;
  int64_t extent[LM_ST_RANK];
  int32_t min, max;
} lm_data_column_info;

typedef struct lm_data_info {
  int n_parts;
  int64_t seq;               // sequence length of the last stage and of the holdouts
  int64_t batch_rows, steps; // batches only: rows per step, number of steps; else 0
  int32_t max_id, max_pos;   // maximum of tok and next, and of pos, over all steps
  int64_t read, bad;         // documents that were read; how many of them were skipped
  const char *bad_list;      // the first of these, a line each: "FILE:LINE: why"; "" if none
  int64_t dropped, cut;      // documents of more tokens than a row, of all parts
  const lm_data_column_info *columns; // as in the options
  int n_columns;
  bool from_cache; // nothing had to be tokenized
  // permission bits to clear on files that are derived from the data: those of the group and of
  // others, if some source file withholds them
  unsigned umask;
} lm_data_info;

// A further column of a batch: `row` elements for each row.
typedef struct lm_batch_column {
  const char *name;
  void *data;
  int64_t row;
} lm_batch_column;

// b.tok, b.pos and so on, as elements of the column's type; or by number.
typedef union lm_batch {
  struct {
#define COLUMN(ID, NAME, TYPE, ...) lm_c_##TYPE *NAME;
#include "contract/columns.def"
    const lm_batch_column *more; // those that are wanted
    int n_more;
  };
  void *column[LM_COLUMNS];
} lm_batch; // each [rows, seq]
// The first position of the batch whose column `prompt` is not 1 and then 0 in its document, or has
// a weight although the next position is of the prompt too; -1: none.
int64_t lm_data_prompt_check(const lm_batch *b, int64_t positions);

typedef struct lm_data lm_data;
// Reads, tokenizes and packs everything, or finds the results in the cache. LM_USER: a file of the
// options is missing or wrong.
lm_status lm_data_open(const lm_data_options *o, lm_data **out);
void lm_data_close(lm_data *d); // d may be NULL
lm_data_info lm_data_info_of(const lm_data *d);
lm_data_part_info lm_data_part(const lm_data *d, int part);
int lm_data_part_find(const lm_data *d, const char *name); // -1: no such part

// A hash of the training documents before they are packed, never 0: equal for equal tokens in equal
// documents, whatever the paths of the files. For precomputed batches it covers only the first
// `batches` steps, since steps may be appended to the file.
lm_status lm_data_key(const lm_data *d, int64_t batches, uint64_t *out);

// LM_ENV: a file that is read during training (of the cache, or of batches) was changed since it
// was opened.
lm_status lm_data_unchanged(const lm_data *d);

int64_t lm_data_seq(const lm_data *d, int64_t step); // sequence length of a step (from 0)

// Rows that a step reads several times.
typedef struct lm_data_reread {
  int source;          // its index in the options; -1: the rows of all sources are one set
  int64_t step, epoch; // tokens of its rows in a step, and of all its rows
} lm_data_reread;
// True if in some stage a step of so many tokens reads rows of a source several times, by its share
// of the mix; *out is the first such source. False for precomputed batches.
bool lm_data_rereads(const lm_data *d, int64_t batch, lm_data_reread *out);

// Fills `rows` rows of micro-batch `micro` of `n_micro` of step `step` (from 0), at the step's
// sequence length. Steps of equal length have equal numbers of rows. Not thread-safe.
lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows,
                       const lm_batch *b);
// The same for n rows of the micro-batch, from row `first`: the share of one of several processes.
lm_status lm_data_fill_rows(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro,
                            int64_t rows, int64_t first, int64_t n, const lm_batch *b);
// Fills rows first … first + rows - 1 of a part, in the order of its index, at the last stage's
// length; rows after the part's last are padding. LM_ENV: the cache is damaged.
lm_status lm_data_fill_part(const lm_data *d, int part, int64_t first, int64_t rows,
                            const lm_batch *b);
// Bytes of text of the predicted tokens (w = 1) of a part: the denominator of bits per byte. 0 if
// unknown.
int64_t lm_data_predicted_bytes(const lm_data *d, int part);

// The default cache folder: `data` inside the folder of compiled kernels (runtime/base/cache.h).
lm_status lm_data_cache_dir(lm_arena *a, const char **out);
#endif
