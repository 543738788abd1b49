// ordered.c - see ordered.h.
#include "runtime/comm/ordered.h"

#include "runtime/base/dtype.h"

enum {
  BLOCK = 8,  // ranks
  TILE = 1024 // elements, which stay in the nearest cache
};

static int32_t int_add(int32_t a, int32_t b) { // wraps around
  return (int32_t)((uint32_t)a + (uint32_t)b);
}

#define ADD(a, b) ((a) + (b))
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define AS_IT_IS(x) (x)

// NAME(from, ranks, at, n, to): elements at … at + n - 1, at most a tile. MEMORY is the type of an
// element, T the type of sums.
#define REDUCE(NAME, MEMORY, T, LOAD, STORE, OP)                                                   \
  static void NAME(const void *const *from, int ranks, int64_t at, int n, void *to) {              \
    T total[TILE], block[TILE];                                                                    \
    for (int first = 0; first < ranks; first += BLOCK) {                                           \
      T *sum = first ? block : total;                                                              \
      const MEMORY *x = (const MEMORY *)from[first] + at;                                          \
      for (int i = 0; i < n; i++)                                                                  \
        sum[i] = LOAD(x[i]);                                                                       \
      for (int r = first + 1; r < ranks && r < first + BLOCK; r++) {                               \
        x = (const MEMORY *)from[r] + at;                                                          \
        for (int i = 0; i < n; i++)                                                                \
          sum[i] = OP(sum[i], LOAD(x[i]));                                                         \
      }                                                                                            \
      for (int i = 0; first && i < n; i++)                                                         \
        total[i] = OP(total[i], block[i]);                                                         \
    }                                                                                              \
    for (int i = 0; i < n; i++)                                                                    \
      ((MEMORY *)to)[at + i] = STORE(total[i]);                                                    \
  }

REDUCE(f32_sum, float, float, AS_IT_IS, AS_IT_IS, ADD)
REDUCE(f32_max, float, float, AS_IT_IS, AS_IT_IS, LARGER)
REDUCE(bf16_sum, uint16_t, float, lm_bf16_to_f32, lm_bf16_from_f32, ADD)
REDUCE(bf16_max, uint16_t, float, lm_bf16_to_f32, lm_bf16_from_f32, LARGER)
REDUCE(f16_sum, uint16_t, float, lm_f16_load, lm_f16_round, ADD)
REDUCE(f16_max, uint16_t, float, lm_f16_load, lm_f16_round, LARGER)
REDUCE(f64_sum, double, double, AS_IT_IS, AS_IT_IS, ADD)
REDUCE(f64_max, double, double, AS_IT_IS, AS_IT_IS, LARGER)
REDUCE(int_sum, int32_t, int32_t, AS_IT_IS, AS_IT_IS, int_add)
REDUCE(int_max, int32_t, int32_t, AS_IT_IS, AS_IT_IS, LARGER)

typedef void tile_fn(const void *const *from, int ranks, int64_t at, int n, void *to);
static tile_fn *const TABLE[LM_DTYPES][2] = {[LM_F32] = {f32_sum, f32_max},
                                             [LM_BF16] = {bf16_sum, bf16_max},
                                             [LM_F16] = {f16_sum, f16_max},
                                             [LM_F64] = {f64_sum, f64_max},
                                             [LM_INT] = {int_sum, int_max}};

bool lm_ordered_knows(lm_dtype t) {
  return TABLE[t][0] != NULL;
}

void lm_ordered_reduce(lm_dtype t, lm_coll_op op, const void *const *from, int ranks, int64_t n,
                       void *to) {
  for (int64_t at = 0; at < n; at += TILE)
    TABLE[t][op == LM_COLL_MAX](from, ranks, at, n - at < TILE ? (int)(n - at) : TILE, to);
}
