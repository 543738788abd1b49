// tile_attend.h - what attention does with tiles. One of scores is Z[s][t], t innermost, rows of
// `side`; in bf16 it is 32 by 32.
//
// An operand's tile is filled as rows [place][line] of `own` numbers, zeros behind them. Products
// want it in other forms too:
//   turned   right operand, own is summed       S = K Q^T, dP = V dO^T
//   joined   right operand, places are summed   dV = P dO, dK = dS Q
//   flipped  left operand, places are summed    O^T += V^T P, dQ^T += K^T dS
// In f32 turned and flipped are [own][place], joined is the rows. bf16 is widened and does the
// same, or goes through the matrix unit (AMX): there two numbers that are summed one after the
// other lie in 32 bits, and Z is rounded to bf16. Sums are f32.

// Rows of `own` numbers from memory, `stride` apart there, and what is added to them.
static __attribute__((noinline)) void lm_rows_copy(int64_t places, int64_t own, const float *from,
                                                   int64_t stride, float *to, int64_t line) {
  for (int64_t i = 0; i < places; i++)
    __builtin_memcpy(to + i * line, from + i * stride, (uint64_t)own * sizeof *to);
}
static __attribute__((noinline)) void lm_rows_add(int64_t places, int64_t own, const float *from,
                                                  int64_t line, float *to, int64_t stride) {
  for (int64_t i = 0; i < places; i++)
#pragma omp simd
    for (int64_t j = 0; j < own; j++)
      to[i * stride + j] += from[i * line + j];
}

// ---- f32

// to[j][i] = from[i][j] for i < places, j < own; rows of `line` and of `side`.
static __attribute__((noinline)) void lm_form_turned_f32(int64_t places, int64_t own,
                                                         const float *from, int64_t line, float *to,
                                                         int64_t side) {
  for (int64_t i = 0; i < places; i += 4)
    for (int64_t j = 0; j < own; j += 4) {
      lm_quad x[4];
      if (i + 4 > places || j + 4 > own) {
        for (int64_t a = i; a < places && a < i + 4; a++)
          for (int64_t b = j; b < own && b < j + 4; b++)
            to[b * side + a] = from[a * line + b];
        continue;
      }
      LM_UNROLL(4)
      for (int k = 0; k < 4; k++)
        x[k] = *(const lm_quad *)(from + (i + k) * line + j);
      lm_quad_transpose(x);
      LM_UNROLL(4)
      for (int k = 0; k < 4; k++)
        *(lm_quad *)(to + (j + k) * side + i) = x[k];
    }
}
#define lm_form_flipped_f32 lm_form_turned_f32

// z = rows turned, over own, of the first `cols` rows
static inline void lm_dot_f32(int64_t cols, int64_t side, int64_t own, const float *rows,
                              int64_t line, const float *turned, float *z) {
  lm_tile_product(cols, side, own, rows, line, turned, side, z, side, 0);
}
// c[own][t] += flipped z, over the first `cols` places of s; `places` from one own to the next
static inline void lm_sum_s_f32(int64_t cols, int64_t side, int64_t own, const float *flipped,
                                int64_t places, const float *z, float *c) {
  lm_tile_product(own, side, cols, flipped, places, z, side, c, side, 1);
}
// c[s][line] = z joined, over the first `rows` places of t
static inline void lm_sum_t_f32(int64_t cols, int64_t rows, int64_t side, int64_t own,
                                const float *z, const float *joined, int64_t line, float *c) {
  lm_tile_product(cols, (own + LM_LANES - 1) / LM_LANES * LM_LANES, rows, z, side, joined, line, c,
                  line, 0);
}

// ---- bf16, widened

#ifndef LM_AMX
typedef float lm_part;
typedef struct lm_unit {
  char none;
} lm_unit;
#define lm_part_of lm_bf16_load
#define lm_unit_begin(X) ((void)(X))
#define lm_unit_end(X) ((void)(X))
#define lm_form_turned_bf16 lm_form_turned_f32
#define lm_form_flipped_bf16 lm_form_turned_f32
#define lm_dot_bf16(X, ...) lm_dot_f32(__VA_ARGS__)
#define lm_sum_s_bf16(X, ...) lm_sum_s_f32(__VA_ARGS__)
#define lm_sum_t_bf16(X, ...) lm_sum_t_f32(__VA_ARGS__)
static inline void lm_form_joined_bf16(const lm_part *from, int64_t line, lm_part *to) {
  __builtin_memcpy(to, from, (uint64_t)line * 32 * sizeof *to);
}

// ---- bf16 by the matrix unit

#else
typedef uint16_t lm_part;
typedef lm_amx lm_unit;
enum {
  LM_TILE_BYTES = 4 * LM_AMX_SIDE
}; // of a row of Z in f32, and of a pair of rows of bf16

static inline lm_part lm_part_of(uint16_t h) {
  return h;
}
static inline void lm_unit_begin(lm_unit *x) {
  LM_AMX_BEGIN(x);
}
static inline void lm_unit_end(lm_unit *x) {
  LM_AMX_END(x);
}

// Operands have 32 places, zeros behind the last, and lines of whole 32s. to: [pair of own][place]
static __attribute__((noinline)) void lm_form_turned_bf16(int64_t places, int64_t own,
                                                          const lm_part *from, int64_t line,
                                                          lm_part *to, int64_t side) {
  for (int64_t i = 0; i < side; i += 16)
    for (int64_t j = 0; j < line; j += 32) {
      lm_words x[16];
      LM_UNROLL(16)
      for (int k = 0; k < 16; k++)
        x[k] = *(const lm_words *)(from + (i + k) * line + j);
      lm_words_turn(x, (char *)(to + j * side + 2 * i), LM_TILE_BYTES);
    }
}
// to: [pair of places][own]
static __attribute__((noinline)) void lm_form_joined_bf16(const lm_part *from, int64_t line,
                                                          lm_part *to) {
  for (int64_t i = 0; i < LM_AMX_SIDE; i += 2, from += 2 * line, to += 2 * line)
    for (int64_t j = 0; j < line; j += 16)
      *(lm_words *)(to + 2 * j) = lm_words_join(from + j, from + line + j);
}
// to: [own][place]
static __attribute__((noinline)) void lm_form_flipped_bf16(int64_t places, int64_t own,
                                                           const lm_part *from, int64_t line,
                                                           lm_part *to, int64_t side) {
  for (int64_t j = 0; j < line; j += 16) {
    lm_words x[16];
    LM_UNROLL(16)
    for (int k = 0; k < 16; k++)
      x[k] = lm_words_join(from + 2 * k * line + j, from + (2 * k + 1) * line + j);
    lm_words_turn(x, (char *)(to + j * side), LM_TILE_BYTES / 2);
  }
}

// Z in bf16, in turn.
static inline lm_wide_halves lm_halves_mix(lm_wide low, lm_wide high) {
  lm_wide_halves x = lm_halves_round(low, high);
  return LM_SHUFFLE(lm_wide_halves, x, x, LM_ALL(LM_IN_TURN, 0));
}

// to: [s][t], zeros from `rows` on
static inline void lm_z_rows(int64_t rows, const float *z, lm_part *to) {
  for (int64_t n = 0; n < LM_AMX_SIDE; n++, z += LM_AMX_SIDE, to += LM_AMX_SIDE) {
    *(lm_wide_halves *)to = lm_halves_round(*(const lm_wide *)z, *(const lm_wide *)(z + 16));
    for (int64_t m = rows; m < LM_AMX_SIDE; m++)
      to[m] = 0;
  }
}
// to: [pair of s][t], zeros from `cols` on
static inline void lm_z_pairs(int64_t cols, const float *z, lm_part *to) {
  enum {
    PAIR = 2 * LM_AMX_SIDE
  };
  int64_t n = 0;
  for (; n < cols - 1; n += 2, z += PAIR, to += PAIR)
    LM_UNROLL(2)
  for (int m = 0; m < LM_AMX_SIDE; m += 16)
    *(lm_wide_halves *)(to + 2 * m) =
        lm_halves_mix(*(const lm_wide *)(z + m), *(const lm_wide *)(z + LM_AMX_SIDE + m));
  for (; n < LM_AMX_SIDE; n += 2, z += PAIR, to += PAIR)
    for (int m = 0; m < LM_AMX_SIDE; m += 16)
      *(lm_wide_halves *)(to + 2 * m) =
          n < cols ? lm_halves_mix(*(const lm_wide *)(z + m), (lm_wide){0}) : (lm_wide_halves){0};
}

static inline int64_t lm_whole_squares(int64_t own) {
  return (own + LM_AMX_SIDE - 1) / LM_AMX_SIDE;
}

static __attribute__((noinline)) void lm_dot_bf16(lm_unit *x, int64_t cols, int64_t side,
                                                  int64_t own, const lm_part *rows, int64_t line,
                                                  const lm_part *turned, float *z) {
  lm_squares_at a = {rows, 2 * line, 32 * line, 64},
                b = {turned, LM_TILE_BYTES, 64, 16 * LM_TILE_BYTES};
  lm_amx_sum(x, lm_whole_squares(own), a, b, z, side, 0);
}
static __attribute__((noinline)) void lm_sum_s_bf16(lm_unit *x, int64_t cols, int64_t side,
                                                    int64_t own, const lm_part *flipped,
                                                    int64_t places, const float *z, float *c) {
  lm_part half[LM_AMX_SIDE * LM_AMX_SIDE] __attribute__((aligned(64)));
  lm_squares_at b = {half, LM_TILE_BYTES, 64, 0};
  lm_z_pairs(cols, z, half);
  for (int64_t j = 0; j < own; j += LM_AMX_SIDE)
    lm_amx_sum(x, 1, (lm_squares_at){flipped + j * places, 2 * places, 32 * places, 0}, b,
               c + j * side, side, 1);
}
static __attribute__((noinline)) void lm_sum_t_bf16(lm_unit *x, int64_t cols, int64_t rows,
                                                    int64_t side, int64_t own, const float *z,
                                                    const lm_part *joined, int64_t line, float *c) {
  lm_part half[LM_AMX_SIDE * LM_AMX_SIDE] __attribute__((aligned(64)));
  lm_squares_at a = {half, LM_TILE_BYTES / 2, 16 * LM_TILE_BYTES / 2, 0};
  lm_z_rows(rows, z, half);
  for (int64_t j = 0; j < own; j += LM_AMX_SIDE)
    lm_amx_sum(x, 1, a, (lm_squares_at){joined + 2 * j, 4 * line, 64, 0}, c + j, line, 0);
}
#endif

// ---- softmax

typedef int32_t lm_lanes_bits __attribute__((vector_size(LM_LANES * 4), aligned(4), may_alias));

// e^r for |r| <= ln 2 / 2, relative error 1.1e-7: minimax, exact at 0.
#define LM_EXP_SERIES(r)                                                                           \
  (((((0x1.106226p-7f * (r) + 0x1.572a56p-5f) * (r) + 0x1.5557b0p-3f) * (r) + 0x1.fffdfcp-2f) *    \
        (r) +                                                                                      \
    1.0f) *                                                                                        \
       (r) +                                                                                       \
   1.0f)
#define LM_EXP_REST(n, x) ((x) - (n)*0.693359375f - (n) * -2.12194440e-4f)
enum {
  LM_EXP_LEAST = -86
};
#define LM_EXP_ROUND (0x1.8p23f + 127)

// e^x of a number that is not above 80, 2.2 ulp (2.5 where products are rounded before they are
// added); below -86 it is 0. As lm_exp, in two thirds of the operations: x = n ln 2 + r, and
// adding 1.5 * 2^23 + 127 leaves 2^n in the low bits of the sum, but for a shift.
static inline float lm_exp_low(float x) {
  float t = x * 0x1.715476p0f + LM_EXP_ROUND;
  float n = t - LM_EXP_ROUND;
  float r = LM_EXP_REST(n, x);
  return lm_of_bits(lm_bits(LM_EXP_SERIES(r) * lm_of_bits(lm_bits(t) << 23)) &
                    ~-(uint32_t)(x < LM_EXP_LEAST));
}
static inline lm_lanes lm_lanes_exp_low(lm_lanes x) {
  lm_lanes t = x * 0x1.715476p0f + LM_EXP_ROUND;
  lm_lanes n = t - LM_EXP_ROUND;
  lm_lanes r = LM_EXP_REST(n, x);
  return (lm_lanes)((lm_lanes_bits)(LM_EXP_SERIES(r) * (lm_lanes)((lm_lanes_bits)t << 23)) &
                    ~(lm_lanes_bits)(x < (float)LM_EXP_LEAST));
}

static inline lm_lanes lm_lanes_max(lm_lanes a, lm_lanes b) {
#if defined(__AVX__)
  __asm__("vmaxps %1, %2, %0" : "=v"(a) : "v"(a), "v"(b));
  return a;
#else
  lm_lanes_bits more = (lm_lanes_bits)(a > b);
  return (lm_lanes)(((lm_lanes_bits)a & more) | ((lm_lanes_bits)b & ~more));
#endif
}

// A tile of scores, z times a positive number, joins each t's softmax: top, its greatest score, and
// sum, of e^(score - top), are brought up to date; x becomes e^(score - top). Whether what was
// summed before is to be multiplied with `scale`. side: whole vectors. x may be z.
static __attribute__((noinline)) int lm_softmax(int64_t cols, int64_t side, const float *z,
                                                float times, float *x, float *top, float *sum,
                                                float *scale) {
  lm_lanes_bits changed = {0};
  for (int64_t m = 0; m < side; m += LM_LANES) {
    lm_lanes before = *(lm_lanes *)(top + m);
    lm_lanes most = *(const lm_lanes *)(z + m);
    lm_lanes other = most;
    lm_lanes total = {0};
    for (int64_t n = 1; n < cols - 1; n += 2) {
      most = lm_lanes_max(*(const lm_lanes *)(z + n * side + m), most);
      other = lm_lanes_max(*(const lm_lanes *)(z + (n + 1) * side + m), other);
    }
    most = lm_lanes_max(*(const lm_lanes *)(z + (cols - 1) * side + m), most);
    most = lm_lanes_max(lm_lanes_max(other, most) * times, before);
    LM_UNROLL(2)
    for (int64_t n = 0; n < cols; n++) {
      lm_lanes p = lm_lanes_exp_low(*(const lm_lanes *)(z + n * side + m) * times - most);
      total += p;
      *(lm_lanes *)(x + n * side + m) = p;
    }
    lm_lanes change = lm_lanes_exp_low(before - most);
    *(lm_lanes *)(top + m) = most;
    *(lm_lanes *)(scale + m) = change;
    *(lm_lanes *)(sum + m) = *(lm_lanes *)(sum + m) * change + total;
    changed |= change != 1.0f;
  }
  int any = 0;
  for (int i = 0; i < LM_LANES; i++)
    any |= changed[i];
  return any;
}

// o[own][t] *= scale[t]
static __attribute__((noinline)) void lm_rescale(int64_t own, int64_t side, const float *scale,
                                                 float *o) {
  for (int64_t j = 0; j < own; j++)
    for (int64_t m = 0; m < side; m += LM_LANES)
      *(lm_lanes *)(o + j * side + m) *= *(const lm_lanes *)(scale + m);
}
