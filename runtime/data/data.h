// data.h - training data: documents, tokens, packed rows, and the batch of any step.
//
//   files --read, split--> documents --tokenizer--> corpus --holdout, pack--> rows --mix, (seed,
//   step)--> batches
//
// Documents are read in a stream, tokenised by all cores, and kept in files (of a cache folder, or
// in memory) that are mapped, so the text may be larger than memory, and a second run with the same
// files, tokenizer and length of rows finds them ready. A damaged file of the cache is made anew.
//
// A row has `seq` places. A document longer than that is cut into windows; the windows and the
// short documents are packed best-fit. Place by place: tok; pos, from 0 in every window; seg, the
// window's number in its row; next, the document's following token, also across a cut; w, 1 except
// at the last token of a document, which predicts nothing. What stays free has tok 0, pos 0, seg
// -1, next 0, w 0.
//
// Which row stands where is a function of (seed, step) alone, so any step can be had without those
// before it. Without a mix, row q of the endless sequence of training rows is row order(seed, q /
// rows)(q mod rows) of the index, where every row comes once an epoch: by chance among all of them,
// or with `shuffle` among the rows of so many documents that stand together (see order.h). With a
// mix, q chooses a source (see mix.h) and that source's next row, in its own such sequence.
//
// Stages may change the length of rows. Every length has an index and a sequence of its own, in
// which a stage goes on where the last one of that length ended. What is held out is cut from rows
// of the last stage's length, and no document that has a part in it is trained on at another
// length.
//
// A bad row - a document of invalid UTF-8 or with a NUL, a line that is no JSON object with that
// field, or one over 32 MiB - is left out, counted and named. Tokenizers of bytes take text as it
// is.
//
// Or the source is one file of finished batches, which are replayed as they stand.
#ifndef LM_DATA_H
#define LM_DATA_H
#include "runtime/tokenizer/tokenizer.h"

typedef enum {
  LM_SOURCE_TEXT,
  LM_SOURCE_BATCHES,
  LM_SOURCE_JSONL
} lm_source_kind;
typedef struct lm_data_source {
  lm_source_kind kind;
  const char *name;  // for messages
  const char *path;  // text, jsonl: a glob, .zst is unpacked; batches: a safetensors file
  const char *split; // text: what separates documents; NULL: a file is one
  const char *field; // jsonl: the field that holds the text; NULL: "text"
} lm_data_source;

typedef enum {
  LM_HOLDOUT_TAIL,
  LM_HOLDOUT_SAMPLE
} lm_holdout_kind;
typedef struct lm_data_holdout {
  const char *name;
  lm_holdout_kind kind;
  double fraction; // tail: of the rows (of each source, if they are mixed), the last ones
  int64_t docs;    // sample: so many documents, the same ones for every seed
} lm_data_holdout;

// From first_step (of step numbers that begin at 0) on, rows have so many places and come from the
// sources in these proportions.
typedef struct lm_data_stage {
  int64_t first_step;
  const double
      *weights; // [n_sources], >= 0; NULL, in all stages or none: rows of all sources are one set
  int64_t seq;  // 0: the options'
} lm_data_stage;

enum {
  LM_DATA_MIX_MAX = 32,
  LM_DATA_STAGES = 64
}; // sources of a mix, stages, at the most

typedef struct lm_data_options {
  const lm_data_source *sources;
  int n_sources;
  const lm_data_holdout *holdouts;
  int n_holdouts;
  const lm_tokenizer *tokenizer; // must outlive the data; not used by batches
  int64_t seq;                   // places in a row, without stages; batches: ignored
  uint64_t seed;
  int64_t shuffle; // documents among which the order is by chance, at the least; 0: all
  const lm_data_stage *stages;
  int n_stages;      // in order, the first from step 0; may be none
  const char *cache; // folder where files are kept; NULL: only in memory, for this process
  double bad;        // greatest share of bad rows; above it opening fails
  int threads;       // 0: as many as there are cores
  bool prefetch;     // a thread fills the next batch while this one is used
  // Called now and then while files are read, from the thread that opens; may be NULL.
  void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total);
  void *user;
} lm_data_options;

// Part 0 is what is trained on, part 1 + i the i-th holdout.
typedef struct lm_data_part_info {
  const char *name; // "train", or the holdout's
  int64_t docs, tokens,
      rows; // documents: those that begin here; tokens: places that are no padding
} lm_data_part_info;

typedef struct lm_data_info {
  int n_parts;
  int64_t seq;               // of the last stage, and of what is held out
  int64_t batch_rows, steps; // batches only: rows of a step, steps there are; else 0
  int32_t max_id, max_pos; // greatest tok, next and pos that will ever be filled in, at the longest
  int64_t read, bad;       // documents found, and those of them that were left out
  const char *bad_list;    // the first of them, a line each: "FILE:LINE: why"; "" if there are none
  bool from_cache;         // nothing had to be tokenised
  // permissions of the group and of others that go with reading, which some source withholds
  unsigned unshared;
} lm_data_info;

typedef struct lm_batch {
  int32_t *tok, *pos, *seg, *next;
  float *w;
} lm_batch; // each [rows, seq]

typedef struct lm_data lm_data;
// Reads, tokenises and packs everything, or finds that in the cache. LM_USER: what the options name
// is not there or not right.
lm_status lm_data_open(const lm_data_options *o, lm_data **out);
void lm_data_close(lm_data *d); // NULL is fine
lm_data_info lm_data_info_of(const lm_data *d);
lm_data_part_info lm_data_part(const lm_data *d, int part);
int lm_data_part_find(const lm_data *d, const char *name); // -1: none

// Of what is trained on before it is cut into rows: the same for the same tokens in the same
// documents, wherever their files lie and whether or not they come from the cache. Of finished
// batches only the first so many, as others may follow. Not 0.
lm_status lm_data_key(const lm_data *d, int64_t batches, uint64_t *out);

// LM_ENV: a file that is read while training (of the cache, or finished batches) was changed since
// it was opened.
lm_status lm_data_unchanged(const lm_data *d);

int64_t lm_data_seq(const lm_data *d, int64_t step); // places in a row of that step (from 0)

// Rows of micro-batch `micro` of `n_micro` of step `step` (from 0), each `rows` rows of the step's
// length. Steps of one length have the same number of rows. By one thread at a time.
lm_status lm_data_fill(const lm_data *d, int64_t step, int64_t micro, int64_t n_micro, int64_t rows,
                       const lm_batch *b);
// Rows first … first + rows - 1 of a part in the order of its index, at the last stage's length;
// padding behind the last. LM_ENV: the cache is damaged.
lm_status lm_data_fill_part(const lm_data *d, int part, int64_t first, int64_t rows,
                            const lm_batch *b);
// Bytes of text that the predicted tokens (w = 1) of a part stand for: the denominator of bits per
// byte. 0: not known.
int64_t lm_data_predicted_bytes(const lm_data *d, int part);

// Trains a byte-pair vocabulary of that size on the sources (of more than 1 GiB of text, the first
// part of each file, in proportion) and appends its tokenizer.json, from the cache if it is there.
// `tokenizer` and what concerns rows is not looked at. LM_USER, with the first of them and why,
// where no document can be used.
typedef struct lm_data_trained_on {
  int64_t documents, unusable; // those found, and those of them that were left out
  lm_buf list;                 // the first of these, as bad_list; the caller frees it
} lm_data_trained_on;
// out_on may be NULL.
lm_status lm_data_tokenizer_train(const lm_data_options *o, int64_t vocab, lm_buf *out_json,
                                  lm_data_trained_on *out_on);

// The folder for `cache`: data in the folder of compiled kernels (runtime/base/cache.h).
lm_status lm_data_cache_dir(lm_arena *a, const char **out);
#endif
