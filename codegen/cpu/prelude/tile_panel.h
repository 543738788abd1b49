// tile_panel.h - large GEMMs. A block of KC elements along k of both operands is packed into panels
// in the order in which they are read: [row or column / width][k][width], with zeros after the last
// row or column. A tile of C is then accumulated in registers from a panel of A with LM_MR rows and
// a panel of B with LM_NR columns; the panel of B stays in the first-level cache, the panels of A
// in the second-level cache.
//
// Each element of C is a sum over k, block by block, in an order that depends on the size of k
// alone, so its bits depend neither on the tiling of C nor on its number of rows (tile_rows.h). In
// f32, k ascends, and blocks have at most LM_KC elements on every processor; in bf16 the second
// element of each pair along k precedes the first, as in the processor's dot product of pairs
// (vdpbf16ps).
#if defined(__AVX512F__)
enum {
  LM_MR = 14 // 28 of 32 registers hold sums
};
#elif defined(__AVX__)
enum {
  LM_MR = 6
};
#elif defined(__aarch64__)
enum {
  LM_MR = 12 // 24 of 32 registers hold sums, 5 operands
};
#else
enum {
  LM_MR = 4
};
#endif
enum {
  LM_KC = 256,
  LM_NR = 2 * LM_LANES,
  LM_PANEL_F32 = LM_NR, // columns of a panel of B
  LM_MC_F32 = 168,      // rows of A that are packed at a time: a multiple of every LM_MR
  LM_PACKED_A_F32 = LM_MC_F32 * LM_KC + 16 // floats of their panels
};
#ifndef LM_TILES_CALLED
typedef uint16_t lm_bf16_quad __attribute__((vector_size(8), aligned(2), may_alias));

// The blocks of k are as even as multiples of four allow.
LM_INLINE int64_t lm_kc_f32(int64_t k) {
  int64_t blocks = (k + LM_KC - 1) / LM_KC;
  return ((k + blocks - 1) / blocks + 3) / 4 * 4;
}

LM_INLINE float lm_panel_f32(const float *p) {
  return *p;
}
LM_INLINE float lm_panel_bf16(const uint16_t *p) {
  return lm_bf16_load(*p);
}
LM_INLINE lm_quad lm_quad_f32(const float *p) {
  return *(const lm_quad *)p;
}
LM_INLINE lm_quad lm_quad_bf16(const uint16_t *p) {
  return (lm_quad)(__builtin_convertvector(*(const lm_bf16_quad *)p, lm_quad_int) << 16);
}

// Copies `width` elements, a constant, of one k. Vectors are written out, which takes the compiler
// a quarter of the time that it needs to find them.
LM_INLINE void lm_copy_f32(int width, const float *from, float *to) {
  __builtin_memcpy(to, from, (uint64_t)width * sizeof *to);
}
LM_INLINE void lm_copy_bf16(int width, const uint16_t *from, float *to) {
  LM_UNROLL(8)
  for (int i = 0; i + 4 <= width; i += 4)
    *(lm_quad *)(to + i) = lm_quad_bf16(from + i);
  LM_UNROLL(4)
  for (int i = width / 4 * 4; i < width; i++)
    to[i] = lm_bf16_load(from[i]);
}

// The element along k that is `k`-th in the order of summation.
#define LM_ORDER_f32(k, n) (k)
#define LM_ORDER_bf16(k, n) (((k) ^ 1) < (n) ? (k) ^ 1 : (k))

// Pack panels of `width` rows or columns, a constant, from elements of type T; `from` is the first
// element of the block, n its elements along k.
//   lm_pack_T: rows (columns) have unit stride, k has `stride`. Four panels at a time, so that
//     whole cache lines are read.
//   lm_pack_transposed_T: k has unit stride, rows (columns) have `stride`. Blocks of 4 x 4 are
//     transposed, the last rows of a panel first: floats that they write beyond the width of their
//     panel are overwritten, except for up to two floats after the last panel.
#define LM_PACK(T, TYPE)                                                                           \
  LM_INLINE void lm_pack_panels_##T(int width, int count, const TYPE *from, int64_t stride,        \
                                    int64_t n, float *to) {                                        \
    for (int64_t k = 0; k < n; k++)                                                                \
      LM_UNROLL(4)                                                                                 \
    for (int p = 0; p < count; p++)                                                                \
      lm_copy_##T(width, from + LM_ORDER_##T(k, n) * stride + p * width,                           \
                  to + (p * n + k) * width);                                                       \
  }                                                                                                \
  static __attribute__((noinline)) void lm_pack_edge_##T(int width, const TYPE *from,              \
                                                         int64_t stride_mn, int64_t stride,        \
                                                         int64_t n, int64_t count_mn, float *to) { \
    for (int64_t k = 0; k < n; k++)                                                                \
      for (int i = 0; i < width; i++)                                                              \
        to[k * width + i] =                                                                        \
            i < count_mn ? lm_panel_##T(from + i * stride_mn + LM_ORDER_##T(k, n) * stride) : 0;   \
  }                                                                                                \
  LM_INLINE void lm_pack_##T(int width, const TYPE *from, int64_t stride, int64_t n,               \
                             int64_t count_mn, float *to) {                                        \
    int64_t i = 0;                                                                                 \
    for (; i + 4 * width <= count_mn; i += 4 * width)                                              \
      lm_pack_panels_##T(width, 4, from + i, stride, n, to + i * n);                               \
    for (; i + width <= count_mn; i += width)                                                      \
      lm_pack_panels_##T(width, 1, from + i, stride, n, to + i * n);                               \
    if (i < count_mn)                                                                              \
      lm_pack_edge_##T(width, from + i, 1, stride, n, count_mn - i, to + i * n);                   \
  }                                                                                                \
  LM_INLINE void lm_pack_transposed_##T(int width, const TYPE *from, int64_t stride, int64_t n,    \
                                        int64_t count_mn, float *to) {                             \
    int64_t l = 0;                                                                                 \
    for (; l + width <= count_mn; l += width, from += width * stride, to += width * n) {           \
      int64_t k = 0;                                                                               \
      for (; k + 4 <= n; k += 4)                                                                   \
        LM_UNROLL(8) for (int i = (width - 1) / 4 * 4; i >= 0; i -= 4) {                           \
          lm_quad x[4];                                                                            \
          LM_UNROLL(4)                                                                             \
          for (int j = 0; j < 4; j++)                                                              \
            x[j] = i + j < width ? lm_quad_##T(from + (i + j) * stride + k) : (lm_quad){0};        \
          lm_quad_transpose(x);                                                                    \
          LM_UNROLL(4)                                                                             \
          for (int j = 0; j < 4; j++)                                                              \
            *(lm_quad *)(to + (k + j) * width + i) = x[LM_ORDER_##T(j, 4)];                        \
        }                                                                                          \
      for (; k < n; k++)                                                                           \
        for (int i = 0; i < width; i++)                                                            \
          to[k * width + i] = lm_panel_##T(from + i * stride + LM_ORDER_##T(k, n));                \
    }                                                                                              \
    if (l < count_mn)                                                                              \
      lm_pack_edge_##T(width, from, stride, 1, n, count_mn - l, to);                               \
  }                                                                                                \
  LM_PACK_FUNCTION(lm_pack_a_##T, TYPE, lm_pack_##T, LM_MR)                                        \
  LM_PACK_FUNCTION(lm_pack_a_transposed_##T, TYPE, lm_pack_transposed_##T, LM_MR)                  \
  LM_PACK_FUNCTION(lm_pack_b_##T, TYPE, lm_pack_##T, LM_NR)                                        \
  LM_PACK_FUNCTION(lm_pack_b_transposed_##T, TYPE, lm_pack_transposed_##T, LM_NR)
LM_PACK(f32, float)

// The elements of a panel of A at one k, each a factor of a vector. Multiply-adds of NEON take it
// out of a vector; the empty instruction keeps GCC from loading elements one by one.
#ifdef __aarch64__
typedef lm_quad lm_factors[LM_MR / 4];
LM_INLINE void lm_factors_load(const float *from, lm_quad *to) {
  LM_UNROLL(4)
  for (int i = 0; i < LM_MR / 4; i++) {
    to[i] = ((const lm_quad *)from)[i];
    __asm__("" : "+w"(to[i]));
  }
}
#define LM_FACTORS(NAME, FROM)                                                                     \
  lm_factors NAME;                                                                                 \
  lm_factors_load(FROM, NAME)
#define LM_FACTOR(NAME, I) NAME[(I) / 4][(I) % 4]
#else
#define LM_FACTORS(NAME, FROM) const float *NAME = FROM
#define LM_FACTOR(NAME, I) NAME[I]
#endif

enum {
#ifdef __AVX512BF16__
  LM_TILE_ROUNDS = 1 // lm_tile_sum rounds to bf16 without a detour over memory
#else
  LM_TILE_ROUNDS = 0
#endif
};

// c (+)= a b for the first `rows` rows of a panel of A and one panel of B, which hold n elements,
// or n pairs of bf16: `pairs` and `rows` are constants. The rows of c are prefetched.
LM_INLINE void lm_tile_sum(int pairs, int rows, int64_t n, const float *a, const float *b,
                           const lm_sums *s) {
  lm_lanes sum[LM_MR][2];
  LM_UNROLL(16)
  for (int i = 0; i < rows; i++) {
    __builtin_prefetch(s->c + i * s->row, 1);
    sum[i][0] = sum[i][1] = (lm_lanes){0};
  }
  for (int64_t k = 0; k < n; k++, a += LM_MR, b += LM_NR) {
    lm_lanes x = *(const lm_lanes *)b;
    lm_lanes y = *(const lm_lanes *)(b + LM_LANES);
    LM_FACTORS(factor, a);
    LM_UNROLL(16)
    for (int i = 0; i < rows; i++) {
      lm_lanes v = LM_LANES_OF(LM_FACTOR(factor, i));
      sum[i][0] = pairs ? lm_pairs_dot(v, x, sum[i][0]) : lm_lanes_fma(v, x, sum[i][0]);
      sum[i][1] = pairs ? lm_pairs_dot(v, y, sum[i][1]) : lm_lanes_fma(v, y, sum[i][1]);
    }
  }
  LM_UNROLL(16)
  for (int i = 0; i < rows; i++) {
    lm_lanes *to = (lm_lanes *)(s->c + i * s->row), keep = {0}, keep_more = {0};
    if (s->add) {
      keep = to[0];
      keep_more = to[1];
    }
    keep += sum[i][0];
    keep_more += sum[i][1];
    if (LM_TILE_ROUNDS && s->bf16) {
      lm_lanes x[2] = {keep, keep_more};
      lm_bf16_put(s->bf16 + i * s->bf16_row, (const float *)x, LM_NR);
      continue;
    }
    to[0] = keep;
    to[1] = keep_more;
  }
}

// A tile of few rows, at the end of C, is computed with 4 or 8.
LM_INLINE int64_t lm_tile_height(int64_t rows) {
  return rows <= 4 ? 4 : rows <= 8 && LM_MR > 8 ? 8 : LM_MR;
}

// Prefetches part `at` of `parts` equal ones into the second-level cache.
LM_INLINE void lm_prefetch_part(const float *from, int64_t n, int64_t at, int64_t parts) {
  const int64_t line = 16;
  for (int64_t l = n / line * at / parts; l < n / line * (at + 1) / parts; l++)
    __builtin_prefetch(from + line * l, 0, 2);
}

// Tiles of C from panels of a, which hold n elements (pairs) along k, and panels of b, which hold
// `b_depth`. `sum_of` is lm_tile_sum for one kind of operands. A tile that reaches beyond C is
// computed in a buffer, and so is one whose sums are only rounded, in the first-level cache. The
// tiles of a panel of b prefetch the next one.
typedef void lm_tile_function(int64_t height, int64_t n, const float *a, const float *b,
                              const lm_sums *s);
LM_INLINE void lm_tiles(lm_tile_function *sum_of, int64_t n, int64_t rows, int64_t columns,
                        const float *a, const float *b, int64_t b_depth, const lm_sums *sums) {
  float t[LM_MR][LM_NR] __attribute__((aligned(64)));
  for (int64_t j = 0; j < columns; j += LM_NR)
    for (int64_t i = 0; i < rows; i += LM_MR) {
      int64_t down = lm_min64(LM_MR, rows - i), height = lm_tile_height(down);
      int64_t across = lm_min64(LM_NR, columns - j);
      lm_sums z = lm_sums_of_tile(sums, i, j, &t[0][0], LM_NR);
      int edge = down < height || across < LM_NR;
      if (j + LM_NR < columns)
        lm_prefetch_part(b + (j + LM_NR) * b_depth, n * LM_NR, i / LM_MR,
                         (rows + LM_MR - 1) / LM_MR);
      if (edge) {
        sum_of(height, n, a + i * n, b + j * b_depth, &(lm_sums){&t[0][0], LM_NR});
        lm_sums_take(&z, down, across, &t[0][0], LM_NR);
      } else {
        sum_of(height, n, a + i * n, b + j * b_depth, &z);
      }
      if (z.bf16 && (edge || !LM_TILE_ROUNDS))
        lm_sums_round(&z, down, across);
    }
}
#define LM_TILES(NAME, SUM, PAIRS)                                                                 \
  static __attribute__((noinline)) void SUM(int64_t height, int64_t n, const float *a,             \
                                            const float *b, const lm_sums *s) {                    \
    if (height == 4)                                                                               \
      lm_tile_sum(PAIRS, 4, n, a, b, s);                                                           \
    else if (height == 8 && LM_MR > 8)                                                             \
      lm_tile_sum(PAIRS, 8, n, a, b, s);                                                           \
    else                                                                                           \
      lm_tile_sum(PAIRS, LM_MR, n, a, b, s);                                                       \
  }                                                                                                \
  static __attribute__((noinline)) void NAME(int64_t n, int64_t rows, int64_t columns,             \
                                             const float *a, const float *b, int64_t b_depth,      \
                                             const lm_sums *sums) {                                \
    lm_tiles(SUM, n, rows, columns, a, b, b_depth, sums);                                          \
  }
LM_TILES(lm_tiles_f32, lm_tile_sum_f32, 0)

// The same for rows of A that are `stride` apart with unit stride along k: packs them into `a`
// first.
#define LM_ROWS_MULTIPLY(T, TYPE)                                                                  \
  static __attribute__((noinline)) void lm_gemm_rows_##T(                                          \
      int64_t n, int64_t rows, int64_t columns, const TYPE *from, int64_t stride, float *a,        \
      const float *b, int64_t b_depth, const lm_sums *sums) {                                      \
    lm_pack_a_transposed_##T(from, stride, n, rows, a);                                            \
    lm_tiles_##T(n, rows, columns, a, b, b_depth, sums);                                           \
  }
LM_ROWS_MULTIPLY(f32, float)

// B in panels of f32 is read in place.
LM_INLINE const float *lm_panels_f32(const float *from, int64_t n, int64_t columns, int64_t depth,
                                     float *to) {
  return from;
}
#define LM_READS_PANELS_F32 1
#endif
