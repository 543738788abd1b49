// strip_bf16.h - bf16 results of an innermost loop. On processors that round 32 numbers at a time,
// an iteration of a strip stores to element `lane` of an array of float32, which is rounded as a
// whole; on others it rounds its own number. Both round as lm_bf16_round.
#ifdef __AVX512BF16__
typedef float lm_float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t lm_bf16x8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef float lm_float16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t lm_bf16x32 __attribute__((vector_size(64), aligned(2), may_alias));

// n is at most 32, and a constant except in the remainder of a loop. Loops of fewer than 32
// iterations are compiled to vectors of 8 floats, from which a load of 16 could not be forwarded.
LM_INLINE void lm_bf16_put(uint16_t *to, const float *x, int64_t n) {
  int64_t done = 0;
  if (n == 32) {
    lm_bf16x32 y;
    __asm__("vcvtne2ps2bf16 %1, %2, %0"
            : "=v"(y)
            : "v"(*(const lm_float16 *)x), "v"(*(const lm_float16 *)(x + 16)));
    *(lm_bf16x32 *)to = y;
    return;
  }
  LM_UNROLL_BY(3)
  for (; done + 8 <= n; done += 8) {
    lm_bf16x8 y;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(*(const lm_float8 *)(x + done)));
    *(lm_bf16x8 *)(to + done) = y;
  }
  LM_PRAGMA(omp simd)
  for (int64_t i = done; i < n; i++)
    to[i] = lm_bf16_round(x[i]);
}

#define LM_BF16_STRIP(NAME) float NAME[32] __attribute__((aligned(64)));
#define LM_BF16_STORE(NAME, TO, X) NAME[lane] = X;
#define LM_BF16_STRIP_ROUND(NAME, TO, N) lm_bf16_put(&TO, NAME, N);
#else
#define LM_BF16_STRIP(NAME)
#define LM_BF16_STORE(NAME, TO, X) TO = lm_bf16_round(X);
#define LM_BF16_STRIP_ROUND(NAME, TO, N)
#endif
