// builtin.cu - kernels of the runtime: moves and fills of plans, GEMMs in strides that the library
// does not support, totals of a step. The text follows the prelude of the plan's kernels and
// hal/scale.h; the structs are declared in runtime/cuda/builtin.c too.

typedef struct lm_move_args {
  int64_t size[12], from[12], to[12], at_to, at_more, at_limit, n;
  int32_t rank, step;
} lm_move_args;
typedef struct lm_gemm_args {
  int64_t m, n, k, a_m, a_k, b_k, b_n, c_m, c_n;
  int32_t add, spare;
} lm_gemm_args;

LM_KERNEL(256) lm_fill_8(uint64_t *y, uint64_t x, int64_t n) {
  for (int64_t i = lm_block() * 256 + lm_thread(); i < n; i += lm_grid() * 256)
    y[i] = x;
}

// Element i in row-major order of the sizes; strides in elements. at: optional, the position where
// the destination starts.
#define LM_MOVE(NAME, T, ASSIGN)                                                                   \
  LM_KERNEL(256) NAME(const T *x, T *y, const int32_t *at, int32_t *fault, lm_move_args m) {       \
    int64_t start = at ? *at : 0;                                                                  \
    if (at && (start < 0 || start + m.at_more > m.at_limit)) {                                     \
      if (lm_block() == 0 && lm_thread() == 0 && fault[0] == 0) {                                  \
        fault[1] = (int32_t)start;                                                                 \
        fault[0] = m.step;                                                                         \
      }                                                                                            \
      return;                                                                                      \
    }                                                                                              \
    _Pragma("unroll 1") for (int64_t i = lm_block() * 256 + lm_thread(); i < m.n;                  \
                             i += lm_grid() * 256) {                                               \
      uint32_t rest = (uint32_t)i;                                                                 \
      int64_t from = 0, to = start * m.at_to;                                                      \
      _Pragma("unroll 1") for (int32_t d = m.rank - 1; d >= 0; d--) {                              \
        uint32_t size = (uint32_t)m.size[d], j = rest % size;                                      \
        rest /= size;                                                                              \
        from += j * m.from[d];                                                                     \
        to += j * m.to[d];                                                                         \
      }                                                                                            \
      y[to] ASSIGN x[from];                                                                        \
    }                                                                                              \
  }
LM_MOVE(lm_move_1, uint8_t, =)
LM_MOVE(lm_move_2, uint16_t, =)
LM_MOVE(lm_move_4, uint32_t, =)
LM_MOVE(lm_move_8, uint64_t, =)
LM_MOVE(lm_add_f32, float, +=)

// Each thread computes one element of C and sums in order of k.
#define LM_GEMM(NAME, AB, LOAD, C, LOAD_C, STORE, SUM)                                             \
  LM_KERNEL(256) NAME(const AB *a, const AB *b, C *c, lm_gemm_args p) {                            \
    _Pragma("unroll 1") for (int64_t i = lm_block() * 256 + lm_thread(); i < p.m * p.n;            \
                             i += lm_grid() * 256) {                                               \
      int64_t row = (uint32_t)i / (uint32_t)p.n, col = (uint32_t)i % (uint32_t)p.n;                \
      const AB *x = a + row * p.a_m, *y = b + col * p.b_n;                                         \
      C *to = c + row * p.c_m + col * p.c_n;                                                       \
      SUM sum = p.add ? LOAD_C(*to) : 0;                                                           \
      _Pragma("unroll 1") for (int64_t k = 0; k < p.k; k++, x += p.a_k, y += p.b_k) sum +=         \
          LOAD(*x) * LOAD(*y);                                                                     \
      *to = STORE(sum);                                                                            \
    }                                                                                              \
  }
LM_GEMM(lm_gemm_f32, float, , float, , , float)
LM_GEMM(lm_gemm_f64, double, , double, , , double)
LM_GEMM(lm_gemm_bf16, uint16_t, lm_bf16_load, uint16_t, lm_bf16_load, lm_bf16_round, float)
LM_GEMM(lm_gemm_bf16_f32, uint16_t, lm_bf16_load, float, , , float)
LM_GEMM(lm_gemm_f16, uint16_t, lm_f16_load, uint16_t, lm_f16_load, lm_f16_round, float)
LM_GEMM(lm_gemm_f16_f32, uint16_t, lm_f16_load, float, , , float)

// An epilogue that the library did not compute: a bias along rows, storing the input of gelu, gelu.
// Pointers may be NULL.
typedef struct lm_finish_args {
  int64_t n, row;
  int32_t gelu, spare;
} lm_finish_args;
#define LM_FINISH(NAME, T, LOAD, STORE)                                                            \
  LM_KERNEL(256) NAME(T *y, const T *bias, T *before, lm_finish_args f) {                          \
    for (int64_t i = lm_block() * 256 + lm_thread(); i < f.n; i += lm_grid() * 256) {              \
      float x = LOAD(y[i]) + (bias ? LOAD(bias[i % f.row]) : 0);                                   \
      if (before)                                                                                  \
        before[i] = STORE(x);                                                                      \
      y[i] = STORE(f.gelu ? 0.5f * x * (1 + lm_tanh(0.7978845608f * (x + 0.044715f * x * x * x)))  \
                          : x);                                                                    \
    }                                                                                              \
  }
LM_FINISH(lm_finish_f32, float, , )
LM_FINISH(lm_finish_bf16, uint16_t, lm_bf16_load, lm_bf16_round)
LM_FINISH(lm_finish_f16, uint16_t, lm_f16_load, lm_f16_round)

// Rounds complete f32 sums and stores or adds them.
typedef struct lm_rounding {
  int64_t m, n, y_m, y_n;
  int32_t add, spare;
} lm_rounding;
#define LM_ROUND(NAME, LOAD, STORE)                                                                \
  LM_KERNEL(256) NAME(const float *x, uint16_t *y, lm_rounding r) {                                \
    for (int64_t i = lm_block() * 256 + lm_thread(); i < r.m * r.n; i += lm_grid() * 256) {        \
      uint32_t row = (uint32_t)i / (uint32_t)r.n, col = (uint32_t)i % (uint32_t)r.n;               \
      uint16_t *to = y + row * r.y_m + col * r.y_n;                                                \
      *to = STORE(x[i] + (r.add ? LOAD(*to) : 0));                                                 \
    }                                                                                              \
  }
LM_ROUND(lm_round_bf16, lm_bf16_load, lm_bf16_round)
LM_ROUND(lm_round_f16, lm_f16_load, lm_f16_round)

// ---- totals of a step

enum {
  LM_SCALAR_F32 = 1,
  LM_SCALAR_F64 = 2,
  LM_SCALAR_INT = 3
};
typedef struct lm_tally_args {
  int64_t at[136];
  uint8_t type[136];
  int32_t n, first;
} lm_tally_args; // type 0: not a scalar
typedef struct lm_rule_args {
  double loss_scale, clip, limit;
} lm_rule_args;

LM_KERNEL(256) lm_tally(const char *io, double *totals, lm_tally_args a) {
  int32_t i = (int32_t)lm_thread();
  if (lm_block() || i >= a.n)
    return;
  double more = a.type[i] == LM_SCALAR_F32   ? *(const float *)(io + a.at[i])
                : a.type[i] == LM_SCALAR_F64 ? *(const double *)(io + a.at[i])
                : a.type[i] == LM_SCALAR_INT ? *(const int32_t *)(io + a.at[i])
                                             : 0;
  totals[i] = (a.first ? 0 : totals[i]) + more;
}

LM_KERNEL(256) lm_rule(lm_rule_args *to, lm_rule_args rule) {
  if (lm_block() == 0 && lm_thread() == 0)
    *to = rule;
}

LM_KERNEL(256)
lm_judge(const double *totals, const lm_rule_args *r, const float *norm, float *scale, int32_t sum,
         int32_t weight) {
  if (lm_block() == 0 && lm_thread() == 0)
    *scale =
        (float)lm_scale_of(totals[sum], totals[weight], *norm, r->loss_scale, r->clip, r->limit);
}

// ---- sums over ranks

typedef struct lm_ordered_args {
  int64_t n, slice;
  int32_t ranks, me;
} lm_ordered_args;

#define LM_RANK_ADD(a, b) ((a) + (b))
#define LM_RANK_INT_ADD(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define LM_RANK_MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

// Blocks of eight ranks, then the blocks in order (runtime/comm/ordered.c).
#define LM_ORDERED(NAME, T, LOAD, STORE, SUM, OP)                                                  \
  LM_KERNEL(256) NAME(const T *own, const char *received, T *to, lm_ordered_args a) {              \
    for (int64_t i = lm_block() * 256 + lm_thread(); i < a.n; i += lm_grid() * 256) {              \
      SUM total = 0;                                                                               \
      for (int32_t first = 0; first < a.ranks; first += 8) {                                       \
        SUM block = 0;                                                                             \
        for (int32_t r = first; r < a.ranks && r < first + 8; r++) {                               \
          const T *from = r == a.me ? own : (const T *)(received + r * a.slice);                   \
          SUM x = LOAD(from[i]);                                                                   \
          block = r == first ? x : OP(block, x);                                                   \
        }                                                                                          \
        total = first ? OP(total, block) : block;                                                  \
      }                                                                                            \
      to[i] = STORE(total);                                                                        \
    }                                                                                              \
  }
LM_ORDERED(lm_ranks_sum_f32, float, , , float, LM_RANK_ADD)
LM_ORDERED(lm_ranks_max_f32, float, , , float, LM_RANK_MAX)
LM_ORDERED(lm_ranks_sum_bf16, uint16_t, lm_bf16_load, lm_bf16_round, float, LM_RANK_ADD)
LM_ORDERED(lm_ranks_max_bf16, uint16_t, lm_bf16_load, lm_bf16_round, float, LM_RANK_MAX)
LM_ORDERED(lm_ranks_sum_f16, uint16_t, lm_f16_load, lm_f16_round, float, LM_RANK_ADD)
LM_ORDERED(lm_ranks_max_f16, uint16_t, lm_f16_load, lm_f16_round, float, LM_RANK_MAX)
LM_ORDERED(lm_ranks_sum_f64, double, , , double, LM_RANK_ADD)
LM_ORDERED(lm_ranks_max_f64, double, , , double, LM_RANK_MAX)
LM_ORDERED(lm_ranks_sum_int, int32_t, , , int32_t, LM_RANK_INT_ADD)
LM_ORDERED(lm_ranks_max_int, int32_t, , , int32_t, LM_RANK_MAX)

// The host reads it while other kernels run.
LM_KERNEL(1) lm_mark(volatile uint64_t *at, uint64_t x) {
  if (lm_thread() == 0)
    *at = x;
}
