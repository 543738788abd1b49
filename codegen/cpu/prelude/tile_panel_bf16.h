// tile_panel_bf16.h - operands of large GEMMs of bf16 for the tiles of tile_panel.h, unless the
// processor has instructions for matrices of bf16 (tile_amx.h, tile_bfmmla.h: LM_MATRIX_UNIT).
//
// With AVX512-BF16 (LM_PAIRS), panels are of pairs: [row or column / width][k / 2][width][2], with
// a zero behind an odd number of elements along k; LM_PAIRS_EMULATED: on other processors too, for
// tests. Otherwise, or with LM_BF16_WIDENED, bf16 is widened while it is packed.
// Both give the same sums, except that numbers below 2^-126 are zero in products of pairs.
// Prepacked panels of B are of pairs with either.
#ifndef LM_MATRIX_UNIT
enum {
  LM_MC_BF16 = LM_MC_F32,
  LM_PACKED_A_BF16 = LM_PACKED_A_F32,
  LM_PANEL_BF16 = LM_NR
};
#define lm_kc_bf16 lm_kc_f32
#endif

#ifndef LM_TILES_CALLED
#ifdef LM_PAIRS
LM_TILES(lm_tiles_pairs, lm_tile_sum_pairs, 1)
typedef uint16_t lm_bf16_lanes __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t lm_pair_lanes __attribute__((vector_size(64), aligned(4), may_alias));
typedef float lm_pair_quad __attribute__((vector_size(16), aligned(2), may_alias));
LM_INLINE lm_quad lm_pairs_quad(const uint16_t *from) {
  return *(const lm_pair_quad *)from;
}

// n elements along k of at most `width` rows or columns.
static __attribute__((noinline)) void lm_pairs_edge(int width, const uint16_t *from,
                                                    int64_t stride_mn, int64_t stride, int64_t n,
                                                    int64_t count_mn, uint16_t *to) {
  const int64_t count = lm_min64(width, count_mn);
  for (int64_t k = 0; k < n; k += 2, to += 2 * width) {
    const uint16_t *second = k + 1 < n ? from + stride : 0;
    for (int64_t i = 0; i < count; i++) {
      to[2 * i] = from[i * stride_mn];
      to[2 * i + 1] = second ? second[i * stride_mn] : 0;
    }
    for (int64_t i = 2 * count; i < 2 * width; i++)
      to[i] = 0;
    from += 2 * stride;
  }
}

// Loads the first `count` elements of 16, at least one. The other lanes are 0, and memory behind
// these elements is not read.
LM_INLINE lm_bf16_lanes lm_bf16_load_first(const uint16_t *from, int64_t count) {
  lm_bf16_lanes x = {0};
  if (count >= 16)
    return *(const lm_bf16_lanes *)from;
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  __asm__("vmovdqu16 %1, %0 %{%2%}%{z%}"
          : "=v"(x)
          : "m"(*(const lm_bf16_lanes *)from), "Yk"((uint32_t)(1 << count) - 1));
#else
  __builtin_memcpy(&x, from, 2 * (uint64_t)count);
#endif
  return x;
}

// Sixteen pairs of neighbouring rows (columns), of which `count` are read; `second` elements apart.
LM_INLINE lm_pair_lanes lm_pairs_load(const uint16_t *from, int64_t second, int64_t count) {
  const lm_bf16_lanes one = lm_bf16_load_first(from, count);
  const lm_bf16_lanes other = lm_bf16_load_first(from + second, count);
  lm_pair_lanes x = __builtin_convertvector(one, lm_pair_lanes);
  lm_pair_lanes y = __builtin_convertvector(other, lm_pair_lanes);
  return x | y << 16;
}

// The pairs of one k of `panels` panels, a constant, which are `size` apart. Sixteen pairs are
// written as a whole, also beyond the width of a panel, unless `exact`.
LM_INLINE void lm_pairs_put(int width, int panels, int exact, const uint16_t *from, int64_t second,
                            int64_t count_mn, int64_t size, uint16_t *to) {
  LM_UNROLL(4)
  for (int p = 0; p < panels; p++)
    LM_UNROLL(2)
  for (int i = 0; i < width; i += 16) {
    const int64_t left = count_mn - p * width - i;
    lm_pair_lanes x = {0};
    if (left > 0)
      x = lm_pairs_load(from + p * width + i, second, left);
    uint16_t *at = to + p * size + 2 * i;
    if (exact && width - i < 16)
      __builtin_memcpy(at, &x, 4 * (uint64_t)(width - i));
    else
      *(lm_pair_lanes *)at = x;
  }
}

enum {
  LM_PACK_AHEAD = 16 // elements along k: the distance of prefetches
};

// Two elements along k of all panels, which hold `depth`: four panels at a time, as far as they can
// be read as a whole.
LM_INLINE void lm_pairs_row(int width, int exact, const uint16_t *from, int64_t second,
                            int64_t count_mn, int64_t depth, uint16_t *to) {
  const int64_t read = (width + 15) / 16 * 16 - width; // beyond a panel
  const int64_t size = width * depth;
  int64_t i = 0;
  for (; i + 4 * width + read <= count_mn; i += 4 * width) {
    LM_UNROLL(4)
    for (int j = 0; j < 4 * width; j += 32) {
      __builtin_prefetch(from + i + j + LM_PACK_AHEAD * second, 0, 2);
      __builtin_prefetch(from + i + j + (LM_PACK_AHEAD + 1) * second, 0, 2);
    }
    lm_pairs_put(width, 4, exact, from + i, second, 4 * width + read, size, to + i * depth);
  }
  for (; i < count_mn; i += width)
    lm_pairs_put(width, 1, exact, from + i, second, count_mn - i, size, to + i * depth);
}

// Rows (columns) have unit stride; k has `stride`. All panels are written together, so that each k
// is read in the order of memory. Pairs that are written beyond the width belong to the next k of
// their panel, which follows; at the end of a panel only its own pairs are written.
LM_INLINE void lm_pairs_pack(int width, const uint16_t *from, int64_t stride, int64_t n,
                             int64_t count_mn, float *panels) {
  uint16_t *to = (uint16_t *)panels;
  const int64_t depth = n + n % 2;
  int64_t k = 0;
  for (; k + 1 < n && (n - k) / 2 * width >= 16; k += 2)
    lm_pairs_row(width, 0, from + k * stride, stride, count_mn, depth, to + k * width);
  for (; k + 1 < n; k += 2)
    lm_pairs_row(width, 1, from + k * stride, stride, count_mn, depth, to + k * width);
  for (int64_t i = 0; k < n && i < count_mn; i += width)
    lm_pairs_edge(width, from + k * stride + i, 1, stride, 1, count_mn - i,
                  to + i * depth + k * width);
}

// k has unit stride, rows (columns) have `stride`: blocks of four by four pairs are transposed, the
// last rows of a panel first, as in LM_PACK.
LM_INLINE void lm_pairs_pack_transposed(int width, const uint16_t *from, int64_t stride, int64_t n,
                                        int64_t count_mn, float *to) {
  const int64_t pairs = (n + n % 2) / 2;
  for (int64_t l = 0; l < count_mn; l += width, from += width * stride, to += width * pairs) {
    int64_t k = 0;
    for (; l + width <= count_mn && k + 8 <= n; k += 8)
      LM_UNROLL(8)
    for (int i = (width - 1) / 4 * 4; i >= 0; i -= 4) {
      lm_quad x[4];
      LM_UNROLL(4)
      for (int j = 0; j < 4; j++)
        x[j] = i + j < width ? lm_pairs_quad(from + (i + j) * stride + k) : (lm_quad){0};
      lm_quad_transpose(x);
      LM_UNROLL(4)
      for (int j = 0; j < 4; j++)
        *(lm_quad *)(to + (k / 2 + j) * width + i) = x[j];
    }
    lm_pairs_edge(width, from + k, stride, 1, n - k, count_mn - l,
                  (uint16_t *)(to + k / 2 * width));
  }
}
LM_PACK_FUNCTION(lm_pack_a_bf16, uint16_t, lm_pairs_pack, LM_MR)
LM_PACK_FUNCTION(lm_pack_a_transposed_bf16, uint16_t, lm_pairs_pack_transposed, LM_MR)
LM_PACK_FUNCTION(lm_pack_b_bf16, uint16_t, lm_pairs_pack, LM_NR)
LM_PACK_FUNCTION(lm_pack_b_transposed_bf16, uint16_t, lm_pairs_pack_transposed, LM_NR)

// n and b_depth are elements along k.
LM_INLINE void lm_tiles_bf16(int64_t n, int64_t rows, int64_t columns, const float *a,
                             const float *b, int64_t b_depth, const lm_sums *sums) {
  lm_tiles_pairs((n + n % 2) / 2, rows, columns, a, b, (b_depth + b_depth % 2) / 2, sums);
}
LM_ROWS_MULTIPLY(bf16, uint16_t)
#elif !defined(LM_MATRIX_UNIT)
LM_PACK(bf16, uint16_t)

// Widens panels that hold `depth` elements along k; n is even.
static __attribute__((noinline)) const float *
lm_panels_bf16(const uint16_t *from, int64_t n, int64_t columns, int64_t depth, float *to) {
  for (int64_t j = 0; j < columns; j += LM_NR)
    for (int64_t k = 0; k < n; k += 2)
      LM_UNROLL(2)
  for (int i = 0; i < 2; i++) {
    lm_lanes x = *(const lm_lanes *)(from + j * depth + k * LM_NR + 2 * i * LM_LANES);
    lm_lanes *rows = (lm_lanes *)(to + j * n + k * LM_NR) + i;
    rows[0] = lm_pairs_second(x);
    rows[2] = lm_pairs_first(x);
  }
  return to;
}
#define LM_READS_PANELS_BF16 0
LM_INLINE void lm_tiles_bf16(int64_t n, int64_t rows, int64_t columns, const float *a,
                             const float *b, int64_t b_depth, const lm_sums *sums) {
  lm_tiles_f32(n, rows, columns, a, b, b_depth, sums);
}
LM_ROWS_MULTIPLY(bf16, uint16_t)
#endif

#if defined(LM_PAIRS) || defined(LM_MATRIX_UNIT)
LM_INLINE const float *lm_panels_bf16(const uint16_t *from, int64_t n, int64_t columns,
                                      int64_t depth, float *to) {
  return (const float *)from;
}
#define LM_READS_PANELS_BF16 1
#endif
#endif
