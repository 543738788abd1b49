// tile_rows_gemm.h - the GEMMs that kernels call: large ones by the tiles of tile_panel.h,
// tile_amx.h and tile_bfmmla.h, those of few rows by tile_rows.h and tile_rows_columns.h.
typedef void lm_gemm_function(char *const *buf, const int64_t *var, int64_t lo, int64_t hi);

#ifndef LM_TILES_CALLED
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
    const int64_t strip = (panels ? LM_PANELS_##UPPER : LM_STRIP) * LM_NR;                         \
    const int plain = !panels && b_k != 1 && columns % LM_NR == 0;                                 \
    lm_row_##T *taken_a = (lm_row_##T *)pa;                                                        \
    const int64_t most = LM_PACKED_A_##UPPER / rows / block * block;                               \
    for (int64_t first = 0; first < depth; first += most) {                                        \
      const int64_t taken = lm_min64(most, depth - first), along = taken + taken % 2;              \
      lm_rows_take_##T(a + lo * a_row + first * a_k, a_row, a_k, rows, taken,                      \
                       panels || plain || b_k == 1, taken_a);                                      \
      for (int64_t j = 0; j < columns; j += strip)                                                 \
        for (int64_t k = first; k < first + taken; k += block) {                                   \
          const int64_t n = lm_min64(block, depth - k);                                            \
          const int64_t across = lm_min64(strip, columns - j);                                     \
          const lm_sums sums = {c + lo * row + j, row, var[2] || k > 0,                            \
                                (uint16_t *)buf[4] + lo * bf16_row + j, bf16_row};                 \
          if (panels) {                                                                            \
            lm_rows_panels_##T(rows, across, n, taken_a + k - first, along,                        \
                               b + j * depth + k * LM_NR, depth * LM_NR, LM_NR, sums.c, row,       \
                               sums.add);                                                          \
          } else if (plain) {                                                                      \
            lm_rows_plain_##T(rows, across, n, taken_a + k - first, along, b + j + k * b_k, LM_NR, \
                              b_k, sums.c, row, sums.add);                                         \
          } else if (b_k == 1) {                                                                   \
            lm_columns_##T(rows, across, n, taken_a + k - first, along, b + j * b_column + k,      \
                           b_column, sums.c, row, sums.add);                                       \
          } else {                                                                                 \
            lm_pack_b_##T(b + j + k * b_k, b_k, n, across, pb);                                    \
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
#endif
