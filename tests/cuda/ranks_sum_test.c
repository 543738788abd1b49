// ranks_sum_test.c - the kernels that add slices of GPUs (runtime/cuda/builtin.cu), under the SIMT
// emulator: the same bits as the sums of ranks on CPUs, for every type, and for 1 to 20 ranks.
#include <stdio.h>
#include <string.h>

#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "contract/floats.h"
#include "codegen/common/prelude/math.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/approx.cuh"
#include "runtime/hal/scale.h"
#include "runtime/cuda/builtin.cu"
#pragma GCC diagnostic pop
#include "runtime/comm/ordered.h"
#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

enum {
  N = 700, // elements, more than two blocks of threads
  RANKS = 20,
  SLICE = 8 * N + 8 // bytes
};

typedef struct launch {
  lm_dtype type;
  lm_coll_op op;
  const void *own;
  const char *received;
  void *to;
  lm_ordered_args args;
} launch;

static void kernel_call(void *p) {
  const launch *l = p;
  bool max = l->op == LM_COLL_MAX;
#define CALL(TYPE, NAME)                                                                           \
  case TYPE:                                                                                       \
    (max ? lm_ranks_max_##NAME : lm_ranks_sum_##NAME)(l->own, l->received, l->to, l->args);        \
    return;
  switch (l->type) {
    CALL(LM_F32, f32)
    CALL(LM_BF16, bf16)
    CALL(LM_F16, f16)
    CALL(LM_F64, f64)
    CALL(LM_INT, int)
  default: CHECK(false);
  }
}

static char slices[RANKS][SLICE], received[RANKS * SLICE];

// Values of different magnitudes, so that sums in another order have other bits; some NaN.
static void slices_fill(lm_dtype t, uint32_t seed) {
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < N; i++) {
      seed = seed * 1664525 + 1013904223;
      double x = ((double)(seed >> 8) - 0x1p23) * (i % 3 ? 0x1p-20 : 0x1p-8);
      float f = i == 13 && r == 2 ? NAN : (float)x;
      uint16_t half = (uint16_t)lm_dtype_bits(t, f);
      char *at = slices[r] + (size_t)i * (size_t)lm_dtype_bytes(t);
      if (t == LM_F32)
        memcpy(at, &f, sizeof f);
      else if (lm_dtype_is_half(t))
        memcpy(at, &half, sizeof half);
      else if (t == LM_F64)
        memcpy(at, &x, sizeof x);
      else
        memcpy(at, &seed, sizeof seed);
    }
}

static void compare(lm_dtype t, lm_coll_op op, int ranks, int me) {
  static char want[SLICE], got[SLICE];
  const void *from[RANKS];
  size_t bytes = N * (size_t)lm_dtype_bytes(t);
  for (int r = 0; r < ranks; r++) {
    from[r] = slices[r];
    memset(received + r * SLICE, 0xff, SLICE);
    if (r != me)
      memcpy(received + r * SLICE, slices[r], SLICE);
  }
  lm_ordered_reduce(t, op, from, ranks, N, want);
  launch l = {t, op, slices[me], received, got, {.n = N, .slice = SLICE, .ranks = ranks, .me = me}};
  simt_run(kernel_call, &l, 2, 256);
  char *found = simt_report_take();
  if (found)
    fprintf(stderr, "%s", found);
  CHECK(!found);
  if (memcmp(want, got, bytes))
    fprintf(stderr, "%s %s of %d ranks differs\n", lm_dtype_name(t), lm_coll_op_names[op], ranks);
  CHECK(!memcmp(want, got, bytes));
}

int main(void) {
  static const lm_dtype types[] = {LM_F32, LM_BF16, LM_F16, LM_F64, LM_INT};
  for (size_t t = 0; t < LM_COUNT(types); t++)
    for (int ranks = 1; ranks <= RANKS; ranks += ranks < 3 ? 1 : 6) {
      slices_fill(types[t], 7 + (uint32_t)ranks);
      for (int op = LM_COLL_SUM; op <= LM_COLL_MAX; op++)
        compare(types[t], (lm_coll_op)op, ranks, ranks / 2);
    }
  return 0;
}
