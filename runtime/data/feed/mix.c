// mix.c - see mix.h.
#include "runtime/data/feed/mix.h"

#include <math.h>

#include "runtime/data/rows/permute.h"

enum {
  STREAM_MIX = 500
}; // stage s uses the random stream STREAM_MIX + s

// ---- weights

static lm_status stage_read(const lm_data_options *o, int index, lm_mix_stage *out) {
  const lm_data_stage *x = &o->stages[index];
  double total = 0;
  out->first_step = x->first_step;
  out->seq = x->seq ? x->seq : o->seq;
  for (int i = 0; i < o->n_sources; i++) {
    if (!(x->weights[i] >= 0) || isinf(x->weights[i]))
      return lm_fail(LM_USER, "mix: %g is not a valid weight of source %s", x->weights[i],
                     o->sources[i].name);
    total += x->weights[i];
  }
  if (!(total > 0) || isinf(total))
    return lm_fail(LM_USER, "mix: the weights sum to %g", total);
  for (int i = 0; i < o->n_sources; i++) {
    out->share[i] = (uint64_t)(x->weights[i] / total * 0x1p32 + 0.5);
    if (out->share[i] > out->share[out->rest])
      out->rest = i;
  }
  return NULL;
}

lm_status lm_mix_create(const lm_data_options *o, lm_mix *out) {
  *out = (lm_mix){
      .seed = o->seed,
      .n_sources = o->n_sources,
      .n_stages = o->n_stages,
  };
  if (!o->n_stages || !o->stages[0].weights)
    return NULL;
  if (o->n_sources > LM_DATA_MIX_MAX)
    return lm_fail(LM_USER, "mix: %d sources exceed the maximum of %d", o->n_sources,
                   LM_DATA_MIX_MAX);
  out->stages = lm_calloc((size_t)o->n_stages, sizeof *out->stages);
  lm_status s = NULL;
  for (int i = 0; i < o->n_stages && !s; i++)
    s = stage_read(o, i, &out->stages[i]);
  if (s)
    lm_mix_free(out);
  return s;
}

void lm_mix_free(lm_mix *m) {
  lm_free(m->stages);
  *m = (lm_mix){0};
}

// ---- counting: rows of each source in the first `blocks` blocks of a stage

static void blocks_count(const lm_mix *m, int stage, uint64_t blocks, uint64_t *out) {
  const lm_mix_stage *s = &m->stages[stage];
  uint64_t rows = blocks * LM_MIX_BLOCK;
  out[s->rest] = rows;
  for (int i = 0; i < m->n_sources; i++) {
    if (i == s->rest)
      continue;
    out[i] = (uint64_t)(((unsigned __int128)rows * s->share[i] + (1u << 31)) >> 32);
    out[s->rest] -= out[i];
  }
}

static lm_philox_key2 block_key(const lm_mix *m, int stage, uint64_t block) {
  return lm_philox_key(m->seed ^ lm_philox_mix(block), STREAM_MIX + (uint64_t)stage);
}

// Fills in source and rank of each row of a block.
static void block_fill(const lm_mix *m, int stage, uint64_t block, lm_mix_cursor *p) {
  uint64_t before[LM_DATA_MIX_MAX], after[LM_DATA_MIX_MAX];
  uint16_t end[LM_DATA_MIX_MAX], seen[LM_DATA_MIX_MAX] = {0};
  blocks_count(m, stage, block, before);
  blocks_count(m, stage, block + 1, after);
  for (int i = 0, sum = 0; i < m->n_sources; i++)
    end[i] = (uint16_t)(sum += (int)(after[i] - before[i]));
  lm_philox_key2 key = block_key(m, stage, block);
  for (uint64_t r = 0; r < LM_MIX_BLOCK; r++) {
    uint64_t slot = lm_permute(key, LM_MIX_BLOCK, r);
    int source = 0;
    while (slot >= end[source])
      source++;
    p->source[r] = (uint8_t)source;
    p->rank[r] = seen[source]++;
  }
}

// Adds the rows of each source in the first `rows` rows of a stage to `base`.
static void stage_count(const lm_mix *m, int stage, uint64_t rows, lm_mix_cursor *p,
                        uint64_t *base) {
  uint64_t count[LM_DATA_MIX_MAX];
  blocks_count(m, stage, rows / LM_MIX_BLOCK, count);
  for (int i = 0; i < m->n_sources; i++)
    base[i] += count[i];
  if (rows % LM_MIX_BLOCK)
    block_fill(m, stage, rows / LM_MIX_BLOCK, p);
  for (uint64_t r = 0; r < rows % LM_MIX_BLOCK; r++)
    base[p->source[r]]++;
}

// ---- looking up rows

static uint64_t stage_rows(const lm_mix *m, int stage, uint64_t rows_per_step) {
  return (uint64_t)(m->stages[stage + 1].first_step - m->stages[stage].first_step) * rows_per_step;
}

static void cursor_move(const lm_mix *m, int stage, uint64_t block, uint64_t rows_per_step,
                        lm_mix_cursor *p) {
  uint64_t count[LM_DATA_MIX_MAX];
  for (int i = 0; i < m->n_sources; i++)
    p->base[i] = 0;
  for (int k = 0; k < stage; k++)
    if (m->stages[k].seq == m->stages[stage].seq)
      stage_count(m, k, stage_rows(m, k, rows_per_step), p, p->base);
  blocks_count(m, stage, block, count);
  for (int i = 0; i < m->n_sources; i++)
    p->base[i] += count[i];
  block_fill(m, stage, block, p);
  p->valid = true;
  p->stage = stage;
  p->block = block;
  p->rows_per_step = rows_per_step;
}

void lm_mix_find(const lm_mix *m, int stage, uint64_t row, uint64_t rows_per_step, lm_mix_cursor *p,
                 int *out_source, uint64_t *out_index) {
  uint64_t block = row / LM_MIX_BLOCK;
  uint64_t r = row % LM_MIX_BLOCK;
  if (!p->valid || p->stage != stage || p->block != block || p->rows_per_step != rows_per_step)
    cursor_move(m, stage, block, rows_per_step, p);
  *out_source = p->source[r];
  *out_index = p->base[p->source[r]] + p->rank[r];
}
