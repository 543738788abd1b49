// square.h - squares of 16 by 16 words of 32 bits, each a pair of bf16 or a number of f32, in which
// matrices of bf16 are multiplied by AMX (tile_amx.h), and in attention by AVX512-BF16 too
// (tile_attend.h).
enum {
  LM_SQUARE = 16,
  LM_SIDE = 32 // of a tile of C: two squares
};
typedef uint32_t lm_square[LM_SQUARE][LM_SQUARE];
typedef float lm_wide __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t lm_bf16_wide __attribute__((vector_size(64), aligned(2), may_alias));
typedef uint32_t lm_words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t lm_words_order __attribute__((vector_size(64)));
typedef uint16_t lm_bf16x16 __attribute__((vector_size(32), aligned(2), may_alias));

#define LM_ALL(F, S)                                                                               \
  F(S, 0), F(S, 1), F(S, 2), F(S, 3), F(S, 4), F(S, 5), F(S, 6), F(S, 7), F(S, 8), F(S, 9),        \
      F(S, 10), F(S, 11), F(S, 12), F(S, 13), F(S, 14), F(S, 15)
#define LM_TRANSPOSE_LOW(S, L) (L & S ? 16 + L - S : L)
#define LM_TRANSPOSE_HIGH(S, L) (L & S ? 16 + L : L + S)
// Exchanges the off-diagonal S x S blocks of a 16 x 16 matrix of words; S = 8, 4, 2, 1 transposes
// it.
#define LM_TRANSPOSE(X, S)                                                                         \
  LM_UNROLL(16) for (int i = 0; i < 16; i++) if (!(i & S)) {                                       \
    lm_words a = (X)[i], b = (X)[i + S];                                                           \
    (X)[i] = LM_SHUFFLE(lm_words_order, a, b, LM_ALL(LM_TRANSPOSE_LOW, S));                        \
    (X)[i + S] = LM_SHUFFLE(lm_words_order, a, b, LM_ALL(LM_TRANSPOSE_HIGH, S));                   \
  }
LM_INLINE void lm_words_transpose(lm_words *x, char *to, int64_t bytes) {
  LM_TRANSPOSE(x, 8)
  LM_TRANSPOSE(x, 4)
  LM_TRANSPOSE(x, 2)
  LM_TRANSPOSE(x, 1)
  LM_UNROLL(16)
  for (int i = 0; i < 16; i++)
    *(lm_words *)(to + i * bytes) = x[i];
}

// Interleaves rows k and k + 1: [k first][k + 1 second] for each column. A shuffle takes two
// instructions after the loads instead of nine.
#define LM_INTERLEAVE(S, L) L, 16 + L
LM_INLINE lm_words lm_words_interleave(const uint16_t *low, const uint16_t *high) {
  lm_bf16x16 x = *(const lm_bf16x16 *)low;
  lm_bf16x16 y = *(const lm_bf16x16 *)high;
#if defined(__clang__) || __GNUC__ >= 12
  return (lm_words)__builtin_shufflevector(x, y, LM_ALL(LM_INTERLEAVE, 0));
#else
  return __builtin_convertvector(x, lm_words) | __builtin_convertvector(y, lm_words) << 16;
#endif
}

// Squares of an operand: bytes from a row of a square to the next, to the other 16 rows (columns),
// and to the next 32 elements of k.
typedef struct lm_squares_at {
  const void *first;
  int64_t row, other, step;
} lm_squares_at;

// Rounds to bf16, `low` first. The instruction flushes numbers below 2^-126 to zero.
LM_INLINE lm_bf16_wide lm_bf16_wide_round(lm_wide low, lm_wide high) {
  lm_bf16_wide to;
#ifdef __AVX512BF16__
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(to) : "v"(low), "v"(high));
#else
  for (int i = 0; i < 16; i++) {
    to[i] = lm_bf16_round(low[i]);
    to[16 + i] = lm_bf16_round(high[i]);
  }
#endif
  return to;
}
