// tile_rows_columns.h - GEMMs of few rows whose B has columns of unit stride along k, such as the
// keys of a cache.
//
// A block of B has LM_LANES columns and LM_BLOCK_WORDS words along k, a word being a number of f32
// or a pair of bf16. It is transposed in registers, to vectors of a word of each column, which are
// multiplied with all rows. The blocks of two groups of columns alternate, so that the chains of
// additions of one overlap with the shuffles of the other. Columns further on are prefetched. Sums
// have the order of large GEMMs.
#ifndef LM_TILES_CALLED
enum {
  LM_BLOCK_WORDS = LM_LANES / 2,
  LM_COLUMNS_AHEAD = 2 * LM_NR // columns between the one that is read and the one prefetched
};
typedef float lm_half_lanes __attribute__((vector_size(LM_BLOCK_WORDS * 4), aligned(2), may_alias));

LM_INLINE lm_lanes lm_lanes_join(const void *low, const void *high) {
#if defined(__clang__) || __GNUC__ >= 12
#define LM_LANES_JOIN(S, L) L
  lm_half_lanes x = *(const lm_half_lanes *)low, y = *(const lm_half_lanes *)high;
  return __builtin_shufflevector(x, y, LM_LANES_ALL(LM_LANES_JOIN, 0));
#else
  lm_lanes x;
  __builtin_memcpy(&x, low, sizeof x / 2);
  __builtin_memcpy((char *)&x + sizeof x / 2, high, sizeof x / 2);
  return x;
#endif
}

// Transposes the two halves of a block.
#define LM_LANES_LOW(S, L) ((L) & (S) ? LM_LANES + (L) - (S) : (L))
#define LM_LANES_HIGH(S, L) ((L) & (S) ? LM_LANES + (L) : (L) + (S))
#define LM_LANES_EXCHANGE(X, S)                                                                    \
  LM_UNROLL(8) for (int i = 0; i < LM_BLOCK_WORDS; i++) if (!(i & (S))) {                          \
    lm_lanes a = (X)[i], b = (X)[i + (S)];                                                         \
    (X)[i] = LM_SHUFFLE(lm_lanes_order, a, b, LM_LANES_ALL(LM_LANES_LOW, S));                      \
    (X)[i + (S)] = LM_SHUFFLE(lm_lanes_order, a, b, LM_LANES_ALL(LM_LANES_HIGH, S));               \
  }
LM_INLINE void lm_block_transpose(lm_lanes *x) {
#if defined(__AVX512F__)
  LM_LANES_EXCHANGE(x, 4)
#endif
#if defined(__AVX__)
  LM_LANES_EXCHANGE(x, 2)
#endif
  LM_LANES_EXCHANGE(x, 1)
}

// Steps to the next column. The empty instruction keeps the compiler from holding the addresses of
// all columns in memory.
LM_INLINE const char *lm_column_next(const char *from, int64_t stride) {
  from += stride;
  __asm__("" : "+r"(from));
  return from;
}
LM_INLINE void lm_block_load(const char *from, int64_t stride, lm_lanes *x) {
  const char *second = from + LM_BLOCK_WORDS * stride;
  LM_UNROLL(8)
  for (int i = 0; i < LM_BLOCK_WORDS; i++) {
    x[i] = lm_lanes_join(from, second);
    from = lm_column_next(from, stride);
    second = lm_column_next(second, stride);
  }
  lm_block_transpose(x);
}

// Into the second-level cache: the processor waits when as many cache lines are on their way into
// the first one.
LM_INLINE void lm_columns_prefetch(const char *from, int64_t stride) {
  from += LM_COLUMNS_AHEAD * stride;
  LM_UNROLL(32)
  for (int j = 0; j < LM_NR; j++) {
    __builtin_prefetch(from, 0, 2);
    from = lm_column_next(from, stride);
  }
}

// Blocks that B does not have in full, with zeros for what does not exist; `bytes` of each column.
typedef lm_half_lanes lm_block_edge[LM_NR];
static __attribute__((noinline)) void lm_block_copy(const char *from, int64_t stride, int64_t count,
                                                    int64_t bytes, lm_half_lanes *to) {
  __builtin_memset(to, 0, sizeof(lm_block_edge));
  for (int64_t j = 0; j < count; j++)
    __builtin_memcpy(to + j, from + j * stride, (uint64_t)bytes);
}

// sum += a b for n elements along k of rows that are `row` apart and LM_NR columns. EACH is the
// number of elements in a word.
//   lm_columns_block_T: of LM_BLOCK_WORDS words or fewer.
//   lm_columns_sum_T: of at most `rows` rows, a constant; the last row stands for those that do not
//     exist, whose sums are not stored.
//   lm_columns_T: of all rows and columns.
#define LM_COLUMNS(T, TYPE, EACH)                                                                  \
  LM_INLINE void lm_columns_block_##T(int rows, const lm_row_##T *const *a, int64_t k, int64_t n,  \
                                      const char *b, int64_t stride, int64_t columns,              \
                                      lm_lanes(*sum)[2]) {                                         \
    lm_block_edge edge;                                                                            \
    const int64_t words = (n + EACH - 1) / EACH;                                                   \
    if (columns < LM_NR || n < EACH * LM_BLOCK_WORDS) {                                            \
      const int64_t most = lm_min64(n, EACH * LM_BLOCK_WORDS);                                     \
      lm_block_copy(b, stride, lm_min64(columns, LM_NR), most *(int64_t)sizeof(TYPE), edge);       \
      b = (const char *)edge;                                                                      \
      stride = sizeof *edge;                                                                       \
    }                                                                                              \
    LM_UNROLL(2)                                                                                   \
    for (int g = 0; g < 2; g++) {                                                                  \
      lm_lanes x[LM_BLOCK_WORDS];                                                                  \
      lm_block_load(b + g * LM_LANES * stride, stride, x);                                         \
      if (words >= LM_BLOCK_WORDS) {                                                               \
        LM_UNROLL(8)                                                                               \
        for (int j = 0; j < LM_BLOCK_WORDS; j++)                                                   \
          lm_rows_word_##T(rows, a, k + EACH * j, x[j], g, sum);                                   \
      } else {                                                                                     \
        lm_lanes y[LM_BLOCK_WORDS];                                                                \
        LM_UNROLL(8)                                                                               \
        for (int j = 0; j < LM_BLOCK_WORDS; j++)                                                   \
          y[j] = x[j];                                                                             \
        for (int64_t j = 0; j < words; j++)                                                        \
          lm_rows_word_##T(rows, a, k + EACH * j, y[j], g, sum);                                   \
      }                                                                                            \
    }                                                                                              \
  }                                                                                                \
  LM_INLINE void lm_columns_sum_##T(int rows, int64_t height, int64_t columns, int64_t n,          \
                                    const lm_row_##T *a, int64_t row, const TYPE *b,               \
                                    int64_t stride, float *c, int64_t c_row, int add) {            \
    const int64_t size = sizeof *b, line = 64 / size;                                              \
    const lm_row_##T *x[LM_ROWS_MAX];                                                              \
    LM_UNROLL(8)                                                                                   \
    for (int i = 0; i < rows; i++)                                                                 \
      x[i] = a + lm_min64(i, height - 1) * row;                                                    \
    for (int64_t j = 0; j < columns; j += LM_NR) {                                                 \
      lm_lanes sum[LM_ROWS_MAX][2];                                                                \
      LM_UNROLL(8)                                                                                 \
      for (int i = 0; i < rows; i++)                                                               \
        sum[i][0] = sum[i][1] = (lm_lanes){0};                                                     \
      for (int64_t k = 0; k < n; k += EACH * LM_BLOCK_WORDS) {                                     \
        const char *at = (const char *)(b + j * stride + k);                                       \
        if (k % line == 0)                                                                         \
          lm_columns_prefetch(at, stride *size);                                                   \
        lm_columns_block_##T(rows, x, k, n - k, at, stride * size, columns - j, sum);              \
      }                                                                                            \
      lm_rows_store(rows, 1, height, columns - j, sum, c + j, c_row, add);                         \
    }                                                                                              \
  }                                                                                                \
  static __attribute__((noinline)) void lm_columns_##T(                                            \
      int64_t rows, int64_t columns, int64_t n, const lm_row_##T *a, int64_t row, const TYPE *b,   \
      int64_t stride, float *c, int64_t c_row, int add) {                                          \
    for (int64_t left; rows > 0; rows -= left, a += left * row, c += left * c_row) {               \
      left = lm_min64(rows, LM_ROWS_MAX);                                                          \
      if (left == 1)                                                                               \
        lm_columns_sum_##T(1, 1, columns, n, a, row, b, stride, c, c_row, add);                    \
      else if (left == 2)                                                                          \
        lm_columns_sum_##T(2, 2, columns, n, a, row, b, stride, c, c_row, add);                    \
      else if (left == 3)                                                                          \
        lm_columns_sum_##T(3, 3, columns, n, a, row, b, stride, c, c_row, add);                    \
      else if (left == 4)                                                                          \
        lm_columns_sum_##T(4, 4, columns, n, a, row, b, stride, c, c_row, add);                    \
      else                                                                                         \
        lm_columns_sum_##T(LM_ROWS_MAX, left, columns, n, a, row, b, stride, c, c_row, add);       \
    }                                                                                              \
  }
LM_COLUMNS(f32, float, 1)
#ifndef LM_MATRIX_UNIT
LM_COLUMNS(bf16, uint16_t, 2)
#endif
#endif
