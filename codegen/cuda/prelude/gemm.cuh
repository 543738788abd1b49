// gemm.cuh - GEMMs of operands in global memory: 256 threads copy tiles of both to shared memory
// and multiply them, two warps along m by four along n, with fragments as in mma.cuh.
enum {
  LM_GEMM_THREADS = 256
};

// A in rows and k, or B in columns ("rows" here) and k.
typedef struct lm_gemm_side {
  int32_t words;       // 16-bit words of an element
  int32_t rows, depth; // of a tile
  bool by_k;           // the lines of a tile run along k, else along the rows
  bool vectors;        // lines in memory are contiguous vectors of 16 bytes, none of them cut
  int64_t row, k;      // strides
} lm_gemm_side;

// Lines are a vector longer than needed, so that eight of them begin in different banks.
LM_INLINE int32_t lm_gemm_pitch(lm_gemm_side s) {
  return (s.by_k ? s.depth : s.rows) + 8 / s.words;
}
LM_INLINE int32_t lm_gemm_at(lm_gemm_side s, int32_t row, int32_t k) {
  return s.by_k ? row * lm_gemm_pitch(s) + k : k * lm_gemm_pitch(s) + row;
}

// Copies the tile from row `row` and `k` on to tile[at], with zeros beyond row_end and k_end.
LM_INLINE void lm_gemm_fetch(uint16_t *tile, int32_t at, const uint16_t *x, lm_gemm_side s,
                             int64_t row, int64_t row_end, int64_t k, int64_t k_end) {
  const int32_t piece = s.vectors ? 8 / s.words : 1;
  const int32_t pieces = (s.by_k ? s.depth : s.rows) / piece;
  LM_UNROLL_8
  for (int32_t i = lm_thread(); i < s.rows * s.depth / piece; i += LM_GEMM_THREADS) {
    const int32_t line = i / pieces, in_line = i % pieces * piece;
    const int32_t r = s.by_k ? line : in_line, d = s.by_k ? in_line : line;
    const bool valid = row + r < row_end && k + d < k_end;
    const uint16_t *from = x + ((row + r) * s.row + (k + d) * s.k) * s.words;
    const int32_t to = at + lm_gemm_at(s, r, d) * s.words;
    if (s.vectors)
      lm_copy_async(tile, to, from, valid);
    for (int32_t w = 0; !s.vectors && w < s.words; w++)
      lm_put(tile, to + w, valid ? from[w] : (uint16_t)0);
  }
}

// Fragments of 16 rows of A, and of 16 columns of B, 16 deep.
LM_INLINE void lm_gemm_a(uint32_t *a, const uint16_t *tile, int32_t at, lm_gemm_side s, int32_t row,
                         int32_t k) {
  const int32_t l = lm_thread() % 32;
  if (s.by_k)
    lm_matrices_load(a, tile, at + lm_gemm_at(s, row + l % 16, k + l / 16 * 8));
  else
    lm_matrices_load_transposed(a, tile,
                                at + lm_gemm_at(s, row + l / 8 % 2 * 8, k + l / 16 * 8 + l % 8));
}
LM_INLINE void lm_gemm_b(uint32_t *b, const uint16_t *tile, int32_t at, lm_gemm_side s, int32_t row,
                         int32_t k) {
  const int32_t l = lm_thread() % 32;
  if (s.by_k)
    lm_matrices_load(b, tile, at + lm_gemm_at(s, row + l / 16 * 8 + l % 8, k + l / 8 % 2 * 8));
  else
    lm_matrices_load_transposed(b, tile, at + lm_gemm_at(s, row + l / 16 * 8, k + l % 16));
}

// s[i][n] += 16 rows of tile a from m + 16 i on times 8 columns of tile b from n_ + 8 n on.
#define LM_GEMM_BF16(...) LM_GEMM_HALF(lm_mma_bf16, __VA_ARGS__)
#define LM_GEMM_F16(...) LM_GEMM_HALF(lm_mma_f16, __VA_ARGS__)
#define LM_GEMM_HALF(MMA, s, M, N, a, a_at, A, m, b, b_at, B, n_)                                  \
  LM_UNROLL for (int32_t k = 0; k < (A).depth; k += 16) {                                          \
    uint32_t a_[M][4], b_[4];                                                                      \
    LM_UNROLL for (int32_t i = 0; i < (M); i++) lm_gemm_a(a_[i], a, a_at, A, (m) + 16 * i, k);     \
    LM_UNROLL for (int32_t n = 0; n < (N); n += 2) {                                               \
      lm_gemm_b(b_, b, b_at, B, (n_) + 8 * n, k);                                                  \
      LM_UNROLL for (int32_t i = 0; i < (M); i++) {                                                \
        MMA(s[i][n], a_[i], b_);                                                                   \
        MMA(s[i][n + 1], a_[i], b_ + 2);                                                           \
      }                                                                                            \
    }                                                                                              \
  }

#define LM_GEMM_TF32(s, M, N, a, a_at, A, m, b, b_at, B, n_)                                       \
  LM_UNROLL for (int32_t k = 0; k < (A).depth; k += 8) {                                           \
    const int32_t g_ = lm_thread() % 32 / 4, q_ = k + lm_thread() % 4;                             \
    uint32_t a_[M][4], b_[2];                                                                      \
    LM_UNROLL for (int32_t i = 0; i < (M); i++) LM_UNROLL for (int32_t j = 0; j < 4; j++) {        \
      const int32_t row_ = (m) + 16 * i + g_ + j % 2 * 8;                                          \
      a_[i][j] = lm_tf32(lm_get(a, (a_at) + lm_gemm_at(A, row_, q_ + j / 2 * 4)));                 \
    }                                                                                              \
    LM_UNROLL for (int32_t n = 0; n < (N); n++) {                                                  \
      LM_UNROLL for (int32_t j = 0; j < 2; j++) b_[j] =                                            \
          lm_tf32(lm_get(b, (b_at) + lm_gemm_at(B, (n_) + 8 * n + g_, q_ + j * 4)));               \
      LM_UNROLL for (int32_t i = 0; i < (M); i++) lm_mma_tf32(s[i][n], a_[i], b_);                 \
    }                                                                                              \
  }

// By multiply-adds of single threads, f32 or f64.
#define LM_GEMM_PLAIN(T, s, M, N, a, a_at, A, m, b, b_at, B, n_)                                   \
  LM_UNROLL_2 for (int32_t k = 0; k < (A).depth; k++) {                                            \
    const int32_t g_ = (m) + lm_thread() % 32 / 4, q_ = (n_) + lm_thread() % 4 * 2;                \
    T a_[M][2], b_[N][2];                                                                          \
    LM_UNROLL for (int32_t i = 0; i < 2 * (M); i++) a_[i / 2][i % 2] =                             \
        lm_get(a, (a_at) + lm_gemm_at(A, g_ + 8 * i, k));                                          \
    LM_UNROLL for (int32_t n = 0; n < 2 * (N); n++) b_[n / 2][n % 2] =                             \
        lm_get(b, (b_at) + lm_gemm_at(B, q_ + n / 2 * 8 + n % 2, k));                              \
    LM_UNROLL for (int32_t i = 0; i < (M); i++) LM_UNROLL for (int32_t n = 0; n < (N); n++)        \
        LM_UNROLL for (int32_t c = 0; c < 4; c++) s[i][n][c] += a_[i][c / 2] * b_[n][c % 2];       \
  }

// The rows of a group whose count is `count`, of which at most `left` exist.
LM_INLINE int64_t lm_group_rows(int32_t count, int64_t left) {
  return count < 0 ? 0 : count < left ? count : left;
}

// A walk over the groups, of which each has the rows behind those of the one before it.
typedef struct lm_group_walk {
  int64_t group, from, rows; // the current group, its first row, its number of rows
  int64_t before;            // the tiles of all groups before it
} lm_group_walk;

// Advances to the group of a tile; false if there is none. A group has `columns` tiles for each
// `tile_rows` rows, or, if that is 0, `columns` in all. In the former case the rows of no group,
// of the `all`, are a last group.
LM_INLINE bool lm_group_seek(lm_group_walk *w, const int32_t *counts, int32_t groups, int64_t all,
                             int64_t tile, int32_t tile_rows, int64_t columns) {
  for (; w->group < groups + (tile_rows > 0); w->group++) {
    w->rows = all - w->from;
    if (w->group < groups)
      w->rows = lm_group_rows(counts[w->group], w->rows);
    const int64_t tiles = tile_rows ? (w->rows + tile_rows - 1) / tile_rows * columns : columns;
    if (tile < w->before + tiles)
      return true;
    w->from += w->rows;
    w->before += tiles;
  }
  return false;
}
