// tile_amx.h - large GEMMs of bf16 by the processor's matrix unit (AMX): like tile_panel.h, with
// tiles of 32 rows by 32 columns and panels of bf16. The instructions are behind a few macros,
// which are also defined in plain C for processors without AMX (LM_AMX_EMULATED): pairs along k are
// multiplied and added one after the other in f32.
//
// Panels of 16 rows (of A) or columns (of B) consist of squares of 1 KiB, one for each 32 elements
// of k, with zeros beyond the matrix: for A 16 rows of 16 pairs, for B 16 pairs of 16 columns. The
// number of panels is even. Rows of A whose elements are contiguous along k are read without
// packing where lm_gemm_rows_bf16 allows it.
#ifdef LM_AMX
enum {
  LM_AMX_KC = 512,
  LM_MC_BF16 = 192, // rows of A that are packed at a time
  LM_PANEL_BF16 = LM_SQUARE,
  LM_PACKED_A_BF16 = LM_MC_BF16 * LM_AMX_KC / 2 // floats for A
};

#ifdef LM_AMX_EMULATED
typedef struct lm_amx {
  lm_square tile[8];
} lm_amx;
#define LM_AMX_BEGIN(X) ((void)(X))
#define LM_AMX_END(X) ((void)(X))
#define LM_AMX_ZERO(X, T) __builtin_memset((X)->tile[T], 0, sizeof(lm_square))
#define LM_AMX_LOAD(X, T, P, STRIDE)                                                               \
  for (int r_ = 0; r_ < LM_SQUARE; r_++)                                                           \
  __builtin_memcpy((X)->tile[T][r_], (const char *)(P) + r_ * (STRIDE), 64)
#define LM_AMX_STORE(X, T, P, STRIDE)                                                              \
  for (int r_ = 0; r_ < LM_SQUARE; r_++)                                                           \
  __builtin_memcpy((char *)(P) + r_ * (STRIDE), (X)->tile[T][r_], 64)
#define LM_AMX_DOT(X, C, A, B) lm_amx_dot((X)->tile[C], (X)->tile[A], (X)->tile[B])
static __attribute__((noinline)) void lm_amx_dot(lm_square c, lm_square a, lm_square b) {
  for (int i = 0; i < LM_SQUARE; i++)
    for (int k = 0; k < LM_SQUARE; k++)
      for (int j = 0; j < LM_SQUARE; j++) {
        float sum = lm_f32_of_bits(c[i][j]);
        sum += lm_bf16_load((uint16_t)a[i][k]) * lm_bf16_load((uint16_t)b[k][j]);
        sum += lm_bf16_load((uint16_t)(a[i][k] >> 16)) * lm_bf16_load((uint16_t)(b[k][j] >> 16));
        c[i][j] = lm_f32_bits(sum);
      }
}
#else
typedef struct lm_amx {
  uint8_t palette, row, rest[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} lm_amx;
LM_INLINE void lm_amx_begin(lm_amx *x) {
  *x = (lm_amx){.palette = 1};
  for (int i = 0; i < 8; i++) {
    x->bytes[i] = 64;
    x->rows[i] = LM_SQUARE;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(*x));
}
#define LM_AMX_BEGIN(X) lm_amx_begin(X)
#define LM_AMX_END(X) __asm__ volatile("tilerelease")
#define LM_AMX_ZERO(X, T) __asm__ volatile("tilezero %%tmm" #T : :)
#define LM_AMX_LOAD(X, T, P, STRIDE)                                                               \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(P), "r"((int64_t)(STRIDE)) : "memory")
#define LM_AMX_STORE(X, T, P, STRIDE)                                                              \
  __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)"                                             \
                   :                                                                               \
                   : "r"(P), "r"((int64_t)(STRIDE))                                                \
                   : "memory")
#define LM_AMX_DOT(X, C, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)
#endif

// ---- panels

#ifndef LM_TILES_CALLED
// Fills a square of 16 rows (columns) and 32 elements of k. If `rows` is set, it is [row][pair], as
// for A, else [pair][column], as for B. If `interleaved` is set, elements of a row of k have unit
// stride in memory and `stride` separates elements along k; else elements along k have unit stride.
// Both are constants.
LM_INLINE void lm_square_fill(int rows, int interleaved, const uint16_t *from, int64_t stride,
                              lm_square to) {
  lm_words x[LM_SQUARE];
  LM_UNROLL(16)
  for (int i = 0; i < LM_SQUARE; i++)
    x[i] = interleaved ? lm_words_interleave(from + 2 * i * stride, from + (2 * i + 1) * stride)
                       : *(const lm_words *)(from + i * stride);
  if (rows == interleaved) {
    lm_words_transpose(x, (char *)to, sizeof *to);
    return;
  }
  LM_UNROLL(16)
  for (int i = 0; i < LM_SQUARE; i++)
    *(lm_words *)to[i] = x[i];
}

// Fills a square that reaches beyond the matrix.
static __attribute__((noinline)) void lm_square_edge(int rows, const uint16_t *from,
                                                     int64_t stride_mn, int64_t k_stride, int64_t n,
                                                     int64_t count_mn, lm_square to) {
  for (int i = 0; i < LM_SQUARE; i++)
    for (int p = 0; p < LM_SQUARE; p++) {
      uint32_t low = i < count_mn && 2 * p < n ? from[i * stride_mn + 2 * p * k_stride] : 0;
      uint32_t high =
          i < count_mn && 2 * p + 1 < n ? from[i * stride_mn + (2 * p + 1) * k_stride] : 0;
      *(rows ? &to[i][p] : &to[p][i]) = low | high << 16;
    }
}

LM_INLINE void lm_squares(int rows, int interleaved, const uint16_t *from, int64_t stride,
                          int64_t n, int64_t count_mn, float *to) {
  lm_square *square = (lm_square *)to;
  int64_t stride_mn = interleaved ? 1 : stride;
  int64_t k_stride = interleaved ? stride : 1;
  for (int64_t i = 0; i < (count_mn + LM_SIDE - 1) / LM_SIDE * LM_SIDE; i += LM_SQUARE)
    for (int64_t k = 0; k < n; k += 2 * LM_SQUARE, square++) {
      const uint16_t *at = from + i * stride_mn + k * k_stride;
      if (i + LM_SQUARE > count_mn || k + 2 * LM_SQUARE > n)
        lm_square_edge(rows, at, stride_mn, k_stride, n - k, count_mn - i, *square);
      else
        lm_square_fill(rows, interleaved, at, stride, *square);
    }
}
LM_PACK_FUNCTION(lm_pack_a_bf16, uint16_t, lm_squares, 1, 1)
LM_PACK_FUNCTION(lm_pack_a_transposed_bf16, uint16_t, lm_squares, 1, 0)
LM_PACK_FUNCTION(lm_pack_b_bf16, uint16_t, lm_squares, 0, 1)
LM_PACK_FUNCTION(lm_pack_b_transposed_bf16, uint16_t, lm_squares, 0, 0)
#endif

// ---- tiles

// A block of C: four tiles, whose sums are in tile registers 0 to 3. c NULL: none.
typedef struct lm_amx_block {
  float *c;
  int64_t row;
  int add;
} lm_amx_block;

#define LM_AMX_AT(B, T) ((B)->c + (T) / 2 * LM_SQUARE * (B)->row + (T) % 2 * LM_SQUARE)
#define LM_AMX_PUT(X, T, B)                                                                        \
  do {                                                                                             \
    if ((B)->c)                                                                                    \
      LM_AMX_STORE(X, T, LM_AMX_AT(B, T), (B)->row * 4);                                           \
  } while (0)
// Stores a tile of the block before, and begins that of the next.
#define LM_AMX_NEXT(X, T, BEFORE, B)                                                               \
  do {                                                                                             \
    LM_AMX_PUT(X, T, BEFORE);                                                                      \
    if ((B)->add)                                                                                  \
      LM_AMX_LOAD(X, T, LM_AMX_AT(B, T), (B)->row * 4);                                            \
    else                                                                                           \
      LM_AMX_ZERO(X, T);                                                                           \
  } while (0)

// c (+)= a b for `steps` times 32 elements of k, at least one. A store of a tile takes as long as a
// multiplication and waits for the last one of that tile, so each tile of the block before is
// stored where the others are already multiplied again.
LM_INLINE void lm_amx_sum_next(lm_amx *x, int64_t steps, lm_squares_at a, lm_squares_at b,
                               const lm_amx_block *before, const lm_amx_block *c) {
  const char *upper = a.first;
  const char *left = b.first;
  LM_AMX_LOAD(x, 4, upper, a.row);
  LM_AMX_LOAD(x, 6, left, b.row);
  LM_AMX_NEXT(x, 0, before, c);
  LM_AMX_DOT(x, 0, 4, 6);
  LM_AMX_LOAD(x, 5, upper + a.other, a.row);
  LM_AMX_NEXT(x, 2, before, c);
  LM_AMX_DOT(x, 2, 5, 6);
  LM_AMX_LOAD(x, 7, left + b.other, b.row);
  LM_AMX_NEXT(x, 1, before, c);
  LM_AMX_DOT(x, 1, 4, 7);
  LM_AMX_NEXT(x, 3, before, c);
  LM_AMX_DOT(x, 3, 5, 7);
  while (--steps > 0) {
    upper += a.step;
    left += b.step;
    LM_AMX_LOAD(x, 4, upper, a.row);
    LM_AMX_LOAD(x, 6, left, b.row);
    LM_AMX_LOAD(x, 5, upper + a.other, a.row);
    LM_AMX_LOAD(x, 7, left + b.other, b.row);
    LM_AMX_DOT(x, 0, 4, 6);
    LM_AMX_DOT(x, 2, 5, 6);
    LM_AMX_DOT(x, 1, 4, 7);
    LM_AMX_DOT(x, 3, 5, 7);
  }
}

LM_INLINE void lm_amx_put(lm_amx *x, const lm_amx_block *c) {
  LM_AMX_PUT(x, 0, c);
  LM_AMX_PUT(x, 1, c);
  LM_AMX_PUT(x, 2, c);
  LM_AMX_PUT(x, 3, c);
}

// The same for one block alone.
LM_INLINE void lm_amx_sum(lm_amx *x, int64_t steps, lm_squares_at a, lm_squares_at b, float *c,
                          int64_t row, int add) {
  const lm_amx_block none = {0}, all = {c, row, add};
  lm_amx_sum_next(x, steps, a, b, &none, &all);
  lm_amx_put(x, &all);
}

#ifndef LM_TILES_CALLED
// Panels with `depth` elements along k.
LM_INLINE lm_squares_at lm_panel_squares(const float *first, int64_t depth) {
  int64_t panel = (depth + 2 * LM_SQUARE - 1) / (2 * LM_SQUARE) * (int64_t)sizeof(lm_square);
  return (lm_squares_at){first, sizeof(lm_square) / LM_SQUARE, panel, sizeof(lm_square)};
}

LM_INLINE lm_squares_at lm_squares_move(lm_squares_at x, int64_t count_mn) {
  x.first = (const char *)x.first + count_mn / LM_SQUARE * x.other;
  return x;
}

// For a tile that reaches beyond C: computes it in a local buffer, with the same sums.
static __attribute__((noinline)) void lm_amx_edge(lm_amx *x, int64_t steps, int64_t rows,
                                                  int64_t columns, lm_squares_at a, lm_squares_at b,
                                                  float *c, int64_t row, int add) {
  float t[LM_SIDE][LM_SIDE] __attribute__((aligned(64)));
  for (int64_t i = 0; i < LM_SIDE; i++)
    for (int64_t j = 0; j < LM_SIDE; j++)
      t[i][j] = add && i < rows && j < columns ? c[i * row + j] : 0;
  lm_amx_sum(x, steps, a, b, &t[0][0], LM_SIDE, 1);
  for (int64_t i = 0; i < rows && i < LM_SIDE; i++)
    for (int64_t j = 0; j < columns && j < LM_SIDE; j++)
      c[i * row + j] = t[i][j];
}

LM_INLINE void lm_amx_round(const lm_sums *s, int64_t rows, int64_t columns) {
  if (columns != LM_SIDE) {
    lm_sums_round(s, rows, columns);
    return;
  }
  for (int64_t i = 0; i < rows; i++) {
    const lm_wide *from = (const lm_wide *)(s->c + i * s->row);
    *(lm_bf16_wide *)(s->bf16 + i * s->bf16_row) = lm_bf16_wide_round(from[0], from[1]);
  }
}

// Stores the block and rounds its sums.
LM_INLINE void lm_amx_finish(lm_amx *x, lm_amx_block *block, const lm_sums *sums) {
  lm_amx_put(x, block);
  if (block->c && sums->bf16)
    lm_amx_round(sums, LM_SIDE, LM_SIDE);
  block->c = 0;
}

// Each whole block is stored and rounded while the one after it is multiplied.
LM_INLINE void lm_amx_tiles(int64_t n, int64_t rows, int64_t columns, lm_squares_at a,
                            lm_squares_at b, const lm_sums *sums) {
  lm_amx x;
  float t[LM_SIDE][LM_SIDE] __attribute__((aligned(64)));
  int64_t steps = (n + 2 * LM_SQUARE - 1) / (2 * LM_SQUARE);
  lm_amx_block before = {0};
  lm_sums last = *sums;
  LM_AMX_BEGIN(&x);
  for (int64_t j = 0; j < columns; j += LM_SIDE)
    for (int64_t i = 0; i < rows; i += LM_SIDE) {
      lm_squares_at p = lm_squares_move(a, i);
      lm_squares_at q = lm_squares_move(b, j);
      int64_t down = lm_min64(LM_SIDE, rows - i);
      int64_t across = lm_min64(LM_SIDE, columns - j);
      lm_sums z = lm_sums_of_tile(sums, i, j, &t[0][0], LM_SIDE);
      if (down < LM_SIDE || across < LM_SIDE) {
        lm_amx_finish(&x, &before, &last);
        lm_amx_edge(&x, steps, down, across, p, q, z.c, z.row, z.add);
        if (z.bf16)
          lm_amx_round(&z, down, across);
        continue;
      }
      const lm_amx_block block = {z.c, z.row, z.add};
      lm_amx_sum_next(&x, steps, p, q, &before, &block);
      if (before.c && last.bf16)
        lm_amx_round(&last, LM_SIDE, LM_SIDE);
      before = block;
      last = z;
    }
  lm_amx_finish(&x, &before, &last);
  LM_AMX_END(&x);
}

static __attribute__((noinline)) void lm_tiles_bf16(int64_t n, int64_t rows, int64_t columns,
                                                    const float *a, const float *b, int64_t b_depth,
                                                    const lm_sums *sums) {
  lm_amx_tiles(n, rows, columns, lm_panel_squares(a, n), lm_panel_squares(b, b_depth), sums);
}

// Reads rows of A in place if they belong to whole tiles, with k a multiple of the step, and are
// not whole pages apart, which would map them to the same sets of the first-level cache; packs the
// rest.
static __attribute__((noinline)) void lm_gemm_rows_bf16(int64_t n, int64_t rows, int64_t columns,
                                                        const uint16_t *from, int64_t stride,
                                                        float *a, const float *b, int64_t b_depth,
                                                        const lm_sums *sums) {
  int64_t whole = n % (2 * LM_SQUARE) || stride % 2048 == 0 ? 0 : rows / LM_SIDE * LM_SIDE;
  lm_squares_at there = {from, 2 * stride, 2 * LM_SQUARE * stride, 4 * LM_SQUARE};
  lm_sums rest = lm_sums_at(sums, whole, 0);
  if (whole)
    lm_amx_tiles(n, whole, columns, there, lm_panel_squares(b, b_depth), sums);
  if (whole == rows)
    return;
  lm_pack_a_transposed_bf16(from + whole * stride, stride, n, rows - whole, a);
  lm_tiles_bf16(n, rows - whole, columns, a, b, b_depth, &rest);
}

LM_INLINE int64_t lm_kc_bf16(int64_t k) {
  return LM_AMX_KC;
}
#endif
#endif
