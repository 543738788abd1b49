// mix.h - the source of each training row, and the row's index in the sequence of that source: a
// function of (stages, seed, index of the row). Sequence lengths are counted separately.
//
// Within a stage, rows form blocks of 1,024. Block m has
//   round((m + 1) * 1024 * w) - round(m * 1024 * w)
// rows of a source of weight w; the source of the greatest weight gets the remaining rows. The
// proportions are therefore within one row of exact after any number of blocks. A permutation keyed
// by (seed, stage, m) orders the rows of a block. The rows of a source keep their own order.
#ifndef LM_DATA_FEED_MIX_H
#define LM_DATA_FEED_MIX_H
#include "runtime/data/rows/options.h"

enum {
  LM_MIX_BLOCK = 1024
};

typedef struct lm_mix_stage {
  int64_t first_step, seq;
  uint64_t share[LM_DATA_MIX_MAX]; // weight of each source, in units of 2^-32
  int rest;                        // the source that gets the remaining rows of a block
} lm_mix_stage;
typedef struct lm_mix {
  uint64_t seed;
  int n_sources;
  lm_mix_stage *stages;
  int n_stages;
} lm_mix;

// LM_USER: the weights are not proportions, or there are too many sources.
lm_status lm_mix_create(const lm_data_options *o, lm_mix *out);
void lm_mix_free(lm_mix *m);

// Caches the block of the last row that was looked up. Initialize to zero.
typedef struct lm_mix_cursor {
  bool valid;
  int stage;
  uint64_t rows_per_step, block;
  uint64_t base[LM_DATA_MIX_MAX]; // rows of each source before this block
  uint8_t source[LM_MIX_BLOCK];
  uint16_t rank[LM_MIX_BLOCK];
} lm_mix_cursor;
// Looks up row `row` of a stage that has rows_per_step rows in each step.
void lm_mix_find(const lm_mix *m, int stage, uint64_t row, uint64_t rows_per_step,
                 lm_mix_cursor *cursor, int *out_source, uint64_t *out_index);
#endif
