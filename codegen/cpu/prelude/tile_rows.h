// tile_rows.h - the GEMMs that kernels call: large ones by the tiles of tile_panel.h,
// tile_amx.h and tile_bfmmla.h, and GEMMs of few rows, as in decoding.
//
// The time of a GEMM of few rows is the time to read B once. Its sums stay in registers for all
// rows of a strip of B, whose elements are used as they are loaded: from panels, which are
// contiguous, or else from a strip that is packed in the first-level cache. Sums have the order of
// large GEMMs.
enum {
  LM_FEW = 16, // rows; more are computed by tiles
#if defined(__AVX512F__) || defined(__aarch64__)
  LM_ROWS_MAX = 8, // rows whose sums fit the registers
#else
  LM_ROWS_MAX = 4,
#endif
  LM_STRIP = 4,      // panels of a strip
  LM_ROWS_AHEAD = 48 // rows of B, between which a processor sees no pattern, are prefetched
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

// sum += a b for one element along k.
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

// The same for a pair: lm_rows_add_bf16 of a panel, lm_rows_add_plain of rows of B, the second one
// `second` elements behind the first.
typedef uint16_t lm_row_words __attribute__((vector_size(LM_LANES * 2), aligned(2), may_alias));
LM_INLINE lm_pairs lm_rows_words(const uint16_t *from) {
  return __builtin_convertvector(*(const lm_row_words *)from, lm_pairs);
}
LM_INLINE void lm_rows_prefetch(const uint16_t *from, int64_t second) {
  __builtin_prefetch(from + LM_ROWS_AHEAD * second);
  __builtin_prefetch(from + (LM_ROWS_AHEAD + 1) * second);
}
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
LM_INLINE lm_lanes lm_rows_pairs(const uint16_t *from, int64_t second) {
  return (lm_lanes)(lm_rows_words(from) | lm_rows_words(from + second) << 16);
}
LM_INLINE void lm_rows_add_plain(int rows, int panels, const uint16_t *const *a, int64_t k,
                                 const uint16_t *const *b, int64_t at, int64_t second,
                                 lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    lm_rows_prefetch(b[p] + at, second);
    lm_rows_dot(rows, panels, a, k, lm_rows_pairs(b[p] + at, second),
                lm_rows_pairs(b[p] + at + LM_LANES, second), sum + p);
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
LM_INLINE lm_lanes lm_rows_widen(const uint16_t *from) {
  return (lm_lanes)(lm_rows_words(from) << 16);
}
LM_INLINE void lm_rows_add_plain(int rows, int panels, const float *const *a, int64_t k,
                                 const uint16_t *const *b, int64_t at, int64_t next,
                                 lm_lanes (*sum)[2]) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++) {
    const uint16_t *x = b[p] + at, *y = x + next;
    lm_rows_prefetch(x, next);
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
//   and
//     the last panel stand for those that do not exist, whose sums are not stored.
//   lm_rows_T: of all. One panel of a row is two chains of additions, which take longer than
//   loading
//     it, so fewer rows take more panels at a time.
#define LM_ROWS(T, TYPE, STEP)                                                                     \
  LM_INLINE void lm_rows_sum_##T(int rows, int panels, int64_t height, int64_t columns, int64_t n, \
                                 const lm_row_##T *a, int64_t row, const TYPE *b, int64_t panel,   \
                                 int64_t stride, float *c, int64_t c_row, int add) {               \
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
    for (int64_t k = 0, at = 0; k < n; k += STEP, at += STEP * stride)                             \
      lm_rows_add_##T(rows, panels, x, k, y, at, k + 1 < n ? stride : 0, sum);                     \
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
                        b + j / LM_NR * panel, panel, stride, c + i * c_row + j, c_row, add);      \
    a += whole * row;                                                                              \
    c += whole * c_row;                                                                            \
    for (int64_t j = 0; j < columns && whole < rows; j += across * LM_NR) {                        \
      const TYPE *y = b + j / LM_NR * panel;                                                       \
      const int64_t left = columns - j;                                                            \
      float *z = c + j;                                                                            \
      if (rest == 1)                                                                               \
        lm_rows_sum_##T(1, 4, 1, left, n, a, row, y, panel, stride, z, c_row, add);                \
      else if (LM_ROWS_MAX > 4 && rest == 2)                                                       \
        lm_rows_sum_##T(2, 4, 2, left, n, a, row, y, panel, stride, z, c_row, add);                \
      else                                                                                         \
        lm_rows_sum_##T(LM_ROWS_MAX / 2, 2, rest, left, n, a, row, y, panel, stride, z, c_row,     \
                        add);                                                                      \
    }                                                                                              \
  }
LM_ROWS(f32, float, 1)
#ifndef LM_MATRIX_UNIT
typedef lm_row_bf16 lm_row_plain;
LM_ROWS(bf16, uint16_t, 2)
LM_ROWS(plain, uint16_t, 2)
#endif
#define lm_rows_plain_f32 lm_rows_f32
#define lm_rows_plain_bf16 lm_rows_plain

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

// Packs columns of B, each of unit stride along k, panel by panel, while the next panel is
// prefetched: `all` columns exist.
#define LM_ROWS_PACK(T, UPPER, TYPE)                                                               \
  LM_INLINE void lm_rows_pack_##T(const TYPE *from, int64_t stride, int64_t n, int64_t columns,    \
                                  int64_t all, float *to) {                                        \
    const int64_t line = 64 / (int64_t)sizeof(TYPE);                                               \
    for (int64_t j = 0; j < columns; j += LM_NR) {                                                 \
      for (int64_t i = j + LM_NR; i < lm_min64(j + 2 * LM_NR, all); i++)                           \
        for (int64_t k = 0; k < n; k += line)                                                      \
          __builtin_prefetch(from + i * stride + k);                                               \
      lm_pack_b_transposed_##T(from + j * stride, stride, n, lm_min64(LM_NR, columns - j), to);    \
      to = (float *)((lm_packed_##T *)to + LM_PACKED_DEPTH_##UPPER(n) * LM_NR);                    \
    }                                                                                              \
  }
LM_ROWS_PACK(f32, F32, float)
#ifndef LM_MATRIX_UNIT
LM_ROWS_PACK(bf16, BF16, uint16_t)
#endif

// The operands of a call of lm_gemm_T: runtime/plan/plan.h describes buf and var.
#define LM_GEMM_OPERANDS(T, UPPER, TYPE)                                                           \
  const TYPE *a = (const TYPE *)buf[0], *b = (const TYPE *)buf[1];                                 \
  float *c = (float *)buf[2], *pa = (float *)buf[3], *pb = pa + LM_PACKED_A_##UPPER;               \
  const int64_t columns = var[0], row = var[1], bf16_row = var[3], depth = var[4], a_row = var[5], \
                a_k = var[6], b_column = var[7], b_k = var[8], panels = var[9],                    \
                block = lm_kc_##T(var[10]);

// Few rows: for each strip of B, the blocks of k. A is taken into the workspace first, as many
// blocks of k as fit there.
#define LM_GEMM_FEW(T, UPPER, TYPE)                                                                \
  static __attribute__((noinline)) void lm_gemm_few_##T(char *const *buf, const int64_t *var,      \
                                                        int64_t lo, int64_t hi) {                  \
    LM_GEMM_OPERANDS(T, UPPER, TYPE)                                                               \
    const int64_t rows = hi - lo;                                                                  \
    const int plain = !panels && b_k != 1 && columns % LM_NR == 0;                                 \
    lm_row_##T *taken_a = (lm_row_##T *)pa;                                                        \
    const int64_t most = LM_PACKED_A_##UPPER / rows / block * block;                               \
    for (int64_t first = 0; first < depth; first += most) {                                        \
      const int64_t taken = lm_min64(most, depth - first), along = taken + taken % 2;              \
      lm_rows_take_##T(a + lo * a_row + first * a_k, a_row, a_k, rows, taken, panels || plain,     \
                       taken_a);                                                                   \
      for (int64_t j = 0; j < columns; j += LM_STRIP * LM_NR)                                      \
        for (int64_t k = first; k < first + taken; k += block) {                                   \
          const int64_t n = lm_min64(block, depth - k);                                            \
          const int64_t across = lm_min64(LM_STRIP * LM_NR, columns - j);                          \
          const lm_sums sums = {c + lo * row + j, row, var[2] || k > 0,                            \
                                (uint16_t *)buf[4] + lo * bf16_row + j, bf16_row};                 \
          if (panels) {                                                                            \
            lm_rows_##T(rows, across, n, taken_a + k - first, along, b + j * depth + k * LM_NR,    \
                        depth * LM_NR, LM_NR, sums.c, row, sums.add);                              \
          } else if (plain) {                                                                      \
            lm_rows_plain_##T(rows, across, n, taken_a + k - first, along, b + j + k * b_k, LM_NR, \
                              b_k, sums.c, row, sums.add);                                         \
          } else {                                                                                 \
            if (b_k == 1)                                                                          \
              lm_rows_pack_##T(b + j * b_column + k, b_column, n, across, columns - j, pb);        \
            else                                                                                   \
              lm_pack_b_##T(b + j + k * b_k, b_k, n, across, pb);                                  \
            lm_rows_packed_##T(rows, across, n, taken_a + k - first, along,                        \
                               (const lm_packed_##T *)pb, LM_PACKED_DEPTH_##UPPER(n) * LM_NR,      \
                               LM_NR, sums.c, row, sums.add);                                      \
          }                                                                                        \
          if (bf16_row && k + n == depth)                                                          \
            lm_sums_round(&sums, rows, across);                                                    \
        }                                                                                          \
    }                                                                                              \
  }
LM_GEMM_FEW(f32, F32, float)
#ifndef LM_MATRIX_UNIT
LM_GEMM_FEW(bf16, BF16, uint16_t)
#define LM_FEW_BF16 LM_FEW
#else
enum {
  LM_FEW_BF16 = 0 // tiles load B as fast as memory does
};
#define lm_gemm_few_bf16(...) ((void)0)
#endif
#define LM_FEW_F32 LM_FEW

// For each block of k: packs B, then LM_MC rows of A at a time. For any number of rows; a GEMM that
// may have few of them calls lm_gemm_any_T, since lm_gemm_few_T takes as long to compile as all
// else.
#define LM_GEMM(T, UPPER, TYPE)                                                                    \
  static __attribute__((noinline)) void lm_gemm_##T(char *const *buf, const int64_t *var,          \
                                                    int64_t lo, int64_t hi) {                      \
    LM_GEMM_OPERANDS(T, UPPER, TYPE)                                                               \
    for (int64_t k = 0; k < depth; k += block) {                                                   \
      const int64_t n = lm_min64(block, depth - k);                                                \
      const int64_t b_depth = panels && LM_READS_PANELS_##UPPER ? depth : n;                       \
      const float *y = pb;                                                                         \
      if (panels)                                                                                  \
        y = lm_panels_##T(b + k * LM_PANEL_##UPPER, n, columns, depth, pb);                        \
      else if (b_k == 1)                                                                           \
        lm_pack_b_transposed_##T(b + k, b_column, n, columns, pb);                                 \
      else                                                                                         \
        lm_pack_b_##T(b + k * b_k, b_k, n, columns, pb);                                           \
      for (int64_t i = lo; i < hi; i += LM_MC_##UPPER) {                                           \
        const int64_t rows = lm_min64(LM_MC_##UPPER, hi - i);                                      \
        const TYPE *x = a + i * a_row + k * a_k;                                                   \
        const lm_sums sums = {c + i * row, row, var[2] || k > 0,                                   \
                              bf16_row && k + n == depth ? (uint16_t *)buf[4] + i * bf16_row : 0,  \
                              bf16_row};                                                           \
        if (a_k == 1) {                                                                            \
          lm_gemm_rows_##T(n, rows, columns, x, a_row, pa, y, b_depth, &sums);                     \
        } else {                                                                                   \
          lm_pack_a_##T(x, a_k, n, rows, pa);                                                      \
          lm_tiles_##T(n, rows, columns, pa, y, b_depth, &sums);                                   \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }
LM_GEMM(f32, F32, float)
LM_GEMM(bf16, BF16, uint16_t)

#define LM_GEMM_ANY(T, UPPER)                                                                      \
  LM_INLINE void lm_gemm_any_##T(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {   \
    if (hi - lo <= LM_FEW_##UPPER)                                                                 \
      lm_gemm_few_##T(buf, var, lo, hi);                                                           \
    else                                                                                           \
      lm_gemm_##T(buf, var, lo, hi);                                                               \
  }
LM_GEMM_ANY(f32, F32)
LM_GEMM_ANY(bf16, BF16)
