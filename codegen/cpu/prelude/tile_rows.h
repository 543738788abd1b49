// tile_rows.h - GEMMs of few rows, as in decoding.
//
// The time of a GEMM of few rows is the time to read B once. Its sums stay in registers for all
// rows of a strip of B, whose elements are used as they are loaded: from panels, which are
// contiguous, or else from a strip that is packed in the first-level cache. Sums have the order of
// large GEMMs.
#ifndef LM_TILES_CALLED
enum {
  LM_FEW = 16, // rows; more are computed by tiles
#if defined(__AVX512F__) || defined(__aarch64__)
  LM_ROWS_MAX = 8, // rows whose sums fit the registers
#else
  LM_ROWS_MAX = 4,
#endif
  LM_STRIP = 4,          // panels of a strip
  LM_ROWS_AHEAD = 48,    // rows of B, between which a processor sees no pattern, are prefetched
  LM_PANELS_AHEAD = 2048 // bytes of a panel in memory between the one read and the one prefetched
};

// Panels in memory that are read at a time. Memory delivers the most if they are read one after the
// other, but one panel is only two chains of additions for each row, which must be as fast.
enum {
#ifdef __AVX__
  LM_PANELS_F32 = 1,
#else
  LM_PANELS_F32 = LM_STRIP,
#endif
#ifdef LM_PAIRS
  LM_PANELS_BF16 = 1
#else
  LM_PANELS_BF16 = LM_STRIP
#endif
};

// Rows of A: pairs of bf16, or f32 in the order of summation if B is to be widened to f32. They are
// n elements apart, n + 1 if n is odd.
typedef float lm_row_f32;
#ifdef LM_PAIRS
typedef uint16_t lm_row_bf16;
#else
typedef float lm_row_bf16;
#endif
static __attribute__((noinline)) void lm_rows_take_f32(const float *from, int64_t row,
                                                       int64_t stride, int64_t rows, int64_t n,
                                                       int panels, float *to) {
  for (int64_t i = 0; i < rows; i++, from += row, to += n + n % 2)
    if (stride == 1)
      __builtin_memcpy(to, from, (uint64_t)n * sizeof *to);
    else
      for (int64_t k = 0; k < n; k++)
        to[k] = from[k * stride];
}

// sum += a b for a word of each column of one of two groups of columns, an element along k.
LM_INLINE void lm_rows_word_f32(int rows, const float *const *a, int64_t k, lm_lanes b, int group,
                                lm_lanes (*sum)[2]) {
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++)
    sum[i][group] = lm_lanes_fma(LM_LANES_OF(a[i][k]), b, sum[i][group]);
}

// The same for a row of each panel. lm_rows_add_plain_T: of rows of B, which are `second` elements
// apart.
LM_INLINE void lm_rows_add_f32(int rows, int panels, const float *const *a, int64_t k,
                               const float *const *b, int64_t at, int64_t second,
                               lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const lm_lanes *x = (const lm_lanes *)(b[p] + at);
    LM_UNROLL(8)
    for (int i = 0; i < rows; i++) {
      lm_lanes v = LM_LANES_OF(a[i][k]);
      sum[i * panels + p][0] = lm_lanes_fma(v, x[0], sum[i * panels + p][0]);
      sum[i * panels + p][1] = lm_lanes_fma(v, x[1], sum[i * panels + p][1]);
    }
  }
}

LM_INLINE void lm_rows_prefetch(const char *from, int64_t bytes) {
  LM_UNROLL(2)
  for (int i = 0; i < bytes; i += 64)
    __builtin_prefetch(from + i, 0, 2);
}
LM_INLINE void lm_rows_add_plain_f32(int rows, int panels, const float *const *a, int64_t k,
                                     const float *const *b, int64_t at, int64_t second,
                                     lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++)
    lm_rows_prefetch((const char *)(b[p] + at + LM_ROWS_AHEAD * second), 4 * LM_NR);
  lm_rows_add_f32(rows, panels, a, k, b, at, second, sum);
}

// The same for a pair along k; lm_rows_add_plain_bf16 adds that of two rows of B.
#ifdef LM_PAIRS
static __attribute__((noinline)) void lm_rows_take_bf16(const uint16_t *from, int64_t row,
                                                        int64_t stride, int64_t rows, int64_t n,
                                                        int panels, uint16_t *to) {
  for (int64_t i = 0; i < rows; i++, from += row, to += n + n % 2) {
    for (int64_t k = 0; k < n; k++)
      to[k] = from[k * stride];
    if (n % 2)
      to[n] = 0;
  }
}

LM_INLINE void lm_rows_word_bf16(int rows, const uint16_t *const *a, int64_t k, lm_lanes b,
                                 int group, lm_lanes (*sum)[2]) {
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++)
    sum[i][group] = lm_pairs_dot(LM_LANES_OF(*(const lm_pair *)(a[i] + k)), b, sum[i][group]);
}
LM_INLINE void lm_rows_dot(int rows, int panels, const uint16_t *const *a, int64_t k, lm_lanes x,
                           lm_lanes y, lm_lanes (*sum)[2]) {
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++) {
    lm_lanes v = LM_LANES_OF(*(const lm_pair *)(a[i] + k));
    sum[i * panels][0] = lm_pairs_dot(v, x, sum[i * panels][0]);
    sum[i * panels][1] = lm_pairs_dot(v, y, sum[i * panels][1]);
  }
}
LM_INLINE void lm_rows_add_bf16(int rows, int panels, const uint16_t *const *a, int64_t k,
                                const uint16_t *const *b, int64_t at, int64_t second,
                                lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const lm_lanes *x = (const lm_lanes *)(b[p] + at);
    lm_rows_dot(rows, panels, a, k, x[0], x[1], sum + p);
  }
}
// Pairs of the elements of two rows.
typedef uint16_t lm_row_halves __attribute__((vector_size(LM_LANES * 4), aligned(2), may_alias));
typedef short lm_row_halves_order __attribute__((vector_size(LM_LANES * 4)));
#define LM_ROWS_LOW(S, L) (L), 2 * LM_LANES + (L)
#define LM_ROWS_HIGH(S, L) LM_LANES + (L), 3 * LM_LANES + (L)
LM_INLINE void lm_rows_add_plain_bf16(int rows, int panels, const uint16_t *const *a, int64_t k,
                                      const uint16_t *const *b, int64_t at, int64_t second,
                                      lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const uint16_t *from = b[p] + at;
    lm_rows_prefetch((const char *)(from + LM_ROWS_AHEAD * second), 2 * LM_NR);
    lm_rows_prefetch((const char *)(from + (LM_ROWS_AHEAD + 1) * second), 2 * LM_NR);
    const lm_row_halves x = *(const lm_row_halves *)from;
    const lm_row_halves y = *(const lm_row_halves *)(from + second);
    const lm_row_halves low = LM_SHUFFLE(lm_row_halves_order, x, y, LM_LANES_ALL(LM_ROWS_LOW, 0));
    const lm_row_halves high = LM_SHUFFLE(lm_row_halves_order, x, y, LM_LANES_ALL(LM_ROWS_HIGH, 0));
    lm_rows_dot(rows, panels, a, k, (lm_lanes)low, (lm_lanes)high, sum + p);
  }
}
#elif !defined(LM_MATRIX_UNIT)
static __attribute__((noinline)) void lm_rows_take_bf16(const uint16_t *from, int64_t row,
                                                        int64_t stride, int64_t rows, int64_t n,
                                                        int panels, float *to) {
  for (int64_t i = 0; i < rows; i++, from += row, to += n + n % 2) {
    if (panels && stride == 1)
      for (int64_t k = 0; k < n; k++)
        to[k] = lm_bf16_load(from[k]);
    else
      for (int64_t k = 0; k < n; k++)
        to[k] = lm_bf16_load(from[(panels ? k : LM_ORDER_bf16(k, n)) * stride]);
    if (n % 2)
      to[n] = 0;
  }
}

LM_INLINE void lm_rows_word_bf16(int rows, const float *const *a, int64_t k, lm_lanes b, int group,
                                 lm_lanes (*sum)[2]) {
  const lm_lanes first = lm_pairs_first(b), second = lm_pairs_second(b);
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++) {
    sum[i][group] = lm_lanes_fma(LM_LANES_OF(a[i][k + 1]), second, sum[i][group]);
    sum[i][group] = lm_lanes_fma(LM_LANES_OF(a[i][k]), first, sum[i][group]);
  }
}
LM_INLINE void lm_rows_dot(int rows, int panels, const float *const *a, int64_t k,
                           const lm_lanes *first, const lm_lanes *second, lm_lanes (*sum)[2]) {
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++) {
    lm_lanes *to = sum[i * panels];
    to[0] = lm_lanes_fma(LM_LANES_OF(a[i][k + 1]), second[0], to[0]);
    to[1] = lm_lanes_fma(LM_LANES_OF(a[i][k + 1]), second[1], to[1]);
    to[0] = lm_lanes_fma(LM_LANES_OF(a[i][k]), first[0], to[0]);
    to[1] = lm_lanes_fma(LM_LANES_OF(a[i][k]), first[1], to[1]);
  }
}
LM_INLINE void lm_rows_add_bf16(int rows, int panels, const float *const *a, int64_t k,
                                const uint16_t *const *b, int64_t at, int64_t next,
                                lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const lm_lanes *x = (const lm_lanes *)(b[p] + at);
    lm_lanes first[2] = {lm_pairs_first(x[0]), lm_pairs_first(x[1])};
    lm_lanes second[2] = {lm_pairs_second(x[0]), lm_pairs_second(x[1])};
    lm_rows_dot(rows, panels, a, k, first, second, sum + p);
  }
}
typedef uint16_t lm_row_words __attribute__((vector_size(LM_LANES * 2), aligned(2), may_alias));
LM_INLINE lm_pairs lm_rows_words(const uint16_t *from) {
  return __builtin_convertvector(*(const lm_row_words *)from, lm_pairs);
}
LM_INLINE lm_lanes lm_rows_widen(const uint16_t *from) {
  return (lm_lanes)(lm_rows_words(from) << 16);
}
LM_INLINE void lm_rows_add_plain_bf16(int rows, int panels, const float *const *a, int64_t k,
                                      const uint16_t *const *b, int64_t at, int64_t next,
                                      lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const uint16_t *x = b[p] + at, *y = x + next;
    lm_rows_prefetch((const char *)(x + LM_ROWS_AHEAD * next), 2 * LM_NR);
    lm_rows_prefetch((const char *)(y + LM_ROWS_AHEAD * next), 2 * LM_NR);
    lm_lanes first[2] = {lm_rows_widen(x), lm_rows_widen(x + LM_LANES)};
    lm_lanes second[2] = {lm_rows_widen(y), lm_rows_widen(y + LM_LANES)};
    lm_rows_dot(rows, panels, a, k, first, second, sum + p);
  }
}
#endif

// Writes the sums of the first `height` rows and `columns` columns.
LM_INLINE void lm_rows_store(int rows, int panels, int64_t height, int64_t columns,
                             lm_lanes (*sum)[2], float *c, int64_t c_row, int add) {
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++)
    LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    lm_lanes t[2] = {sum[i * panels + p][0], sum[i * panels + p][1]}, keep[2] = {{0}};
    float *to = c + i * c_row + p * LM_NR;
    int64_t bytes = 4 * lm_min64(LM_NR, columns - p * LM_NR);
    if (i >= height || bytes <= 0)
      continue;
    if (add)
      __builtin_memcpy(keep, to, bytes == sizeof keep ? sizeof keep : (uint64_t)bytes);
    t[0] = keep[0] + t[0];
    t[1] = keep[1] + t[1];
    __builtin_memcpy(to, t, bytes == sizeof t ? sizeof t : (uint64_t)bytes);
  }
}

// c (+)= a b for n elements along k of rows, `row` apart, and of panels, `panel` apart.
//   lm_rows_sum_T: of at most `rows` rows and `panels` panels, which are constants. The last row
//     and the last panel stand for those that do not exist, whose sums are not stored. ahead: bytes
//     between the elements that are read and those that are prefetched; 0: none are.
//   lm_rows_T: of all. One panel of a row is two chains of additions, which take longer than
//     loading it from the first-level cache, so fewer rows take more panels at a time.
#define LM_ROWS(T, TYPE, STEP)                                                                     \
  LM_INLINE void lm_rows_sum_##T(int rows, int panels, int64_t height, int64_t columns, int64_t n, \
                                 const lm_row_##T *a, int64_t row, const TYPE *b, int64_t panel,   \
                                 int64_t stride, float *c, int64_t c_row, int add, int ahead) {    \
    lm_lanes sum[LM_ROWS_MAX][2];                                                                  \
    const lm_row_##T *x[LM_ROWS_MAX];                                                              \
    const TYPE *y[LM_STRIP];                                                                       \
    LM_UNROLL(8)                                                                                   \
    for (int i = 0; i < rows * panels; i++)                                                        \
      sum[i][0] = sum[i][1] = (lm_lanes){0};                                                       \
    LM_UNROLL(8)                                                                                   \
    for (int i = 0; i < rows; i++)                                                                 \
      x[i] = a + lm_min64(i, height - 1) * row;                                                    \
    LM_UNROLL(4)                                                                                   \
    for (int p = 0; p < panels; p++)                                                               \
      y[p] = b + lm_min64(p, (columns - 1) / LM_NR) * panel;                                       \
    for (int64_t k = 0, at = 0; k < n; k += STEP, at += STEP * stride) {                           \
      LM_UNROLL(4)                                                                                 \
      for (int p = 0; p < panels && ahead; p++)                                                    \
        lm_rows_prefetch((const char *)(y[p] + at) + ahead, STEP * LM_NR * (int)sizeof(TYPE));     \
      lm_rows_add_##T(rows, panels, x, k, y, at, k + 1 < n ? stride : 0, sum);                     \
    }                                                                                              \
    lm_rows_store(rows, panels, height, columns, sum, c, c_row, add);                              \
  }                                                                                                \
  static __attribute__((noinline)) void lm_rows_##T(                                               \
      int64_t rows, int64_t columns, int64_t n, const lm_row_##T *a, int64_t row, const TYPE *b,   \
      int64_t panel, int64_t stride, float *c, int64_t c_row, int add) {                           \
    const int64_t rest = rows % LM_ROWS_MAX, whole = rest > LM_ROWS_MAX / 2 ? rows : rows - rest;  \
    const int64_t across = rest == 1 || rest <= LM_ROWS_MAX / 4 ? 4 : 2;                           \
    for (int64_t j = 0; j < columns; j += LM_NR)                                                   \
      for (int64_t i = 0; i < whole; i += LM_ROWS_MAX)                                             \
        lm_rows_sum_##T(LM_ROWS_MAX, 1, rows - i, columns - j, n, a + i * row, row,                \
                        b + j / LM_NR * panel, panel, stride, c + i * c_row + j, c_row, add, 0);   \
    a += whole * row;                                                                              \
    c += whole * c_row;                                                                            \
    for (int64_t j = 0; j < columns && whole < rows; j += across * LM_NR) {                        \
      const TYPE *y = b + j / LM_NR * panel;                                                       \
      const int64_t left = columns - j;                                                            \
      float *z = c + j;                                                                            \
      if (rest == 1)                                                                               \
        lm_rows_sum_##T(1, 4, 1, left, n, a, row, y, panel, stride, z, c_row, add, 0);             \
      else if (LM_ROWS_MAX > 4 && rest == 2)                                                       \
        lm_rows_sum_##T(2, 4, 2, left, n, a, row, y, panel, stride, z, c_row, add, 0);             \
      else if (LM_ROWS_MAX > 4 && rest == 3)                                                       \
        lm_rows_sum_##T(3, 2, 3, left, n, a, row, y, panel, stride, z, c_row, add, 0);             \
      else                                                                                         \
        lm_rows_sum_##T(LM_ROWS_MAX / 2, 2, rest, left, n, a, row, y, panel, stride, z, c_row,     \
                        add, 0);                                                                   \
    }                                                                                              \
  }

// The same for panels in memory, one at a time.
#define LM_ROWS_OF_PANELS(T, TYPE)                                                                 \
  static __attribute__((noinline)) void lm_rows_panels_##T(                                        \
      int64_t rows, int64_t columns, int64_t n, const lm_row_##T *a, int64_t row, const TYPE *b,   \
      int64_t panel, int64_t stride, float *c, int64_t c_row, int add) {                           \
    const int ahead = LM_PANELS_AHEAD;                                                             \
    for (int64_t left; rows > 0; rows -= left, a += left * row, c += left * c_row) {               \
      left = lm_min64(rows, LM_ROWS_MAX);                                                          \
      if (left == 1)                                                                               \
        lm_rows_sum_##T(1, 1, 1, columns, n, a, row, b, panel, stride, c, c_row, add, ahead);      \
      else if (left <= LM_ROWS_MAX / 2)                                                            \
        lm_rows_sum_##T(LM_ROWS_MAX / 2, 1, left, columns, n, a, row, b, panel, stride, c, c_row,  \
                        add, ahead);                                                               \
      else                                                                                         \
        lm_rows_sum_##T(LM_ROWS_MAX, 1, left, columns, n, a, row, b, panel, stride, c, c_row, add, \
                        ahead);                                                                    \
    }                                                                                              \
  }
LM_ROWS(f32, float, 1)
#ifdef __AVX__
LM_ROWS_OF_PANELS(f32, float)
#else
#define lm_rows_panels_f32 lm_rows_f32
#endif
typedef lm_row_f32 lm_row_plain_f32;
LM_ROWS(plain_f32, float, 1)
#ifndef LM_MATRIX_UNIT
typedef lm_row_bf16 lm_row_plain_bf16;
LM_ROWS(bf16, uint16_t, 2)
#ifdef LM_PAIRS
LM_ROWS_OF_PANELS(bf16, uint16_t)
#else
#define lm_rows_panels_bf16 lm_rows_bf16
#endif
LM_ROWS(plain_bf16, uint16_t, 2)
#endif

// The type of B once lm_pack_b_T has packed it.
typedef float lm_packed_f32;
typedef lm_row_bf16 lm_packed_bf16;
#define lm_rows_packed_f32 lm_rows_f32
#define LM_PACKED_DEPTH_F32(N) (N)
#ifdef LM_PAIRS
#define lm_rows_packed_bf16 lm_rows_bf16
#define LM_PACKED_DEPTH_BF16(N) ((N) + (N) % 2)
#else
#define lm_rows_packed_bf16 lm_rows_f32
#define LM_PACKED_DEPTH_BF16(N) (N)
#endif
#endif
