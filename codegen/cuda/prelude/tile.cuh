// tile.cuh - GEMMs of tiles in shared memory, with results in fragments: a warp has 16 rows of a
// result, as in mma.cuh. In f32 the fragments are the same and the GEMMs are multiply-adds of
// single threads, or tensor cores in TF32. Widths are padded with zeros to multiples of 16; rows of
// a tile are `pitch` elements apart.
LM_INLINE int32_t lm_frag_row(int32_t r) {
  return lm_thread() / 32 * 16 + lm_thread() % 32 / 4 + 8 * r;
}
LM_INLINE int32_t lm_frag_col(int32_t n, int32_t c) {
  return n * 8 + lm_thread() % 4 * 2 + c;
}

// -lse, or -inf for a query that is entirely masked.
LM_INLINE float lm_negative_lse(float lse) {
  return lse < -1e29f ? -__builtin_inff() : -lse;
}
#define lm_min_index(i, n) ((i) < (n) ? (i) : (n)-1)

// Names that are local to a macro end in _.
//
// s[n] += 16 rows of a from `row` on times the 8 n rows of b: a tile of scores from queries and
// keys.
// LM_TILE_READ_BF16 is the same where there are registers to unroll it, and addresses are
// constants.
#define LM_TILE_DOT_BF16(...) LM_TILE_DOT_HALF(LM_UNROLL_2, lm_mma_bf16, __VA_ARGS__)
#define LM_TILE_DOT_F16(...) LM_TILE_DOT_HALF(LM_UNROLL_2, lm_mma_f16, __VA_ARGS__)
#define LM_TILE_READ_BF16(...) LM_TILE_DOT_HALF(LM_UNROLL, lm_mma_bf16, __VA_ARGS__)
#define LM_TILE_DOT_HALF(UNROLL, MMA, s, N, a, row, b, WIDTH, PITCH)                               \
  UNROLL for (int32_t k = 0; k < (WIDTH); k += 16) {                                               \
    uint32_t a_[4], b_[4];                                                                         \
    const int32_t l_ = lm_thread() % 32;                                                           \
    lm_matrices_load(a_, a, ((row) + l_ % 16) * (PITCH) + k + l_ / 16 * 8);                        \
    LM_UNROLL for (int32_t n = 0; n < (N); n += 2) {                                               \
      lm_matrices_load(b_, b, (n * 8 + l_ / 16 * 8 + l_ % 8) * (PITCH) + k + l_ / 8 % 2 * 8);      \
      MMA(s[n], a_, b_);                                                                           \
      MMA(s[n + 1], a_, b_ + 2);                                                                   \
    }                                                                                              \
  }
#define LM_TILE_DOT_F32(s, N, a, row, b, WIDTH, PITCH)                                             \
  LM_UNROLL_2 for (int32_t k = 0; k < (WIDTH); k++) {                                              \
    const float x0_ = lm_get(a, lm_frag_row(0) * (PITCH) + k),                                     \
                x1_ = lm_get(a, lm_frag_row(1) * (PITCH) + k);                                     \
    LM_UNROLL for (int32_t n = 0; n < (N); n++) LM_UNROLL for (int32_t c = 0; c < 2; c++) {        \
      const float y_ = lm_get(b, lm_frag_col(n, c) * (PITCH) + k);                                 \
      s[n][c] += x0_ * y_;                                                                         \
      s[n][2 + c] += x1_ * y_;                                                                     \
    }                                                                                              \
  }

#define LM_TILE_DOT_TF32(s, N, a, row, b, WIDTH, PITCH)                                            \
  LM_UNROLL_2 for (int32_t k = 0; k < (WIDTH); k += 8) {                                           \
    const int32_t g_ = lm_thread() % 32 / 4, q_ = k + lm_thread() % 4;                             \
    uint32_t a_[4], b_[2];                                                                         \
    LM_UNROLL for (int32_t i = 0; i < 4; i++) a_[i] =                                              \
        lm_tf32(lm_get(a, ((row) + g_ + i % 2 * 8) * (PITCH) + q_ + i / 2 * 4));                   \
    LM_UNROLL for (int32_t n = 0; n < (N); n++) {                                                  \
      LM_UNROLL for (int32_t i = 0; i < 2; i++) b_[i] =                                            \
          lm_tf32(lm_get(b, (n * 8 + g_) * (PITCH) + q_ + i * 4));                                 \
      lm_mma_tf32(s[n], a_, b_);                                                                   \
    }                                                                                              \
  }

// h[n] += 16 rows from `row` on times 8 n columns from `col` on, of the sum over K terms of the
// outer products of the rows of a and b: what positions add to a state.
#define LM_TILE_OUTER_BF16(h, N, a, row, A_PITCH, b, col, B_PITCH, K)                              \
  LM_UNROLL for (int32_t k = 0; k < (K); k += 16) {                                                \
    uint32_t a_[4], b_[4];                                                                         \
    const int32_t l_ = lm_thread() % 32;                                                           \
    lm_matrices_load_transposed(a_, a,                                                             \
                                (k + l_ / 16 * 8 + l_ % 8) * (A_PITCH) + (row) + l_ / 8 % 2 * 8);  \
    LM_UNROLL for (int32_t n = 0; n < (N); n += 2) {                                               \
      lm_matrices_load_transposed(b_, b, (k + l_ % 16) * (B_PITCH) + (col) + n * 8 + l_ / 16 * 8); \
      lm_mma_bf16(h[n], a_, b_);                                                                   \
      lm_mma_bf16(h[n + 1], a_, b_ + 2);                                                           \
    }                                                                                              \
  }

// o[e] += z times the rows of v, 8 e columns: weights times values. z: N fragments, 8 N columns.
#define LM_TILE_WEIGHTED_BF16(...) LM_TILE_WEIGHTED_HALF(lm_mma_bf16, lm_bf16_pair, __VA_ARGS__)
#define LM_TILE_WEIGHTED_F16(...) LM_TILE_WEIGHTED_HALF(lm_mma_f16, lm_f16_pair, __VA_ARGS__)
#define LM_TILE_WEIGHTED_HALF(MMA, PAIR, o, E, z, N, v, PITCH)                                     \
  LM_UNROLL for (int32_t n = 0; n < (N); n += 2) {                                                 \
    const int32_t l_ = lm_thread() % 32;                                                           \
    uint32_t a_[4] = {PAIR(z[n][0], z[n][1]), PAIR(z[n][2], z[n][3]),                              \
                      PAIR(z[n + 1][0], z[n + 1][1]), PAIR(z[n + 1][2], z[n + 1][3])};             \
    LM_UNROLL for (int32_t e = 0; e < (E); e += 2) {                                               \
      uint32_t b_[4];                                                                              \
      lm_matrices_load_transposed(b_, v, (n * 8 + l_ % 16) * (PITCH) + e * 8 + l_ / 16 * 8);       \
      MMA(o[e], a_, b_);                                                                           \
      MMA(o[e + 1], a_, b_ + 2);                                                                   \
    }                                                                                              \
  }
#define LM_TILE_WEIGHTED_F32(o, E, z, N, v, PITCH)                                                 \
  LM_UNROLL for (int32_t n = 0; n < (N); n++) LM_UNROLL_2 for (int32_t i = 0; i < 8; i++) {        \
    const int32_t from_ = lm_thread() % 32 / 4 * 4 + i / 2;                                        \
    const float x0_ = lm_shuffle_f32(~0u, i % 2 ? z[n][1] : z[n][0], from_);                       \
    const float x1_ = lm_shuffle_f32(~0u, i % 2 ? z[n][3] : z[n][2], from_);                       \
    LM_UNROLL for (int32_t e = 0; e < (E); e++) LM_UNROLL for (int32_t c = 0; c < 2; c++) {        \
      const float y_ = lm_get(v, (n * 8 + i) * (PITCH) + lm_frag_col(e, c));                       \
      o[e][c] += x0_ * y_;                                                                         \
      o[e][2 + c] += x1_ * y_;                                                                     \
    }                                                                                              \
  }

// The order of summation is free: columns 2 q and 2 q + 1 of z, which a thread has, stand for q and
// q + 4.
#define LM_TILE_WEIGHTED_TF32(o, E, z, N, v, PITCH)                                                \
  LM_UNROLL for (int32_t n = 0; n < (N); n++) {                                                    \
    const int32_t g_ = lm_thread() % 32 / 4, from_ = (n * 8 + lm_thread() % 4 * 2) * (PITCH) + g_; \
    const uint32_t a_[4] = {lm_tf32(z[n][0]), lm_tf32(z[n][2]), lm_tf32(z[n][1]),                  \
                            lm_tf32(z[n][3])};                                                     \
    LM_UNROLL for (int32_t e = 0; e < (E); e++) {                                                  \
      const uint32_t b_[2] = {lm_tf32(lm_get(v, from_ + e * 8)),                                   \
                              lm_tf32(lm_get(v, from_ + (PITCH) + e * 8))};                        \
      lm_mma_tf32(o[e], a_, b_);                                                                   \
    }                                                                                              \
  }

// 16 rows from `row` on and columns from k on of a tile; of the transpose of a tile.
#define lm_rows_load(a_, a, row, k, PITCH)                                                         \
  lm_matrices_load(a_, a, ((row) + l_ % 16) * (PITCH) + (k) + l_ / 16 * 8)
#define lm_columns_load(a_, a, row, k, PITCH)                                                      \
  lm_matrices_load_transposed(a_, a,                                                               \
                              ((k) + l_ / 16 * 8 + l_ % 8) * (PITCH) + (row) + l_ / 8 % 2 * 8)
// o[e] += 16 rows of a, which LOAD loads, times 8 E columns of b from `col` on. b: pairs of bf16,
// DEPTH rows of PITCH elements.
#define LM_TILE_TIMES_BF16(LOAD, o, E, a, row, A_PITCH, b, col, PITCH, DEPTH)                      \
  LM_UNROLL_2 for (int32_t k = 0; k < (DEPTH); k += 16) {                                          \
    uint32_t a_[4], b_[4];                                                                         \
    const int32_t l_ = lm_thread() % 32;                                                           \
    LOAD(a_, a, row, k, A_PITCH);                                                                  \
    LM_UNROLL for (int32_t e = 0; e < (E); e += 2) {                                               \
      lm_matrices_load_transposed(b_, (const uint16_t *)(b),                                       \
                                  (k + l_ % 16) * (PITCH) + (col) + e * 8 + l_ / 16 * 8);          \
      lm_mma_bf16(o[e], a_, b_);                                                                   \
      lm_mma_bf16(o[e + 1], a_, b_ + 2);                                                           \
    }                                                                                              \
  }

// Reductions over the four lanes that share a row.
LM_INLINE float lm_row_max(float x) {
  x = lm_max_f32(x, lm_shuffle_xor_f32(~0u, x, 1));
  return lm_max_f32(x, lm_shuffle_xor_f32(~0u, x, 2));
}
LM_INLINE float lm_row_sum(float x) {
  x += lm_shuffle_xor_f32(~0u, x, 1);
  return x + lm_shuffle_xor_f32(~0u, x, 2);
}
// The sum over the 16 rows of a warp, of a thread's two: in lanes with the same columns.
LM_INLINE float lm_column_sum(float x) {
  x += lm_shuffle_xor_f32(~0u, x, 4);
  x += lm_shuffle_xor_f32(~0u, x, 8);
  return x + lm_shuffle_xor_f32(~0u, x, 16);
}
