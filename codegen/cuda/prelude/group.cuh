// group.cuh - tiles of bf16 in the layout that wgmma reads: rows of 64 elements, 128 bytes, in
// patterns of 8 rows that begin at multiples of 1024 bytes; chunk c of 16 bytes of row r is stored
// at c ^ r % 8. A tile of wider rows is several of these, one after another.

// The index of element (row, k), k a multiple of 8, in a tile of `rows` rows.
LM_INLINE int32_t lm_swizzled(int32_t rows, int32_t row, int32_t k) {
  return (k / 64 * rows + row) * 64 + ((k % 64 / 8) ^ (row % 8)) * 8;
}

// The lower half of the descriptor of a matrix at an address in shared memory; `leading` is the
// number of bytes from one group of 64 to the next if the rows are k. Then the whole descriptor,
// `offset` bytes further; rows 8 apart are 1024 bytes apart. Where the other operand is in
// registers, an offset is added to all 64 bits: of two halves the assembler copies both.
LM_INLINE uint32_t lm_descriptor_low(uint32_t at, uint32_t leading) {
  return at >> 4 | leading >> 4 << 16;
}
LM_INLINE uint64_t lm_descriptor(uint32_t low, uint32_t offset) {
  return (uint64_t)(1024 >> 4 | 1 << 30) << 32 | (low + (offset >> 4));
}

// Copies a tile of ROWS positions from `position` on, in boxes of 64 by 64.
#define LM_GROUP_FETCH(tile, ROWS, WIDTH, map, inner, position, batch, b, i)                       \
  LM_UNROLL for (int32_t k_ = 0; k_ < (WIDTH); k_ += 64)                                           \
      LM_UNROLL for (int32_t r_ = 0; r_ < (ROWS); r_ += 64)                                        \
          lm_box_copy(tile, (k_ / 64 * (ROWS) + r_) * 64, &(map), k_, (int32_t)(inner),            \
                      (int32_t)(position) + r_, (int32_t)(batch), b, i);

// s = 64 rows of a from `row` on times the N rows of b; a has A_ROWS rows, both are WIDTH wide. In
// flight until waited for.
#define LM_GROUP_DOT(s, N, a, row, A_ROWS, b, WIDTH)                                               \
  {                                                                                                \
    const uint32_t x_ = lm_descriptor_low(lm_shared_address(a) + (row)*128, 16),                   \
                   y_ = lm_descriptor_low(lm_shared_address(b), 16);                               \
    lm_wgmma_fence();                                                                              \
    LM_UNROLL for (int32_t k = 0; k < (WIDTH); k += 16)                                            \
        lm_wgmma_##N##_shared(s, lm_descriptor(x_, k / 64 * (A_ROWS)*128 + k % 64 * 2),            \
                              lm_descriptor(y_, k / 64 * (N)*128 + k % 64 * 2), k > 0);            \
    lm_wgmma_commit();                                                                             \
  }

// f = the warp's 16 rows of a, which has A_ROWS rows, WIDTH wide: the first operand of wgmma in
// registers.
#define LM_GROUP_HOLD(f, a, A_ROWS, WIDTH)                                                         \
  LM_UNROLL for (int32_t k = 0; k < (WIDTH); k += 16)                                              \
      lm_matrices_load(f[k / 16], a,                                                               \
                       lm_swizzled(A_ROWS, lm_thread() / 32 * 16 + lm_thread() % 16,               \
                                   k + lm_thread() % 32 / 16 * 8));

// s = f times the N rows of b, WIDTH wide. In flight until waited for.
#define LM_GROUP_DOT_HELD(s, N, f, b, WIDTH)                                                       \
  {                                                                                                \
    const uint64_t y_ = lm_descriptor(lm_descriptor_low(lm_shared_address(b), 16), 0);             \
    lm_wgmma_fence();                                                                              \
    LM_UNROLL for (int32_t k = 0; k < (WIDTH); k += 16)                                            \
        lm_wgmma_##N##_held(s, f[k / 16], y_ + (k / 64 * (N)*128 + k % 64 * 2) / 16, k > 0);       \
    lm_wgmma_commit();                                                                             \
  }

// a = z, K columns, packed as the first operand of wgmma in registers.
#define LM_GROUP_PACK(a, z, K)                                                                     \
  LM_UNROLL for (int32_t n = 0; n < (K) / 16; n++) {                                               \
    a[n][0] = lm_bf16_pair(z[2 * n][0], z[2 * n][1]);                                              \
    a[n][1] = lm_bf16_pair(z[2 * n][2], z[2 * n][3]);                                              \
    a[n][2] = lm_bf16_pair(z[2 * n + 1][0], z[2 * n + 1][1]);                                      \
    a[n][3] = lm_bf16_pair(z[2 * n + 1][2], z[2 * n + 1][3]);                                      \
  }

// o += a times the K rows of v, WIDTH wide. In flight until waited for.
#define LM_GROUP_WEIGHTED(o, WIDTH, a, K, v)                                                       \
  {                                                                                                \
    const uint64_t v_ = lm_descriptor(lm_descriptor_low(lm_shared_address(v), (K)*128), 0);        \
    lm_wgmma_settle(o, (WIDTH) / 8);                                                               \
    lm_wgmma_fence();                                                                              \
    LM_UNROLL for (int32_t n = 0; n < (K) / 16; n++)                                               \
        lm_wgmma_##WIDTH##_held_transposed(o, a[n], v_ + n * 2048 / 16, 1);                        \
    lm_wgmma_commit();                                                                             \
  }

// s = a b or, if `adds`, s += a b over 64 k: 64 rows of a, N columns of b. Tiles whose rows are k
// are 64 rows of 64 columns, then 64 rows of the next 64 columns. FORM: `shared` if the rows of
// both tiles are along k, `shared_transposed` if those of b are k, `both_transposed` if those of
// both are. A_PITCH, PITCH: bytes for 16 k of a and of b. In flight until waited for.
#define LM_GROUP_STEP(s, N, FORM, A_PITCH, PITCH, a, b, adds)                                      \
  {                                                                                                \
    const uint32_t x_ = lm_descriptor_low(lm_shared_address(a), 16),                               \
                   y_ = lm_descriptor_low(lm_shared_address(b), 64 * 128);                         \
    lm_wgmma_fence();                                                                              \
    LM_UNROLL for (int32_t k_ = 0; k_ < 64; k_ += 16)                                              \
        lm_wgmma_##N##_##FORM(s, lm_descriptor(x_, k_ / 16 * (A_PITCH)),                           \
                              lm_descriptor(y_, k_ / 16 * (PITCH)), k_ > 0 || (adds));             \
    lm_wgmma_commit();                                                                             \
  }

// Overwrites with zeros, by the lanes of a warp, the rows from `row` on of n tiles of 64 rows of 64
// elements, one after another from tile[at] on. The swizzle moves elements within their row.
LM_INLINE void lm_group_cut(uint16_t *tile, int32_t at, int32_t n, int32_t row, int32_t lane) {
  const lm_w4 zeros = {{0}};
  for (int32_t t = 0; t < n; t++)
    for (int32_t i = row * 8 + lane; i < 64 * 8; i += 32)
      lm_put((lm_w4 *)tile, at / 8 + t * 64 * 8 + i, zeros);
}

// The sums of a thread over its rows, w[n][c] of columns 8 n + 2 (lane % 4) + c, in the line of the
// threads of these rows, WIDTH columns and PAD more apart. Then the sum of column lm_thread() over
// all lines, in order.
#define LM_GROUP_LINES_PUT(lines, w, WIDTH, PAD)                                                   \
  LM_UNROLL for (int32_t n_ = 0; n_ < (WIDTH) / 8; n_++)                                           \
      LM_UNROLL for (int32_t c_ = 0; c_ < 2; c_++)                                                 \
          lm_put(lines, lm_thread() / 4 * ((WIDTH) + (PAD)) + 8 * n_ + lm_thread() % 4 * 2 + c_,   \
                 w[n_][c_]);
LM_INLINE float lm_lines_sum(const float *lines, int32_t n, int32_t apart) {
  float sum = 0.0f;
  LM_UNROLL_8
  for (int32_t i = 0; i < n; i++)
    sum += lm_get(lines, i * apart + lm_thread());
  return sum;
}
