// mix.h - which source the rows of training come from, and the how-manieth row of that source each
// one is: a function of (stages, seed, number of the row). Only rows of one length are counted with
// each other.
//
// Within a stage, rows stand in blocks of 1,024. Block m has round((m + 1) * 1024 * w) - round(m *
// 1024 * w) rows of a source of share w, and the source of the greatest share what remains, so the
// shares hold within one row of any number of blocks; inside a block a permutation keyed by (seed,
// stage, m) says where they stand. Rows of one source come in its own order.
#ifndef LM_DATA_MIX_H
#define LM_DATA_MIX_H
#include "runtime/data/feed/data.h"

enum {
  LM_MIX_BLOCK = 1024
};

typedef struct lm_mix_stage {
  int64_t first_step, seq;
  uint64_t share[LM_DATA_MIX_MAX];
  int rest;
} lm_mix_stage; // of 2^32
typedef struct lm_mix {
  uint64_t seed;
  int n_sources;
  lm_mix_stage *stages;
  int n_stages;
} lm_mix;

// LM_USER: weights that are no shares, too many sources.
lm_status lm_mix_create(const lm_data_options *o, lm_mix *out);
void lm_mix_free(lm_mix *m);

// Where the last row that was looked for stands; zeroed at first. Neighbours are then found without
// computing a block.
typedef struct lm_mix_cursor {
  bool valid;
  int stage;
  uint64_t rows_per_step, block;
  uint64_t base[LM_DATA_MIX_MAX]; // rows of each source before this block
  uint8_t source[LM_MIX_BLOCK];
  uint16_t rank[LM_MIX_BLOCK];
} lm_mix_cursor;
// Row `row` of a stage, whose steps have so many.
void lm_mix_find(const lm_mix *m, int stage, uint64_t row, uint64_t rows_per_step,
                 lm_mix_cursor *place, int *out_source, uint64_t *out_index);
#endif
