// tile_panel.h - products of large matrices. A slab of both operands, so many places of k, is
// copied into panels that lie as they are read: [line / width][k][width], zeros behind the last
// line. A tile of C is then summed in registers from a panel of A, LM_TILE_M rows, and a panel of
// B, LM_TILE_N columns; the latter stays in the first cache, the panels of A beside it in the
// second. Each element of C is a sum over k in order, slab by slab: however C is cut, its bits are
// the same.
#if defined(__AVX512F__)
enum {
  LM_TILE_M = 14,
  LM_SLAB = 192
};
#elif defined(__AVX__)
enum {
  LM_TILE_M = 6,
  LM_SLAB = 256
};
#else
enum {
  LM_TILE_M = 4,
  LM_SLAB = 256
};
#endif
enum {
  LM_TILE_N = 2 * LM_LANES,
  LM_PANEL_F32 = LM_TILE_N, // columns of a panel of B
  LM_ROWS_F32 = 168,        // of A in panels at a time: a multiple of every LM_TILE_M
  LM_PANELS_F32 = LM_ROWS_F32 * LM_SLAB + 16 // floats that they take
};
typedef uint16_t lm_quad_half __attribute__((vector_size(8), aligned(2), may_alias));

// Slabs that k places are cut into are as even as multiples of four allow.
static inline __attribute__((always_inline)) int64_t lm_slab_f32(int64_t k) {
  int64_t slabs = (k + LM_SLAB - 1) / LM_SLAB;
  return ((k + slabs - 1) / slabs + 3) / 4 * 4;
}

static inline float lm_panel_f32(const float *p) {
  return *p;
}
static inline float lm_panel_bf16(const uint16_t *p) {
  return lm_bf16_load(*p);
}
static inline lm_quad lm_quad_f32(const float *p) {
  return *(const lm_quad *)p;
}
static inline lm_quad lm_quad_bf16(const uint16_t *p) {
  return (lm_quad)(__builtin_convertvector(*(const lm_quad_half *)p, lm_quad_int) << 16);
}

// `width` lines, a constant, at one place of k: as vectors from the start, which costs the compiler
// a fourth of finding them.
static inline __attribute__((always_inline)) void lm_place_f32(int width, const float *from,
                                                               float *to) {
  __builtin_memcpy(to, from, (uint64_t)width * sizeof *to);
}
static inline __attribute__((always_inline)) void lm_place_bf16(int width, const uint16_t *from,
                                                                float *to) {
  LM_UNROLL(8)
  for (int i = 0; i + 4 <= width; i += 4)
    *(lm_quad *)(to + i) = lm_quad_bf16(from + i);
  LM_UNROLL(4)
  for (int i = width / 4 * 4; i < width; i++)
    to[i] = lm_bf16_load(from[i]);
}

// Panels of `width` lines, a constant, from elements of type T: `from` is the slab's first, n its
// places of k.
//   lm_lines_T: lines lie side by side, places of k `stride` apart; four panels at a time, so that
//   whole cache lines are read lm_turned_T: places of k lie side by side, lines `stride` apart.
//   Four of either are turned at a time, the last lines first: what they write beyond their panel's
//   width is overwritten; up to two floats behind the last panel are not
#define LM_PANELS(T, TYPE)                                                                         \
  static inline __attribute__((always_inline)) void lm_some_lines_##T(                             \
      int width, int some, const TYPE *from, int64_t stride, int64_t n, float *to) {               \
    for (int64_t k = 0; k < n; k++)                                                                \
      LM_UNROLL(4)                                                                                 \
    for (int p = 0; p < some; p++)                                                                 \
      lm_place_##T(width, from + k * stride + p * width, to + (p * n + k) * width);                \
  }                                                                                                \
  static __attribute__((noinline)) void lm_rest_##T(int width, const TYPE *from, int64_t line,     \
                                                    int64_t stride, int64_t n, int64_t lines,      \
                                                    float *to) {                                   \
    for (int64_t k = 0; k < n; k++)                                                                \
      for (int i = 0; i < width; i++)                                                              \
        to[k * width + i] = i < lines ? lm_panel_##T(from + i * line + k * stride) : 0;            \
  }                                                                                                \
  static inline __attribute__((always_inline)) void lm_lines_##T(                                  \
      int width, const TYPE *from, int64_t stride, int64_t n, int64_t lines, float *to) {          \
    int64_t i = 0;                                                                                 \
    for (; i + 4 * width <= lines; i += 4 * width)                                                 \
      lm_some_lines_##T(width, 4, from + i, stride, n, to + i * n);                                \
    for (; i + width <= lines; i += width)                                                         \
      lm_some_lines_##T(width, 1, from + i, stride, n, to + i * n);                                \
    if (i < lines)                                                                                 \
      lm_rest_##T(width, from + i, 1, stride, n, lines - i, to + i * n);                           \
  }                                                                                                \
  static inline __attribute__((always_inline)) void lm_turned_##T(                                 \
      int width, const TYPE *from, int64_t stride, int64_t n, int64_t lines, float *to) {          \
    int64_t l = 0;                                                                                 \
    for (; l + width <= lines; l += width, from += width * stride, to += width * n) {              \
      int64_t k = 0;                                                                               \
      for (; k + 4 <= n; k += 4)                                                                   \
        LM_UNROLL(8) for (int i = (width - 1) / 4 * 4; i >= 0; i -= 4) {                           \
          lm_quad x[4];                                                                            \
          LM_UNROLL(4)                                                                             \
          for (int j = 0; j < 4; j++)                                                              \
            x[j] = i + j < width ? lm_quad_##T(from + (i + j) * stride + k) : (lm_quad){0};        \
          lm_quad_transpose(x);                                                                    \
          LM_UNROLL(4) for (int j = 0; j < 4; j++) * (lm_quad *)(to + (k + j) * width + i) = x[j]; \
        }                                                                                          \
      for (; k < n; k++)                                                                           \
        for (int i = 0; i < width; i++)                                                            \
          to[k * width + i] = lm_panel_##T(from + i * stride + k);                                 \
    }                                                                                              \
    if (l < lines)                                                                                 \
      lm_rest_##T(width, from, stride, 1, n, lines - l, to);                                       \
  }                                                                                                \
  static __attribute__((noinline)) void lm_a_lines_##T(const TYPE *from, int64_t stride,           \
                                                       int64_t n, int64_t lines, float *to) {      \
    lm_lines_##T(LM_TILE_M, from, stride, n, lines, to);                                           \
  }                                                                                                \
  static __attribute__((noinline)) void lm_a_turned_##T(const TYPE *from, int64_t stride,          \
                                                        int64_t n, int64_t lines, float *to) {     \
    lm_turned_##T(LM_TILE_M, from, stride, n, lines, to);                                          \
  }                                                                                                \
  static __attribute__((noinline)) void lm_b_lines_##T(const TYPE *from, int64_t stride,           \
                                                       int64_t n, int64_t lines, float *to) {      \
    lm_lines_##T(LM_TILE_N, from, stride, n, lines, to);                                           \
  }                                                                                                \
  static __attribute__((noinline)) void lm_b_turned_##T(const TYPE *from, int64_t stride,          \
                                                        int64_t n, int64_t lines, float *to) {     \
    lm_turned_##T(LM_TILE_N, from, stride, n, lines, to);                                          \
  }
LM_PANELS(f32, float)

// c (+)= a b, of a panel each. Its rows are fetched meanwhile.
static __attribute__((noinline)) void lm_tile_sum(int64_t n, const float *a, const float *b,
                                                  float *c, int64_t row, int add) {
  lm_lanes sum[LM_TILE_M][2];
  LM_UNROLL(16)
  for (int i = 0; i < LM_TILE_M; i++) {
    __builtin_prefetch(c + i * row, 1);
    sum[i][0] = sum[i][1] = (lm_lanes){0};
  }
  for (int64_t k = 0; k < n; k++, a += LM_TILE_M, b += LM_TILE_N) {
    lm_lanes x = *(const lm_lanes *)b;
    lm_lanes y = *(const lm_lanes *)(b + LM_LANES);
    LM_UNROLL(16)
    for (int i = 0; i < LM_TILE_M; i++) {
      sum[i][0] += a[i] * x;
      sum[i][1] += a[i] * y;
    }
  }
  LM_UNROLL(16)
  for (int i = 0; i < LM_TILE_M; i++) {
    lm_lanes *to = (lm_lanes *)(c + i * row), keep = {0}, keep_more = {0};
    if (add) {
      keep = to[0];
      keep_more = to[1];
    }
    to[0] = keep + sum[i][0];
    to[1] = keep_more + sum[i][1];
  }
}

// The same for the first rows and columns of a tile that reaches beyond C.
static __attribute__((noinline)) void lm_tile_part(int64_t n, int64_t rows, int64_t columns,
                                                   const float *a, const float *b, float *c,
                                                   int64_t row, int add) {
  float t[LM_TILE_M][LM_TILE_N] __attribute__((aligned(64)));
  lm_tile_sum(n, a, b, &t[0][0], LM_TILE_N, 0);
  for (int64_t i = 0; i < rows && i < LM_TILE_M; i++)
    for (int64_t j = 0; j < columns && j < LM_TILE_N; j++)
      c[i * row + j] = add ? c[i * row + j] + t[i][j] : t[i][j];
}

// Sums of panels of a, which a slab of n places fills, and of b, in which a column has `line`
// places; in f32.
static __attribute__((noinline)) void lm_tiles_f32(int64_t n, int64_t rows, int64_t columns,
                                                   const float *a, const float *b, int64_t line,
                                                   const lm_sums *sums) {
  const int64_t row = sums->row;
  for (int64_t j = 0; j < columns; j += LM_TILE_N)
    for (int64_t i = 0; i < rows; i += LM_TILE_M) {
      const float *x = a + i * n;
      const float *y = b + j * line;
      float *z = sums->c + i * row + j;
      if (i + LM_TILE_M > rows || j + LM_TILE_N > columns)
        lm_tile_part(n, rows - i, columns - j, x, y, z, row, sums->add);
      else
        lm_tile_sum(n, x, y, z, row, sums->add);
    }
}

// The same with sums that end here: each tile is rounded while it lies in the first cache.
static __attribute__((noinline)) void lm_tiles_last(int64_t n, int64_t rows, int64_t columns,
                                                    const float *a, const float *b, int64_t line,
                                                    const lm_sums *sums) {
  float t[LM_TILE_M][LM_TILE_N] __attribute__((aligned(64)));
  for (int64_t j = 0; j < columns; j += LM_TILE_N)
    for (int64_t i = 0; i < rows; i += LM_TILE_M) {
      int64_t down = lm_min64(LM_TILE_M, rows - i);
      int64_t across = lm_min64(LM_TILE_N, columns - j);
      lm_sums z = lm_sums_at(sums, i, j);
      if (!z.add) {
        z.c = &t[0][0];
        z.row = LM_TILE_N;
      }
      if (down < LM_TILE_M || across < LM_TILE_N)
        lm_tile_part(n, down, across, a + i * n, b + j * line, z.c, z.row, z.add);
      else
        lm_tile_sum(n, a + i * n, b + j * line, z.c, z.row, z.add);
      lm_sums_round(&z, down, across);
    }
}

// The same for rows of A, `from` one to the next: what lies in rows is copied into the panels `a`.
#define LM_ROWS_MULTIPLY(T, TYPE)                                                                  \
  static __attribute__((noinline)) void lm_rows_##T(                                               \
      int64_t n, int64_t rows, int64_t columns, const TYPE *from, int64_t stride, float *a,        \
      const float *b, int64_t line, const lm_sums *sums) {                                         \
    lm_a_turned_##T(from, stride, n, rows, a);                                                     \
    lm_tiles_##T(n, rows, columns, a, b, line, sums);                                              \
  }
LM_ROWS_MULTIPLY(f32, float)

// bf16 is widened on its way into panels, unless there is better (tile_amx.h).
#ifndef LM_AMX
LM_PANELS(bf16, uint16_t)
enum {
  LM_ROWS_BF16 = LM_ROWS_F32,
  LM_PANELS_BF16 = LM_PANELS_F32,
  LM_PANEL_BF16 = 0
}; // 0: none that lie in memory
#define lm_slab_bf16 lm_slab_f32
static inline void lm_tiles_bf16(int64_t n, int64_t rows, int64_t columns, const float *a,
                                 const float *b, int64_t line, const lm_sums *sums) {
  if (sums->half)
    lm_tiles_last(n, rows, columns, a, b, line, sums);
  else
    lm_tiles_f32(n, rows, columns, a, b, line, sums);
}
LM_ROWS_MULTIPLY(bf16, uint16_t)
#endif

// What buf and var hold is in runtime/plan/plan.h. Slab by slab: B into panels, then some rows of A
// at a time.
#define LM_PRODUCT(T, UPPER, TYPE)                                                                 \
  static __attribute__((noinline)) void lm_product_##T(char *const *buf, const int64_t *var,       \
                                                       int64_t lo, int64_t hi) {                   \
    const TYPE *a = (const TYPE *)buf[0], *b = (const TYPE *)buf[1];                               \
    float *c = (float *)buf[2], *pa = (float *)buf[3], *pb = pa + LM_PANELS_##UPPER;               \
    const int64_t columns = var[0], row = var[1], half = var[3], places = var[4], a_row = var[5],  \
                  a_k = var[6], b_column = var[7], b_k = var[8];                                   \
    const int64_t panels = var[9], slab = lm_slab_##T(places);                                     \
    for (int64_t k = 0; k < places; k += slab) {                                                   \
      const int64_t n = lm_min64(slab, places - k), line = panels ? places : n;                    \
      const float *y = panels ? (const float *)(b + k * LM_PANEL_##UPPER) : pb;                    \
      if (!panels && b_k == 1)                                                                     \
        lm_b_turned_##T(b + k, b_column, n, columns, pb);                                          \
      else if (!panels)                                                                            \
        lm_b_lines_##T(b + k * b_k, b_k, n, columns, pb);                                          \
      for (int64_t i = lo; i < hi; i += LM_ROWS_##UPPER) {                                         \
        const int64_t rows = lm_min64(LM_ROWS_##UPPER, hi - i);                                    \
        const TYPE *x = a + i * a_row + k * a_k;                                                   \
        const lm_sums sums = {c + i * row, row, var[2] || k > 0,                                   \
                              half && k + n == places ? (uint16_t *)buf[4] + i * half : 0, half};  \
        if (a_k == 1) {                                                                            \
          lm_rows_##T(n, rows, columns, x, a_row, pa, y, line, &sums);                             \
        } else {                                                                                   \
          lm_a_lines_##T(x, a_k, n, rows, pa);                                                     \
          lm_tiles_##T(n, rows, columns, pa, y, line, &sums);                                      \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
  }
LM_PRODUCT(f32, F32, float)
LM_PRODUCT(bf16, BF16, uint16_t)
