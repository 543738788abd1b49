// tile_attend.h - operations on tiles of attention. A tile of scores is Z[s][t], t innermost, with
// rows of `side` elements; in bf16 it is 32 by 32.
//
// The tile of an operand is filled as rows [position][row_stride] of `channels` numbers, followed
// by zeros. GEMMs read further forms:
//
//   transposed      right operand, reduced over channels    S = K Q^T, dP = V dO^T
//   interleaved     right operand, reduced over positions   dV = P dO, dK = dS Q
//   lhs_transposed  left operand, reduced over positions    O^T += V^T P, dQ^T += K^T dS
//
// In f32 both transposed forms are [channels][position], and interleaved is the rows. bf16 is
// widened and treated like f32, or multiplied by AMX or AVX512-BF16: then two numbers that are
// neighbours along the reduction share 32 bits, and Z is rounded to bf16. Sums are f32.

// Rows of `channels` numbers in memory, which are `stride` apart: copied from it, added to it,
// cleared, and rounded from rows of f32. A copy prefetches the rows of the
// next tile into the second-level cache: at their distances the processor does not.
static __attribute__((noinline)) void lm_rows_copy(int64_t positions, int64_t channels,
                                                   const float *from, int64_t stride, float *to,
                                                   int64_t stride_row) {
  for (int64_t i = 0; i < positions; i++) {
    for (int64_t j = 0; j < channels; j += 16)
      __builtin_prefetch(from + (i + positions) * stride + j, 0, 2);
    __builtin_memcpy(to + i * stride_row, from + i * stride, (uint64_t)channels * sizeof *to);
  }
}
static __attribute__((noinline)) void lm_rows_add(int64_t positions, int64_t channels,
                                                  const float *from, int64_t stride_row, float *to,
                                                  int64_t stride) {
  for (int64_t i = 0; i < positions; i++)
#pragma omp simd
    for (int64_t j = 0; j < channels; j++)
      to[i * stride + j] += from[i * stride_row + j];
}
static __attribute__((noinline)) void lm_rows_clear(int64_t positions, int64_t channels, float *to,
                                                    int64_t stride) {
  for (int64_t i = 0; i < positions; i++)
    __builtin_memset(to + i * stride, 0, (uint64_t)channels * sizeof *to);
}
static __attribute__((noinline)) void lm_rows_round(int64_t positions, int64_t channels,
                                                    const float *from, int64_t stride_row,
                                                    uint16_t *to, int64_t stride) {
  for (int64_t i = 0; i < positions; i++, from += stride_row, to += stride) {
    int64_t j = 0;
#ifdef __AVX512BF16__
    for (; j + 32 <= channels; j += 32)
      lm_bf16_put(to + j, from + j, 32);
#endif
#pragma omp simd
    for (int64_t k = j; k < channels; k++)
      to[k] = lm_bf16_round(from[k]);
  }
}

// ---- f32

// to[j][i] = from[i][j] for i < positions, j < channels; row strides are stride_row and `side`.
static __attribute__((noinline)) void lm_form_transposed_f32(int64_t positions, int64_t channels,
                                                             const float *from, int64_t stride_row,
                                                             float *to, int64_t side) {
  for (int64_t i = 0; i < positions; i += 4)
    for (int64_t j = 0; j < channels; j += 4) {
      lm_quad x[4];
      if (i + 4 > positions || j + 4 > channels) {
        for (int64_t a = i; a < positions && a < i + 4; a++)
          for (int64_t b = j; b < channels && b < j + 4; b++)
            to[b * side + a] = from[a * stride_row + b];
        continue;
      }
      LM_UNROLL(4)
      for (int k = 0; k < 4; k++)
        x[k] = *(const lm_quad *)(from + (i + k) * stride_row + j);
      lm_quad_transpose(x);
      LM_UNROLL(4)
      for (int k = 0; k < 4; k++)
        *(lm_quad *)(to + (j + k) * side + i) = x[k];
    }
}
#define lm_form_lhs_transposed_f32 lm_form_transposed_f32

// z = rows x transposed, reduced over channels, of the first `cols` rows
static __attribute__((noinline)) void lm_dot_f32(int64_t cols, int64_t side, int64_t channels,
                                                 const float *rows, int64_t stride_row,
                                                 const float *transposed, float *z) {
  lm_tile_left a = {rows, stride_row, channels, 0};
  lm_tile_gemm(cols, side, channels, a, transposed, side, z, side, LM_SUM_STORE);
}
// The number of tiles at the beginning of a list that are equally far apart.
LM_INLINE int64_t lm_tiles_run(const void *const *tile, int64_t count) {
  int64_t n = count < 2 ? count : 2;
  while (n < count && (const char *)tile[n] - (const char *)tile[n - 1] ==
                          (const char *)tile[1] - (const char *)tile[0])
    n++;
  return n;
}
// c[channels][t] += lhs_transposed x z, reduced over the first `cols` positions of s, which are
// those of a list of tiles. Each tile has `positions` positions, the last may have fewer; that is
// also the row stride of lhs_transposed.
static __attribute__((noinline)) void lm_sum_s_f32(int64_t cols, int64_t side, int64_t channels,
                                                   const float *const *lhs_transposed,
                                                   int64_t positions, const float *z, float *c) {
  int64_t count = (cols + positions - 1) / positions;
  for (int64_t k = 0, run; k < count; k += run) {
    run = lm_tiles_run((const void *const *)lhs_transposed + k, count - k);
    int64_t step = run > 1 ? lhs_transposed[k + 1] - lhs_transposed[k] : 0;
    lm_tile_left a = {lhs_transposed[k], positions, positions, step};
    lm_tile_gemm(channels, side, lm_min64(cols - k * positions, run * positions), a,
                 z + k * positions * side, side, c, side, LM_SUM_FROM);
  }
}
// c[s][stride_row] = z x interleaved, reduced over the first `rows` positions of t. If `to` is not
// null, the first `channels` elements of each row are added to rows of `to`, which are `stride`
// apart, and those of c are undefined.
static __attribute__((noinline)) void lm_sum_t_f32(int64_t cols, int64_t rows, int64_t side,
                                                   int64_t channels, const float *z,
                                                   const float *interleaved, int64_t stride_row,
                                                   float *c, float *to, int64_t stride) {
  lm_tile_left a = {z, side, rows, 0};
  if (to && channels % LM_LANES == 0 && cols % 2 == 0) {
    lm_tile_gemm(cols, channels, rows, a, interleaved, stride_row, to, stride, LM_SUM_ADD);
    return;
  }
  lm_tile_gemm(cols, (channels + LM_LANES - 1) / LM_LANES * LM_LANES, rows, a, interleaved,
               stride_row, c, stride_row, LM_SUM_STORE);
  if (to)
    lm_rows_add(cols, channels, c, stride_row, to, stride);
}

// ---- bf16, widened

#if !defined(LM_AMX) && (!defined(__AVX512BF16__) || defined(LM_BF16_WIDENED))
typedef float lm_operand;
typedef struct lm_unit {
  char none;
} lm_unit;
#define lm_operand_of lm_bf16_load
#define lm_unit_begin(X) ((void)(X))
#define lm_unit_end(X) ((void)(X))
#define lm_form_transposed_bf16 lm_form_transposed_f32
#define lm_form_lhs_transposed_bf16 lm_form_transposed_f32
#define lm_dot_bf16(X, ...) lm_dot_f32(__VA_ARGS__)
#define lm_sum_s_bf16(X, ...) lm_sum_s_f32(__VA_ARGS__)
#define lm_sum_t_bf16(X, ...) lm_sum_t_f32(__VA_ARGS__)
LM_INLINE void lm_form_interleaved_bf16(const lm_operand *from, int64_t stride_row,
                                        lm_operand *to) {
  __builtin_memcpy(to, from, (uint64_t)stride_row * 32 * sizeof *to);
}

// ---- bf16 by the matrix unit, or by AVX512-BF16

#else
typedef uint16_t lm_operand;
enum {
  // Bytes of a row of Z in f32, and of a pair of rows of bf16.
  LM_TILE_BYTES = 4 * LM_SIDE,
  LM_TILES_MAX = 4 // of keys that are summed at once
};

LM_INLINE lm_operand lm_operand_of(uint16_t h) {
  return h;
}
#ifdef LM_AMX
typedef lm_amx lm_unit;
LM_INLINE void lm_unit_begin(lm_unit *x) {
  LM_AMX_BEGIN(x);
}
LM_INLINE void lm_unit_end(lm_unit *x) {
  LM_AMX_END(x);
}
#define lm_unit_sum lm_amx_sum
enum {
  LM_UNIT_ADDS = 0 // the mode LM_SUM_ADD is available
};
#else
enum {
  LM_UNIT_ADDS = 1
};
typedef struct lm_unit {
  char none;
} lm_unit;
#define lm_unit_begin(X) ((void)(X))
#define lm_unit_end(X) ((void)(X))

// LM_BLOCK rows of C, which stay in registers. `mode` is a constant.
LM_INLINE void lm_unit_block(int64_t steps, const char *rows, const lm_squares_at *a,
                             const lm_squares_at *b, float *c, int64_t row, const int mode) {
  const char *left = b->first;
  float *from = c;
  lm_lanes sum[LM_BLOCK][2] = {{{0}}};
  if (mode == LM_SUM_FROM)
    LM_UNROLL(8)
  for (int j = 0; j < LM_BLOCK; j++, from = lm_row_next(from, row)) {
    sum[j][0] = *(const lm_lanes *)from;
    sum[j][1] = *(const lm_lanes *)(from + LM_LANES);
  }
  for (int64_t k = 0; k < steps; k++, rows += a->step, left += b->step)
    for (int64_t p = 0; p < LM_SQUARE; p++) {
      lm_lanes y = *(const lm_lanes *)(left + p * b->row);
      lm_lanes z = *(const lm_lanes *)(left + p * b->row + sizeof y);
      LM_UNROLL(8)
      for (int j = 0; j < LM_BLOCK; j++) {
        lm_lanes v = LM_LANES_OF(*(const lm_pair *)(rows + j * a->row + 4 * p));
        sum[j][0] = lm_pairs_dot(v, y, sum[j][0]);
        sum[j][1] = lm_pairs_dot(v, z, sum[j][1]);
      }
    }
  LM_UNROLL(8)
  for (int j = 0; j < LM_BLOCK; j++, c = lm_row_next(c, row)) {
    if (mode == LM_SUM_ADD) {
      sum[j][0] += *(const lm_lanes *)c;
      sum[j][1] += *(const lm_lanes *)(c + LM_LANES);
    }
    *(lm_lanes *)c = sum[j][0];
    *(lm_lanes *)(c + LM_LANES) = sum[j][1];
  }
}
// c = a b as lm_amx_sum, in any mode of lm_tile_gemm, a constant.
LM_INLINE void lm_unit_sum(lm_unit *x, int64_t steps, lm_squares_at a, lm_squares_at b, float *c,
                           int64_t row, const int mode) {
  const char *rows = a.first;
  for (int64_t i = 0; i < LM_SIDE; i += LM_BLOCK, rows += LM_BLOCK * a.row, c += LM_BLOCK * row)
    lm_unit_block(steps, rows, &a, &b, c, row, mode);
}
#endif

// Operands have 32 positions, zeros after the last, and row strides that are multiples of 32. to:
// [pair of channels][position]
static __attribute__((noinline)) void lm_form_transposed_bf16(int64_t positions, int64_t channels,
                                                              const lm_operand *from,
                                                              int64_t stride_row, lm_operand *to,
                                                              int64_t side) {
  for (int64_t i = 0; i < side; i += 16)
    for (int64_t j = 0; j < stride_row; j += 32) {
      lm_words x[16];
      LM_UNROLL(16)
      for (int k = 0; k < 16; k++)
        x[k] = *(const lm_words *)(from + (i + k) * stride_row + j);
      lm_words_transpose(x, (char *)(to + j * side + 2 * i), LM_TILE_BYTES);
    }
}
// to: [pair of positions][channels]
static __attribute__((noinline)) void lm_form_interleaved_bf16(const lm_operand *from,
                                                               int64_t stride_row, lm_operand *to) {
  for (int64_t i = 0; i < LM_SIDE; i += 2, from += 2 * stride_row, to += 2 * stride_row)
    for (int64_t j = 0; j < stride_row; j += 16)
      *(lm_words *)(to + 2 * j) = lm_words_interleave(from + j, from + stride_row + j);
}
// to: [channels][position]
static __attribute__((noinline)) void
lm_form_lhs_transposed_bf16(int64_t positions, int64_t channels, const lm_operand *from,
                            int64_t stride_row, lm_operand *to, int64_t side) {
  for (int64_t j = 0; j < stride_row; j += 16) {
    lm_words x[16];
    LM_UNROLL(16)
    for (int k = 0; k < 16; k++)
      x[k] =
          lm_words_interleave(from + 2 * k * stride_row + j, from + (2 * k + 1) * stride_row + j);
    lm_words_transpose(x, (char *)(to + j * side), LM_TILE_BYTES / 2);
  }
}

// Two rows of Z rounded to bf16 and interleaved.
LM_INLINE lm_bf16_wide lm_bf16_wide_interleave(lm_wide low, lm_wide high) {
  lm_bf16_wide x = lm_bf16_wide_round(low, high);
  return LM_SHUFFLE(lm_bf16_wide, x, x, LM_ALL(LM_INTERLEAVE, 0));
}

// to: [s][t], zeros from `rows` on
LM_INLINE void lm_z_rows(int64_t rows, const float *z, lm_operand *to) {
  for (int64_t n = 0; n < LM_SIDE; n++, z += LM_SIDE, to += LM_SIDE) {
    *(lm_bf16_wide *)to = lm_bf16_wide_round(*(const lm_wide *)z, *(const lm_wide *)(z + 16));
    for (int64_t m = rows; m < LM_SIDE; m++)
      to[m] = 0;
  }
}
// to: [pair of s][t], zeros from `cols` to the next multiple of LM_SIDE
LM_INLINE void lm_z_pairs(int64_t cols, const float *z, lm_operand *to) {
  enum {
    PAIR = 2 * LM_SIDE
  };
  int64_t n = 0;
  for (; n < cols - 1; n += 2, z += PAIR, to += PAIR)
    LM_UNROLL(2)
  for (int m = 0; m < LM_SIDE; m += 16)
    *(lm_bf16_wide *)(to + 2 * m) =
        lm_bf16_wide_interleave(*(const lm_wide *)(z + m), *(const lm_wide *)(z + LM_SIDE + m));
  for (; n % LM_SIDE || n < cols; n += 2, z += PAIR, to += PAIR)
    for (int m = 0; m < LM_SIDE; m += 16)
      *(lm_bf16_wide *)(to + 2 * m) =
          n < cols ? lm_bf16_wide_interleave(*(const lm_wide *)(z + m), (lm_wide){0})
                   : (lm_bf16_wide){0};
}

LM_INLINE int64_t lm_square_count(int64_t channels) {
  return (channels + LM_SIDE - 1) / LM_SIDE;
}

static __attribute__((noinline)) void lm_dot_bf16(lm_unit *x, int64_t cols, int64_t side,
                                                  int64_t channels, const lm_operand *rows,
                                                  int64_t stride_row, const lm_operand *transposed,
                                                  float *z) {
  lm_squares_at a = {rows, 2 * stride_row, 32 * stride_row, 64},
                b = {transposed, LM_TILE_BYTES, 64, 16 * LM_TILE_BYTES};
  lm_unit_sum(x, lm_square_count(channels), a, b, z, side, LM_SUM_STORE);
}
static __attribute__((noinline)) void lm_sum_s_bf16(lm_unit *x, int64_t cols, int64_t side,
                                                    int64_t channels,
                                                    const lm_operand *const *lhs_transposed,
                                                    int64_t positions, const float *z, float *c) {
  lm_operand rounded[LM_TILES_MAX * LM_SIDE * LM_SIDE] __attribute__((aligned(64)));
  int64_t count = (cols + LM_SIDE - 1) / LM_SIDE;
  lm_z_pairs(cols, z, rounded);
  for (int64_t k = 0, run; k < count; k += run) {
    run = lm_tiles_run((const void *const *)lhs_transposed + k, count - k);
    int64_t step = run > 1 ? 2 * (lhs_transposed[k + 1] - lhs_transposed[k]) : 0;
    lm_squares_at a = {lhs_transposed[k], 2 * positions, 32 * positions, step};
    lm_squares_at b = {rounded + k * LM_SIDE * LM_SIDE, LM_TILE_BYTES, 64, 16 * LM_TILE_BYTES};
    for (int64_t j = 0; j < channels; j += LM_SIDE) {
      lm_unit_sum(x, run, a, b, c + j * side, side, LM_SUM_FROM);
      a.first = (const lm_operand *)a.first + LM_SIDE * positions;
    }
  }
}
static __attribute__((noinline)) void lm_sum_t_bf16(lm_unit *x, int64_t cols, int64_t rows,
                                                    int64_t side, int64_t channels, const float *z,
                                                    const lm_operand *interleaved,
                                                    int64_t stride_row, float *c, float *to,
                                                    int64_t stride) {
  lm_operand rounded[LM_SIDE * LM_SIDE] __attribute__((aligned(64)));
  lm_squares_at a = {rounded, LM_TILE_BYTES / 2, 16 * LM_TILE_BYTES / 2, 0};
  int adds = LM_UNIT_ADDS && to && cols == LM_SIDE && channels % LM_SIDE == 0;
  lm_z_rows(rows, z, rounded);
  for (int64_t j = 0; j < channels; j += LM_SIDE) {
    lm_squares_at b = {interleaved + 2 * j, 4 * stride_row, 64, 0};
    if (adds)
      lm_unit_sum(x, 1, a, b, to + j, stride, LM_SUM_ADD);
    else
      lm_unit_sum(x, 1, a, b, c + j, stride_row, LM_SUM_STORE);
  }
  if (to && !adds)
    lm_rows_add(cols, channels, c, stride_row, to, stride);
}
#endif

// lm_rows_copy of bf16.
static __attribute__((noinline)) void lm_rows_copy_bf16(int64_t positions, int64_t channels,
                                                        const uint16_t *from, int64_t stride,
                                                        lm_operand *to, int64_t stride_row) {
  for (int64_t i = 0; i < positions; i++) {
    for (int64_t j = 0; j < channels; j += 32)
      __builtin_prefetch(from + (i + positions) * stride + j, 0, 2);
#pragma omp simd
    for (int64_t j = 0; j < channels; j++)
      to[i * stride_row + j] = lm_operand_of(from[i * stride + j]);
  }
}

// ---- softmax

typedef int32_t lm_lanes_bits __attribute__((vector_size(LM_LANES * 4), aligned(4), may_alias));

// e^r for |r| <= ln 2 / 2, relative error 1.1e-7: minimax, exact at 0. FMA computes a * b + c, OF
// converts a constant to the type of r.
#define LM_EXP_SERIES(FMA, OF, r)                                                                  \
  FMA(FMA(FMA(FMA(FMA(OF(0x1.106226p-7f), r, OF(0x1.572a56p-5f)), r, OF(0x1.5557b0p-3f)), r,       \
              OF(0x1.fffdfcp-2f)),                                                                 \
          r, OF(1.0f)),                                                                            \
      r, OF(1.0f))
// x - n ln 2
#define LM_EXP_REST(FMA, OF, n, x) FMA(n, OF(2.12194440e-4f), FMA(n, OF(-0.693359375f), x))
enum {
  LM_EXP_MIN = -86
};
#define LM_EXP_ROUND (0x1.8p23f + 127)
#define LM_NUMBER_OF(X) (X)

// e^x for x <= 80, 2.2 ulp (2.5 if products are rounded before they are added); 0 below -86. Like
// lm_exp with two thirds of the operations: x = n ln 2 + r, and after adding 1.5 * 2^23 + 127 the
// low bits of the sum, shifted, are 2^n.
LM_INLINE float lm_exp_low(float x) {
  float t = LM_FMA(x, 0x1.715476p0f, LM_EXP_ROUND);
  float n = t - LM_EXP_ROUND;
  float r = LM_EXP_REST(LM_FMA, LM_NUMBER_OF, n, x);
  float e = LM_EXP_SERIES(LM_FMA, LM_NUMBER_OF, r);
  return lm_of_bits(lm_bits(e * lm_of_bits(lm_bits(t) << 23)) & ~-(uint32_t)(x < LM_EXP_MIN));
}
LM_INLINE lm_lanes lm_lanes_exp_low(lm_lanes x) {
  lm_lanes t = lm_lanes_fma(x, LM_LANES_OF(0x1.715476p0f), LM_LANES_OF(LM_EXP_ROUND));
  lm_lanes n = t - LM_EXP_ROUND;
  lm_lanes r = LM_EXP_REST(lm_lanes_fma, LM_LANES_OF, n, x);
  lm_lanes e = LM_EXP_SERIES(lm_lanes_fma, LM_LANES_OF, r);
  return (lm_lanes)((lm_lanes_bits)(e * (lm_lanes)((lm_lanes_bits)t << 23)) &
                    ~(lm_lanes_bits)(x < (float)LM_EXP_MIN));
}

// The larger one; a if they are equal or unordered.
LM_INLINE lm_lanes lm_lanes_max(lm_lanes a, lm_lanes b) {
#if defined(__AVX__)
  __asm__("vmaxps %1, %2, %0" : "=v"(a) : "v"(a), "v"(b));
  return a;
#else
  lm_lanes_bits more = (lm_lanes_bits)(b > a);
  return (lm_lanes)(((lm_lanes_bits)b & more) | ((lm_lanes_bits)a & ~more));
#endif
}

// The multiple of ln 2 nearest to a maximum score; itself if no key is visible. And e^(score - that
// multiple), at most sqrt(2), to the nearest of the e4m3 numbers times 2^-8.
LM_INLINE lm_lanes lm_lanes_binade_of(lm_lanes top) {
  lm_lanes n = lm_lanes_fma(top, LM_LANES_OF(0x1.715476p0f), LM_LANES_OF(0x1.8p23f)) - 0x1.8p23f;
  lm_lanes_bits visible = (lm_lanes_bits)(top > -1e29f);
  lm_lanes multiple = n * 0x1.62e43p-1f;
  return (lm_lanes)(((lm_lanes_bits)multiple & visible) | ((lm_lanes_bits)top & ~visible));
}
LM_INLINE float lm_binade_of(float top) {
  float n = LM_FMA(top, 0x1.715476p0f, 0x1.8p23f) - 0x1.8p23f;
  return top > -1e29f ? n * 0x1.62e43p-1f : top;
}
LM_INLINE lm_lanes lm_lanes_e4m3(lm_lanes p) {
  lm_lanes binade = (lm_lanes)((lm_lanes_bits)p & 0x7f800000);
  lm_lanes to = lm_lanes_max(binade, LM_LANES_OF(0x1p-14f)) * 0x1.8p20f;
  return (p + to) - to;
}

// Whether no query of a tile sees a key of it (`shown`), and all have seen one before (`seen`): it
// would add zeros. Otherwise notes which queries see one.
LM_INLINE int lm_tile_is_hidden(int64_t rows, const int32_t *shown, int32_t *seen) {
  int hidden = 1;
  for (int64_t i = 0; i < rows; i++)
    hidden &= seen[i] & ~shown[i];
  for (int64_t i = 0; i < rows; i++)
    seen[i] |= shown[i];
  return hidden;
}

enum {
  LM_KEYS_SUMMED = 32 // weights that are summed one after the other; then such sums are added
};

// Adds scores of `cols` keys, z times a positive number, to the online softmax of each t: updates
// top, the maximum score, and sum, the sum of e^(score - top); x becomes e^(score - top). Returns
// whether earlier sums must be multiplied by `scale`. `side` is a multiple of the vector width. x
// may be z. With `rounds`, lm_binade_of(top) is subtracted instead of top, and x becomes e4m3.
LM_INLINE int lm_softmax_any(int64_t cols, int64_t side, const float *z, float times, float *x,
                             float *top, float *sum, float *scale, const int rounds) {
  lm_lanes_bits changed = {0};
  for (int64_t m = 0; m < side; m += LM_LANES) {
    lm_lanes before = *(lm_lanes *)(top + m);
    lm_lanes max = *(const lm_lanes *)(z + m);
    lm_lanes other = max;
    lm_lanes total = {0};
    for (int64_t n = 1; n < cols - 1; n += 2) {
      max = lm_lanes_max(*(const lm_lanes *)(z + n * side + m), max);
      other = lm_lanes_max(*(const lm_lanes *)(z + (n + 1) * side + m), other);
    }
    max = lm_lanes_max(*(const lm_lanes *)(z + (cols - 1) * side + m), max);
    max = lm_lanes_max(lm_lanes_max(other, max) * times, before);
    lm_lanes zero = rounds ? lm_lanes_binade_of(max) : max;
    for (int64_t from = 0; from < cols; from += LM_KEYS_SUMMED) {
      const int64_t to = lm_min64(from + LM_KEYS_SUMMED, cols);
      lm_lanes part = {0};
      LM_UNROLL_BY(2)
      for (int64_t n = from; n < to; n++) {
        lm_lanes score = *(const lm_lanes *)(z + n * side + m);
        lm_lanes p = lm_lanes_exp_low(lm_lanes_fma(score, LM_LANES_OF(times), -zero));
        part += p;
        *(lm_lanes *)(x + n * side + m) = rounds ? lm_lanes_e4m3(p) : p;
      }
      total += part;
    }
    lm_lanes change = lm_lanes_exp_low((rounds ? lm_lanes_binade_of(before) : before) - zero);
    *(lm_lanes *)(top + m) = max;
    *(lm_lanes *)(scale + m) = change;
    *(lm_lanes *)(sum + m) = lm_lanes_fma(*(lm_lanes *)(sum + m), change, total);
    changed |= change != 1.0f;
  }
  int any = 0;
  for (int i = 0; i < LM_LANES; i++)
    any |= changed[i];
  return any;
}

static __attribute__((noinline)) int lm_softmax(int64_t cols, int64_t side, const float *z,
                                                float times, float *x, float *top, float *sum,
                                                float *scale) {
  return lm_softmax_any(cols, side, z, times, x, top, sum, scale, 0);
}
static __attribute__((noinline)) int lm_softmax_e4m3(int64_t cols, int64_t side, const float *z,
                                                     float times, float *x, float *top, float *sum,
                                                     float *scale) {
  return lm_softmax_any(cols, side, z, times, x, top, sum, scale, 1);
}

// o[channels][t] *= scale[t]
static __attribute__((noinline)) void lm_rescale(int64_t channels, int64_t side, const float *scale,
                                                 float *o) {
  for (int64_t j = 0; j < channels; j++)
    for (int64_t m = 0; m < side; m += LM_LANES)
      *(lm_lanes *)(o + j * side + m) *= *(const lm_lanes *)(scale + m);
}
