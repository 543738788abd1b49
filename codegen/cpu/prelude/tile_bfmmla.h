// tile_bfmmla.h - large GEMMs of bf16 by the instructions of aarch64 for bf16 (FEAT_BF16): like
// tile_panel.h, with tiles of 12 rows by 8 columns and panels of bf16. BFMMLA adds to a block of
// two rows by two columns the products of two rows of A and two columns of B, four elements of k
// each. It is also defined in plain C for other processors (LM_BFMMLA_EMULATED).
//
// Panels consist of steps of four elements of k, with zeros beyond the matrix: [step][row or
// column][4]. 24 blocks of C, four of B and two of A fill the registers.
//
// The instruction ignores the rounding mode: for each pair along k, the exact products are added,
// then their sum is added to the block, both rounded to odd (Arm Architecture Reference Manual,
// BFDotAdd with FPCR.EBF = 0). Results below 2^-126 are zero. So all processors give the same bits,
// which are not those of a multiply-add.
#ifdef LM_BFMMLA
enum {
  LM_STEP = 4,
  LM_BF16_MR = 12,
  LM_BF16_NR = 8,
  LM_BF16_KC = 512,
  LM_MC_BF16 = 168, // rows of A that are packed at a time: a multiple of LM_BF16_MR
  LM_PANEL_BF16 = LM_BF16_NR,
  LM_PACKED_A_BF16 = LM_MC_BF16 * LM_BF16_KC / 2 // floats for A
};
#ifndef LM_TILES_CALLED
typedef uint16_t lm_bf16_step __attribute__((vector_size(8), aligned(2), may_alias));
typedef uint16_t lm_bf16_block __attribute__((vector_size(16), aligned(2), may_alias));

#ifdef LM_BFMMLA_EMULATED
// a + b rounded to odd: a result that is not exact is the neighbour whose last bit is set.
static __attribute__((noinline)) float lm_add_to_odd(float a, float b) {
  double sum = (double)a + (double)b, from_b = sum - (double)a;
  double rest = ((double)a - (sum - from_b)) + ((double)b - from_b); // sum + rest is exact
  float near = (float)sum;
  uint32_t bits = lm_f32_bits(near);
  double beyond = (double)near - sum - rest; // of the exact result
  if (sum != sum || __builtin_fabs(sum) >= 0x1p128)
    return near;
  if (beyond != 0)
    bits = (bits - ((beyond > 0) == (sum > 0))) | 1;
  return lm_f32_of_bits(bits & 0x7f800000u ? bits : bits & 0x80000000u);
}
LM_INLINE lm_quad lm_bfmmla(lm_quad c, lm_bf16_block a, lm_bf16_block b) {
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int k = 0; k < LM_STEP; k += 2) {
        float first = lm_bf16_load(a[4 * i + k]) * lm_bf16_load(b[4 * j + k]);
        float second = lm_bf16_load(a[4 * i + k + 1]) * lm_bf16_load(b[4 * j + k + 1]);
        c[2 * i + j] = lm_add_to_odd(c[2 * i + j], lm_add_to_odd(first, second));
      }
  return c;
}
#else
LM_INLINE lm_quad lm_bfmmla(lm_quad c, lm_bf16_block a, lm_bf16_block b) {
  __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
#endif

// ---- panels

// [k][4 rows] becomes [4 rows][k].
LM_INLINE void lm_step_transpose(const uint16_t *from, int64_t stride, uint16_t *to) {
  lm_bf16_step x[LM_STEP], even[2], odd[2];
  LM_UNROLL(4)
  for (int k = 0; k < LM_STEP; k++)
    x[k] = *(const lm_bf16_step *)(from + k * stride);
  even[0] = LM_SHUFFLE(lm_bf16_step, x[0], x[2], 0, 4, 1, 5);
  even[1] = LM_SHUFFLE(lm_bf16_step, x[0], x[2], 2, 6, 3, 7);
  odd[0] = LM_SHUFFLE(lm_bf16_step, x[1], x[3], 0, 4, 1, 5);
  odd[1] = LM_SHUFFLE(lm_bf16_step, x[1], x[3], 2, 6, 3, 7);
  LM_UNROLL(2)
  for (int i = 0; i < 2; i++) {
    *(lm_bf16_step *)(to + 8 * i) = LM_SHUFFLE(lm_bf16_step, even[i], odd[i], 0, 4, 1, 5);
    *(lm_bf16_step *)(to + 8 * i + 4) = LM_SHUFFLE(lm_bf16_step, even[i], odd[i], 2, 6, 3, 7);
  }
}

// A step that reaches beyond the matrix.
static __attribute__((noinline)) void lm_step_edge(int width, const uint16_t *from,
                                                   int64_t stride_mn, int64_t k_stride, int64_t n,
                                                   int64_t count_mn, uint16_t *to) {
  for (int i = 0; i < width; i++)
    for (int k = 0; k < LM_STEP; k++)
      to[i * LM_STEP + k] = i < count_mn && k < n ? from[i * stride_mn + k * k_stride] : 0;
}

// Panels of `width` rows or columns, of which one of the strides is 1: both are constants.
// transposed: elements along k have unit stride.
LM_INLINE void lm_steps(int width, int transposed, const uint16_t *from, int64_t stride, int64_t n,
                        int64_t count_mn, float *panels) {
  uint16_t *to = (uint16_t *)panels;
  const int64_t stride_mn = transposed ? stride : 1, k_stride = transposed ? 1 : stride;
  for (int64_t i = 0; i < count_mn; i += width)
    for (int64_t k = 0; k < n; k += LM_STEP, to += width * LM_STEP) {
      const uint16_t *at = from + i * stride_mn + k * k_stride;
      if (i + width > count_mn || k + LM_STEP > n) {
        lm_step_edge(width, at, stride_mn, k_stride, n - k, count_mn - i, to);
        continue;
      }
      LM_UNROLL(12)
      for (int l = 0; l < width; l += transposed ? 1 : LM_STEP)
        if (transposed)
          *(lm_bf16_step *)(to + l * LM_STEP) = *(const lm_bf16_step *)(at + l * stride);
        else
          lm_step_transpose(at + l, stride, to + l * LM_STEP);
    }
}
LM_PACK_FUNCTION(lm_pack_a_bf16, uint16_t, lm_steps, LM_BF16_MR, 0)
LM_PACK_FUNCTION(lm_pack_a_transposed_bf16, uint16_t, lm_steps, LM_BF16_MR, 1)
LM_PACK_FUNCTION(lm_pack_b_bf16, uint16_t, lm_steps, LM_BF16_NR, 0)
LM_PACK_FUNCTION(lm_pack_b_transposed_bf16, uint16_t, lm_steps, LM_BF16_NR, 1)

// ---- tiles

// c (+)= a b for the first 2 * `pairs` rows of a panel of A and a panel of B; `pairs` is a
// constant.
LM_INLINE void lm_blocks_sum(int pairs, int64_t steps, const uint16_t *a, const uint16_t *b,
                             float *c, int64_t row, int add) {
  lm_quad sum[LM_BF16_MR / 2][4];
  LM_UNROLL(6)
  for (int i = 0; i < pairs; i++)
    LM_UNROLL(4)
  for (int j = 0; j < 4; j++)
    sum[i][j] = (lm_quad){0};
  for (; steps > 0; steps--, a += LM_BF16_MR * LM_STEP, b += LM_BF16_NR * LM_STEP) {
    const lm_bf16_block *x = (const lm_bf16_block *)a, *y = (const lm_bf16_block *)b;
    lm_bf16_block columns[4] = {y[0], y[1], y[2], y[3]};
    LM_UNROLL(6)
    for (int i = 0; i < pairs; i++) {
      lm_bf16_block rows = x[i];
      LM_UNROLL(4)
      for (int j = 0; j < 4; j++)
        sum[i][j] = lm_bfmmla(sum[i][j], rows, columns[j]);
    }
  }
  LM_UNROLL(6)
  for (int i = 0; i < pairs; i++)
    LM_UNROLL(2)
  for (int j = 0; j < 2; j++) {
    lm_quad *upper = (lm_quad *)(c + 2 * i * row) + j,
            *lower = (lm_quad *)(c + (2 * i + 1) * row) + j;
    lm_quad keep[2] = {{0}};
    if (add) {
      keep[0] = *upper;
      keep[1] = *lower;
    }
    *upper = keep[0] + LM_SHUFFLE(lm_quad_int, sum[i][2 * j], sum[i][2 * j + 1], 0, 1, 4, 5);
    *lower = keep[1] + LM_SHUFFLE(lm_quad_int, sum[i][2 * j], sum[i][2 * j + 1], 2, 3, 6, 7);
  }
}
static __attribute__((noinline)) void lm_tile_blocks(int64_t steps, const uint16_t *a,
                                                     const uint16_t *b, float *c, int64_t row,
                                                     int add) {
  lm_blocks_sum(LM_BF16_MR / 2, steps, a, b, c, row, add);
}

// For a tile that reaches beyond C: computes the rows that it has in a local buffer, with the same
// sums.
static __attribute__((noinline)) void lm_blocks_edge(int64_t steps, int64_t rows, int64_t columns,
                                                     const uint16_t *a, const uint16_t *b, float *c,
                                                     int64_t row, int add) {
  float t[LM_BF16_MR][LM_BF16_NR] __attribute__((aligned(64)));
  if (rows <= 2)
    lm_blocks_sum(1, steps, a, b, &t[0][0], LM_BF16_NR, 0);
  else if (rows <= 4)
    lm_blocks_sum(2, steps, a, b, &t[0][0], LM_BF16_NR, 0);
  else
    lm_tile_blocks(steps, a, b, &t[0][0], LM_BF16_NR, 0);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++)
      c[i * row + j] = add ? c[i * row + j] + t[i][j] : t[i][j];
}

static __attribute__((noinline)) void lm_tiles_bf16(int64_t n, int64_t rows, int64_t columns,
                                                    const float *a, const float *b, int64_t b_depth,
                                                    const lm_sums *sums) {
  float t[LM_BF16_MR][LM_BF16_NR] __attribute__((aligned(64)));
  const int64_t steps = (n + LM_STEP - 1) / LM_STEP;
  const int64_t b_panel = (b_depth + LM_STEP - 1) / LM_STEP * LM_STEP * LM_BF16_NR;
  for (int64_t j = 0; j < columns; j += LM_BF16_NR)
    for (int64_t i = 0; i < rows; i += LM_BF16_MR) {
      const uint16_t *x = (const uint16_t *)a + i * steps * LM_STEP;
      const uint16_t *y = (const uint16_t *)b + j / LM_BF16_NR * b_panel;
      int64_t down = lm_min64(LM_BF16_MR, rows - i);
      int64_t across = lm_min64(LM_BF16_NR, columns - j);
      lm_sums z = lm_sums_of_tile(sums, i, j, &t[0][0], LM_BF16_NR);
      if (down < LM_BF16_MR || across < LM_BF16_NR)
        lm_blocks_edge(steps, down, across, x, y, z.c, z.row, z.add);
      else
        lm_tile_blocks(steps, x, y, z.c, z.row, z.add);
      if (z.bf16)
        lm_sums_round(&z, down, across);
    }
}

static __attribute__((noinline)) void lm_gemm_rows_bf16(int64_t n, int64_t rows, int64_t columns,
                                                        const uint16_t *from, int64_t stride,
                                                        float *a, const float *b, int64_t b_depth,
                                                        const lm_sums *sums) {
  lm_pack_a_transposed_bf16(from, stride, n, rows, a);
  lm_tiles_bf16(n, rows, columns, a, b, b_depth, sums);
}

// The blocks of k are as even as whole steps allow.
LM_INLINE int64_t lm_kc_bf16(int64_t k) {
  int64_t blocks = (k + LM_BF16_KC - 1) / LM_BF16_KC;
  return ((k + blocks - 1) / blocks + LM_STEP - 1) / LM_STEP * LM_STEP;
}
#endif
#endif
