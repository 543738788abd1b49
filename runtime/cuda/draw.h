// draw.h - what the kernels that draw a token leave for each other; see draw.cu, whose text it
// precedes. It must not include others.
#ifndef LM_CUDA_DRAW_H
#define LM_CUDA_DRAW_H

enum {
  LM_DRAW_SLICES = 32,  // the most, a power of 2
  LM_DRAW_SLICE = 1024, // the fewest logits of a slice, if a row has several
  LM_DRAW_BINS = 256
};

// The greatest logit of a slice, and the least id that has it.
typedef struct lm_draw_top {
  uint32_t order;
  int32_t id;
} lm_draw_top;

// The candidates of a slice in one bin: the sum of their weights, and where their ids are.
typedef struct lm_draw_bin {
  uint64_t weight;
  uint32_t count, first;
} lm_draw_bin;

// Followed by an int32 for each logit: the ids of the candidates, by slices and by their bins.
typedef struct lm_draw_work {
  int32_t token, spare[3];
  lm_draw_bin bin[LM_DRAW_SLICES][LM_DRAW_BINS];
  lm_draw_top top[LM_DRAW_SLICES];
} lm_draw_work;

// The number of slices of a row: a power of 2.
static inline int32_t lm_draw_slices(int32_t n) {
  int32_t slices = 1;
  while (slices < LM_DRAW_SLICES && n >= 2 * slices * LM_DRAW_SLICE)
    slices *= 2;
  return slices;
}
#endif
