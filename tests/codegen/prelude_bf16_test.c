// prelude_bf16_test.c - rows rounded to bf16 by the instructions of AVX512-BF16 equal the results
// of lm_bf16_round, which every other processor uses.
// Build: plain
#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "codegen/cpu/prelude/compiler.h"
#include "codegen/cpu/prelude/strip_bf16.h"
#include "tests/runtime/check.h"

#ifdef __AVX512BF16__
enum {
  N = 32
};

static void row_check(const float *x, const int64_t n) {
  uint16_t got[N + 1] = {0};
  lm_bf16_put(got, x, n);
  for (int64_t i = 0; i < n; i++)
    if (got[i] != lm_bf16_round(x[i])) {
      fprintf(stderr, "%a (%08x): %04x, not %04x\n", (double)x[i], lm_f32_bits(x[i]), got[i],
              lm_bf16_round(x[i]));
      exit(1);
    }
  CHECK(!got[n]);
}

// Every upper half, with lower halves that are rounded down, up and to even.
static void run(void) {
  static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  static const int64_t lengths[] = {1, 15, 16, 20, 31, 32};
  for (size_t k = 0; k < LM_COUNT(low); k++)
    for (uint32_t high = 0; high < 0x10000; high += N) {
      float x[N];
      for (uint32_t i = 0; i < N; i++)
        x[i] = lm_f32_of_bits((high + i) << 16 | low[k]);
      for (size_t n = 0; n < LM_COUNT(lengths); n++)
        row_check(x, lengths[n]);
    }
}
#endif

int main(void) {
#ifdef __AVX512BF16__
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl"))
    run();
#endif
  return 0;
}
