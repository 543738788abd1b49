// group.cuh - tiles of bf16 as wgmma reads them: lines of 64 elements, 128 bytes, in patterns of 8 lines that begin at multiples
// of 1024 bytes; the 16 bytes c of line r lie at c ^ r % 8. A tile of wider rows is several such, one after another.

// Number of the element (row, k), k a multiple of 8, in a tile of so many rows.
LM_INLINE int32_t lm_swizzled(int32_t rows, int32_t row, int32_t k) {
  return (k / 64 * rows + row) * 64 + ((k % 64 / 8) ^ (row % 8)) * 8;
}

// A descriptor's lower half, of a matrix that begins at a place in shared memory: `leading` bytes from one 64 to the next where the
// lines are k. Then the whole, `offset` bytes further; lines 8 apart are 1024 bytes apart.
LM_INLINE uint32_t lm_matrix_low(uint32_t at, uint32_t leading) { return at >> 4 | leading >> 4 << 16; }
LM_INLINE uint64_t lm_matrix(uint32_t low, uint32_t offset) { return (uint64_t)(1024 >> 4 | 1 << 30) << 32 | (low + (offset >> 4)); }

// A tile of ROWS places from `place` on, in boxes of 64 by 64.
#define LM_GROUP_FETCH(tile, ROWS, WIDTH, map, inner, place, outer, b, i)                         \
  LM_UNROLL for (int32_t k_ = 0; k_ < (WIDTH); k_ += 64)                                          \
    LM_UNROLL for (int32_t r_ = 0; r_ < (ROWS); r_ += 64)                                         \
      lm_box_copy(tile, (k_ / 64 * (ROWS) + r_) * 64, &(map), k_, (int32_t)(inner), (int32_t)(place) + r_, (int32_t)(outer), b, i);

// s = 64 rows of a from `row` on times the N rows of b, where a has A_ROWS rows and both are WIDTH wide; under way until waited for.
#define LM_GROUP_PRODUCT(s, N, a, row, A_ROWS, b, WIDTH)                                          \
  {                                                                                               \
    const uint32_t x_ = lm_matrix_low(lm_shared_address(a) + (row) * 128, 16), y_ = lm_matrix_low(lm_shared_address(b), 16); \
    lm_wgmma_fence();                                                                             \
    LM_UNROLL for (int32_t k = 0; k < (WIDTH); k += 16)                                           \
      lm_wgmma_##N##_shared(s, lm_matrix(x_, k / 64 * (A_ROWS) * 128 + k % 64 * 2),               \
                            lm_matrix(y_, k / 64 * (N) * 128 + k % 64 * 2), k > 0);               \
    lm_wgmma_commit();                                                                            \
  }

// a = z, K columns, as wgmma takes its first operand from registers.
#define LM_GROUP_PACK(a, z, K)                                                                    \
  LM_UNROLL for (int32_t n = 0; n < (K) / 16; n++) {                                              \
    a[n][0] = lm_bf16_pair(z[2 * n][0], z[2 * n][1]);                                             \
    a[n][1] = lm_bf16_pair(z[2 * n][2], z[2 * n][3]);                                             \
    a[n][2] = lm_bf16_pair(z[2 * n + 1][0], z[2 * n + 1][1]);                                     \
    a[n][3] = lm_bf16_pair(z[2 * n + 1][2], z[2 * n + 1][3]);                                     \
  }

// o += a times the K rows of v, WIDTH wide; under way until waited for.
#define LM_GROUP_WEIGHTED(o, WIDTH, a, K, v)                                                      \
  {                                                                                               \
    const uint32_t v_ = lm_matrix_low(lm_shared_address(v), (K) * 128);                           \
    lm_wgmma_settle(o, (WIDTH) / 8);                                                              \
    lm_wgmma_fence();                                                                             \
    LM_UNROLL for (int32_t n = 0; n < (K) / 16; n++) lm_wgmma_##WIDTH##_turned(o, a[n], lm_matrix(v_, n * 2048)); \
    lm_wgmma_commit();                                                                            \
  }
