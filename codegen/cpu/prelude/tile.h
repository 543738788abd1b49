// tile.h - GEMMs of small matrices in the first-level caches, for attention.
//
// Matrices have rows of float32; rows are a multiple of LM_LANES elements apart. A block of the
// result is held in registers: LM_BLOCK rows of two vectors, or two rows at the end.
typedef __INT64_TYPE__ int64_t;
#if defined(__AVX512F__)
enum {
  LM_LANES = 16,
  LM_BLOCK = 8
};
#elif defined(__AVX__)
enum {
  LM_LANES = 8,
  LM_BLOCK = 6
};
#elif defined(__aarch64__)
enum {
  LM_LANES = 4,
  LM_BLOCK = 8
};
#else
enum {
  LM_LANES = 4,
  LM_BLOCK = 4
};
#endif
typedef float lm_lanes __attribute__((vector_size(LM_LANES * 4), aligned(4), may_alias));

// Orders of lanes, for LM_SHUFFLE: a list of F(S, lane).
typedef int32_t lm_lanes_order __attribute__((vector_size(LM_LANES * 4)));
#if defined(__AVX512F__)
#define LM_LANES_ALL(F, S) LM_ALL(F, S)
#elif defined(__AVX__)
#define LM_LANES_ALL(F, S) F(S, 0), F(S, 1), F(S, 2), F(S, 3), F(S, 4), F(S, 5), F(S, 6), F(S, 7)
#else
#define LM_LANES_ALL(F, S) F(S, 0), F(S, 1), F(S, 2), F(S, 3)
#endif

// A vector of equal elements. Subtracting 0 changes no number, not even -0.
#define LM_LANES_OF(X) ((X) - (lm_lanes){0})

// a * b + c, rounded once if the processor has such an instruction, as LM_FMA for one number.
LM_INLINE lm_lanes lm_lanes_fma(lm_lanes a, lm_lanes b, lm_lanes c) {
#if !defined(__FMA__) && !defined(__aarch64__)
  return a * b + c;
#elif defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return __builtin_elementwise_fma(a, b, c);
#elif defined(__aarch64__) && defined(__clang__)
  __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
#elif defined(__aarch64__)
  return __builtin_aarch64_fmav4sf(a, b, c);
#elif defined(__AVX512F__)
  return __builtin_ia32_vfmaddps512_mask(a, b, c, (uint16_t)-1, 4 /* the current rounding mode */);
#else
  return __builtin_ia32_vfmaddps256(a, b, c);
#endif
}

// Pairs of bf16: the first element is in the lower half of 32 bits.
typedef uint32_t lm_pairs __attribute__((vector_size(LM_LANES * 4), aligned(4), may_alias));
typedef float lm_pair __attribute__((aligned(2), may_alias));
LM_INLINE lm_lanes lm_pairs_first(lm_lanes x) {
  return (lm_lanes)((lm_pairs)x << 16);
}
LM_INLINE lm_lanes lm_pairs_second(lm_lanes x) {
  return (lm_lanes)((lm_pairs)x & 0xffff0000u);
}
// c + the product of the second elements + that of the first ones. The instruction takes numbers
// below 2^-126 as zero.
LM_INLINE lm_lanes lm_pairs_dot(lm_lanes a, lm_lanes b, lm_lanes c) {
#ifdef __AVX512BF16__
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  c = lm_lanes_fma(lm_pairs_second(a), lm_pairs_second(b), c);
  return lm_lanes_fma(lm_pairs_first(a), lm_pairs_first(b), c);
#endif
}

// How a GEMM of tiles treats the result's elements in memory.
enum {
  LM_SUM_STORE, // sums replace them
  LM_SUM_FROM,  // sums begin with them
  LM_SUM_ADD    // sums are added to them
};

// The left operand of a GEMM, in rows `row` apart. After `depth` elements along k, the next ones
// are those `step` after the first.
typedef struct lm_tile_left {
  const float *first;
  int64_t row, depth, step;
} lm_tile_left;

// The next row of C. The compiler cannot look through it: it would keep the distances of all rows
// in registers that it lacks.
LM_INLINE float *lm_row_next(float *c, int64_t row) {
  c += row;
  __asm__("" : "+r"(c));
  return c;
}

// c = a b for `rows` rows and `vectors` vectors; these and `mode` are constants.
LM_INLINE void lm_tile_block(int rows, int vectors, int64_t n, lm_tile_left a, const float *b,
                             int64_t b_row, float *c, int64_t c_row, const int mode) {
  lm_lanes sum[LM_BLOCK][2] = {{{0}}};
  float *at = c;
  if (mode == LM_SUM_FROM)
    LM_UNROLL(8)
  for (int i = 0; i < rows; i++, at = lm_row_next(at, c_row))
    LM_UNROLL(2)
  for (int j = 0; j < vectors; j++)
    sum[i][j] = *(const lm_lanes *)(at + j * LM_LANES);
  for (; n > 0; n -= a.depth, a.first += a.step) {
    const float *left = a.first;
    const float *end = left + lm_min64(n, a.depth);
    for (; left < end; left++, b += b_row) {
      lm_lanes x[2];
      LM_UNROLL(2)
      for (int j = 0; j < vectors; j++)
        x[j] = *(const lm_lanes *)(b + j * LM_LANES);
      LM_UNROLL(8)
      for (int i = 0; i < rows; i++)
        LM_UNROLL(2)
      for (int j = 0; j < vectors; j++)
        sum[i][j] = lm_lanes_fma(LM_LANES_OF(left[i * a.row]), x[j], sum[i][j]);
    }
  }
  LM_UNROLL(8)
  for (int i = 0; i < rows; i++, c = lm_row_next(c, c_row))
    LM_UNROLL(2)
  for (int j = 0; j < vectors; j++) {
    lm_lanes *to = (lm_lanes *)(c + j * LM_LANES);
    if (mode == LM_SUM_ADD)
      sum[i][j] += *to;
    *to = sum[i][j];
  }
}

LM_INLINE void lm_tile_rows(int rows, int64_t width, int64_t n, lm_tile_left a, const float *b,
                            int64_t b_row, float *c, int64_t c_row, const int mode) {
  int64_t j = 0;
  for (; j + 2 * LM_LANES <= width; j += 2 * LM_LANES)
    lm_tile_block(rows, 2, n, a, b + j, b_row, c + j, c_row, mode);
  if (j < width)
    lm_tile_block(rows, 1, n, a, b + j, b_row, c + j, c_row, mode);
}

// c[i][j] = sum over k < n of a[i][k] * b[k][j] for i < rows and j < width, a multiple of
// LM_LANES. If `rows` is odd, one row more is read and written.
LM_INLINE void lm_tile_gemm(int64_t rows, int64_t width, int64_t n, lm_tile_left a, const float *b,
                            int64_t b_row, float *c, int64_t c_row, const int mode) {
  // Two rows have too few sums to hide the latency of multiply-adds, four have enough.
  int64_t left = rows;
  for (; left >= LM_BLOCK && (LM_BLOCK != 6 || left != 8); left -= LM_BLOCK) {
    lm_tile_rows(LM_BLOCK, width, n, a, b, b_row, c, c_row, mode);
    a.first += LM_BLOCK * a.row;
    c += LM_BLOCK * c_row;
  }
  for (; left >= 4; left -= 4, a.first += 4 * a.row, c += 4 * c_row)
    lm_tile_rows(4, width, n, a, b, b_row, c, c_row, mode);
  for (; left > 0; left -= 2, a.first += 2 * a.row, c += 2 * c_row)
    lm_tile_rows(2, width, n, a, b, b_row, c, c_row, mode);
}

// ---- operands of large GEMMs

// Defines a function that packs rows of A or columns of B: PACK with the given constants.
#define LM_PACK_FUNCTION(NAME, TYPE, PACK, ...)                                                    \
  static __attribute__((noinline)) void NAME(const TYPE *from, int64_t stride, int64_t n,          \
                                             int64_t count_mn, float *to) {                        \
    PACK(__VA_ARGS__, from, stride, n, count_mn, to);                                              \
  }

// ---- results of large GEMMs (tile_panel.h, tile_amx.h, tile_bfmmla.h)

// Where sums are stored: rows of f32, to which they are added if `add` is set. At the last block of
// k of a GEMM with a bf16 result, `bf16` is the location of that result, to which the sums are
// rounded; c then only holds the sums of the previous blocks.
typedef struct lm_sums {
  float *c;
  int64_t row;
  int add;
  uint16_t *bf16;
  int64_t bf16_row;
} lm_sums;

LM_INLINE lm_sums lm_sums_at(const lm_sums *s, int64_t i, int64_t j) {
  lm_sums x = *s;
  x.c += i * x.row + j;
  if (x.bf16)
    x.bf16 += i * x.bf16_row + j;
  return x;
}

// Those of a tile. Sums that are only rounded are stored in `t` instead of c, in rows of `row`.
LM_INLINE lm_sums lm_sums_of_tile(const lm_sums *s, int64_t i, int64_t j, float *t, int64_t row) {
  lm_sums x = lm_sums_at(s, i, j);
  if (x.bf16 && !x.add) {
    x.c = t;
    x.row = row;
  }
  return x;
}

// Takes the sums of a tile from t, in rows of `row`.
static __attribute__((noinline)) void lm_sums_take(const lm_sums *s, int64_t rows, int64_t columns,
                                                   const float *t, int64_t row) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      float *to = s->c + i * s->row + j;
      *to = s->add ? *to + t[i * row + j] : t[i * row + j];
    }
}

static __attribute__((noinline)) void lm_sums_round(const lm_sums *s, int64_t rows,
                                                    int64_t columns) {
  for (int64_t i = 0; i < rows; i++) {
    const float *from = s->c + i * s->row;
    uint16_t *to = s->bf16 + i * s->bf16_row;
    int64_t j = 0;
#ifdef __AVX512BF16__
    for (; j + 32 <= columns; j += 32)
      lm_bf16_put(to + j, from + j, 32);
#endif
    for (; j < columns; j++)
      to[j] = lm_bf16_round(from[j]);
  }
}
