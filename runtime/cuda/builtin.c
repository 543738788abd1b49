// builtin.c - see builtin.h.
#include "runtime/cuda/builtin.h"

#include <string.h>

#include "runtime/cuda/draw.h"

enum {
  THREADS = 256,
  DRAW_THREADS = 1024,
  PICK_THREADS = 512,
  MAX_BLOCKS = 4096,
  MAX_ELEMENTS = 1 << 30 // of a launch, since kernels count in 32 bits
};

struct lm_embedded {
  const char *path, *text;
};
extern const struct lm_embedded lm_cuda_builtin_source[];

const char *const lm_cuda_builtin_names[LM_CUDA_BUILTIN_KERNELS] = {
    "lm_fill_8",        "lm_move_1",         "lm_move_2",         "lm_move_4",
    "lm_move_8",        "lm_add_f32",        "lm_gemm_f32",       "lm_gemm_f64",
    "lm_gemm_bf16",     "lm_gemm_bf16_f32",  "lm_gemm_f16",       "lm_gemm_f16_f32",
    "lm_round_bf16",    "lm_round_f16",      "lm_tally",          "lm_judge",
    "lm_finish_f32",    "lm_finish_bf16",    "lm_finish_f16",     "lm_ranks_sum_f32",
    "lm_ranks_max_f32", "lm_ranks_sum_bf16", "lm_ranks_max_bf16", "lm_ranks_sum_f16",
    "lm_ranks_max_f16", "lm_ranks_sum_f64",  "lm_ranks_max_f64",  "lm_ranks_sum_int",
    "lm_ranks_max_int", "lm_rule",           "lm_mark",           "lm_draw_greatest",
    "lm_draw_sort",     "lm_draw_pick"};

const char *lm_cuda_builtin_text(lm_arena *a) {
  const struct lm_embedded *files = lm_cuda_builtin_source;
  lm_buf text = {0};
  for (int i = 0; files[i].path; i++)
    lm_buf_puts(&text, files[i].text);
  const char *all = lm_arena_strndup(a, text.p, text.n);
  lm_buf_free(&text);
  return all;
}

void lm_cuda_builtins_set(lm_cuda_builtins *b, void *const *f) {
  b->fill_8 = f[0];
  memcpy(b->move, f + 1, sizeof b->move);
  b->add = f[5];
  b->small_gemm[LM_F32][LM_F32] = f[6];
  b->small_gemm[LM_F64][LM_F64] = f[7];
  b->small_gemm[LM_BF16][LM_BF16] = f[8];
  b->small_gemm[LM_BF16][LM_F32] = f[9];
  b->small_gemm[LM_F16][LM_F16] = f[10];
  b->small_gemm[LM_F16][LM_F32] = f[11];
  b->round[LM_BF16] = f[12];
  b->round[LM_F16] = f[13];
  b->tally = f[14];
  b->judge = f[15];
  b->finish[LM_F32] = f[16];
  b->finish[LM_BF16] = f[17];
  b->finish[LM_F16] = f[18];
  static const lm_dtype ordered[] = {LM_F32, LM_BF16, LM_F16, LM_F64, LM_INT};
  for (size_t i = 0; i < LM_COUNT(ordered); i++)
    memcpy(b->ordered[ordered[i]], f + 19 + 2 * i, sizeof b->ordered[0]);
  b->rule = f[29];
  b->mark = f[30];
  memcpy(b->draw, f + 31, sizeof b->draw);
}

static lm_status blocks_launch(const lm_cuda_builtins *b, void *function, unsigned blocks,
                               unsigned threads, void **params) {
  lm_cuda_launch l = {
      .blocks = blocks,
      .threads = threads,
  };
  return lm_cuda_kernel_launch(b->driver, b->stream, function, &l, params);
}

static lm_status launch(const lm_cuda_builtins *b, void *function, int64_t n, void **params) {
  int64_t blocks = (n + THREADS - 1) / THREADS;
  if (blocks > MAX_BLOCKS)
    blocks = MAX_BLOCKS;
  return blocks ? blocks_launch(b, function, (unsigned)blocks, THREADS, params) : NULL;
}

// ---- fills

// True if the 8 bytes of the pattern repeat every `bytes`.
static bool repeats(uint64_t pattern, int bytes) {
  uint64_t part = bytes == 8 ? pattern : pattern & ((1ull << 8 * bytes) - 1), all = 0;
  for (int i = 0; i < 8; i += bytes)
    all |= part << 8 * i;
  return all == pattern;
}

lm_status lm_cuda_fill(const lm_cuda_builtins *b, lm_cuda_address to, const lm_plan_step *s) {
  const lm_cuda_driver *d = b->driver;
  uint64_t pattern = 0;
  size_t bytes = (size_t)s->bytes;
  for (int i = 0; i < 8; i += s->element)
    memcpy((char *)&pattern + i, &s->pattern, (size_t)s->element);
  if (!bytes)
    return NULL;
  if (repeats(pattern, 1))
    return lm_cuda_check(d, d->cuMemsetD8Async(to, (unsigned char)pattern, bytes, b->stream),
                         "fill");
  if (repeats(pattern, 2))
    return lm_cuda_check(d, d->cuMemsetD16Async(to, (unsigned short)pattern, bytes / 2, b->stream),
                         "fill");
  if (repeats(pattern, 4))
    return lm_cuda_check(d, d->cuMemsetD32Async(to, (unsigned)pattern, bytes / 4, b->stream),
                         "fill");
  int64_t n = s->bytes / 8;
  return launch(b, b->fill_8, n, (void *[]){&to, &pattern, &n});
}

// ---- moves

typedef struct dim {
  int64_t size, from, to;
} dim;
// A loop nest over the dims of a move; strides in bytes.
typedef struct nest {
  dim d[12];
  int rank, element;
  int64_t n;
} nest;
typedef struct move_args {
  int64_t size[12], from[12], to[12], at_to, at_more, at_limit, n;
  int32_t rank, step;
} move_args;

// Drops dims of size 1 and merges adjacent dims whose strides permit it.
static nest nest_make(const lm_plan_move *m, const int64_t *var) {
  nest x = {
      .element = m->element,
      .n = 1,
  };
  for (int i = 0; i < m->rank; i++) {
    dim d = {lm_plan_extent_value(&m->dim[i].size, var), m->dim[i].from, m->dim[i].to};
    x.n *= d.size;
    if (d.size == 1)
      continue;
    dim *last = x.rank ? &x.d[x.rank - 1] : NULL;
    if (last && last->from == d.size * d.from && last->to == d.size * d.to)
      *last = (dim){last->size * d.size, d.from, d.to};
    else
      x.d[x.rank++] = d;
  }
  return x;
}

// True if all addresses and strides, but the innermost stride, are multiples of `bytes`.
static bool even(const nest *x, uint64_t all, int bytes) {
  for (int i = 0; i < x->rank - 1; i++)
    all |= (uint64_t)(x->d[i].from | x->d[i].to);
  return all % (uint64_t)bytes == 0;
}

// If the rows are contiguous, moves them in the widest elements (up to 8 bytes) that alignment
// permits. addresses: bitwise or of both addresses and the position's stride.
static void widen(nest *x, uint64_t addresses) {
  dim *d = x->rank ? &x->d[x->rank - 1] : NULL;
  if (!d || d->from != x->element || d->to != x->element)
    return;
  int wide = 8;
  while (wide > x->element && !even(x, addresses | (uint64_t)(d->size * x->element), wide))
    wide /= 2;
  int64_t times = wide / x->element;
  x->n /= times;
  *d = (dim){d->size / times, wide, wide};
  x->element = wide;
}

static lm_status nest_launch(const lm_cuda_builtins *b, const nest *x, const move_args *head,
                             lm_cuda_address from, lm_cuda_address at, lm_cuda_address to,
                             bool add) {
  move_args a = *head;
  a.n = x->n;
  a.rank = x->rank;
  a.at_to /= x->element;
  for (int i = 0; i < x->rank; i++) {
    a.size[i] = x->d[i].size;
    a.from[i] = x->d[i].from / x->element;
    a.to[i] = x->d[i].to / x->element;
  }
  lm_cuda_address fault = b->fault;
  void *function = add ? b->add
                       : b->move[x->element == 1   ? 0
                                 : x->element == 2 ? 1
                                 : x->element == 4 ? 2
                                                   : 3];
  return launch(b, function, x->n, (void *[]){&from, &to, &at, &fault, &a});
}

// Splits a move that exceeds MAX_ELEMENTS along its outermost dim.
static lm_status nest_run(const lm_cuda_builtins *b, const nest *x, const move_args *head,
                          lm_cuda_address from, lm_cuda_address at, lm_cuda_address to, bool add) {
  if (x->n <= MAX_ELEMENTS)
    return nest_launch(b, x, head, from, at, to, add);
  int64_t row = x->n / x->d[0].size;
  int64_t rows = MAX_ELEMENTS / row;
  if (!rows)
    return lm_fail(LM_ENV, "a move of %lld elements is unsupported", (long long)x->n);
  for (int64_t i = 0; i < x->d[0].size; i += rows) {
    nest part = *x;
    part.d[0].size = x->d[0].size - i < rows ? x->d[0].size - i : rows;
    part.n = row * part.d[0].size;
    LM_TRY(nest_launch(b, &part, head, from + (uint64_t)(i * x->d[0].from), at,
                       to + (uint64_t)(i * x->d[0].to), add));
  }
  return NULL;
}

lm_status lm_cuda_move(const lm_cuda_builtins *b, const lm_plan_move *m, const int64_t *var,
                       lm_cuda_address from, lm_cuda_address at, lm_cuda_address to, bool add,
                       int step) {
  nest x = nest_make(m, var);
  move_args head = {.step = step};
  if (!x.n)
    return NULL;
  if (at) {
    head.at_to = m->dim[m->at_dim].to;
    head.at_more = lm_plan_extent_value(&m->dim[m->at_dim].size, var);
    head.at_limit = m->at_limit;
  }
  if (!add)
    widen(&x, from | to | (uint64_t)head.at_to);
  bool whole = x.rank == 0 || (x.rank == 1 && x.d[0].from == x.element && x.d[0].to == x.element);
  if (whole && !at && !add)
    return lm_cuda_check(
        b->driver, b->driver->cuMemcpyDtoDAsync_v2(to, from, (size_t)(x.n * x.element), b->stream),
        "copy");
  return nest_run(b, &x, &head, from, at, to, add);
}

// ---- GEMMs

lm_status lm_cuda_small_gemm_run(const lm_cuda_builtins *b, const lm_cuda_small_gemm *p, int ab,
                                 int cc, lm_cuda_address x, lm_cuda_address w, lm_cuda_address z) {
  lm_cuda_small_gemm args = *p;
  if (p->m * p->n > UINT32_MAX)
    return lm_fail(LM_ENV, "a GEMM of %lld elements, in strides that cuBLASLt does not support",
                   (long long)(p->m * p->n));
  if (!b->small_gemm[ab][cc])
    return lm_fail(LM_BUG_STATUS, "no GEMM of types %d and %d", ab, cc);
  return launch(b, b->small_gemm[ab][cc], p->m * p->n, (void *[]){&x, &w, &z, &args});
}

lm_status lm_cuda_finish_run(const lm_cuda_builtins *b, const lm_cuda_finish *f, int type,
                             lm_cuda_address y, lm_cuda_address bias, lm_cuda_address before) {
  lm_cuda_finish args = *f;
  if (!b->finish[type])
    return lm_fail(LM_BUG_STATUS, "no epilogue of type %d", type);
  return launch(b, b->finish[type], f->n, (void *[]){&y, &bias, &before, &args});
}

lm_status lm_cuda_round(const lm_cuda_builtins *b, const lm_cuda_rounding *r, lm_dtype type,
                        lm_cuda_address x, lm_cuda_address y) {
  lm_cuda_rounding args = *r;
  if (!b->round[type])
    return lm_fail(LM_BUG_STATUS, "sums are not rounded to %s", lm_dtype_name(type));
  return launch(b, b->round[type], r->m * r->n, (void *[]){&x, &y, &args});
}

// ---- totals of a step

typedef struct tally_args {
  int64_t at[LM_TOTALS_MAX];
  uint8_t type[LM_TOTALS_MAX];
  int32_t n, first;
} tally_args;
_Static_assert(LM_TOTALS_MAX == 136 && (int)LM_TOTALS_MAX <= (int)THREADS,
               "builtin.cu assumes this size, and one block computes all totals");

static uint8_t scalar_type(const lm_plan_port *p) {
  return p->rank ? 0 : p->dtype == LM_F32 ? 1 : p->dtype == LM_F64 ? 2 : p->dtype == LM_INT ? 3 : 0;
}

lm_status lm_cuda_totals_add(const lm_cuda_builtins *b, const lm_plan_func *f, lm_cuda_address io,
                             lm_cuda_address totals, bool first) {
  tally_args a = {
      .n = LM_TOTALS_MAX,
      .first = first,
  };
  for (int i = 0; i < f->n_out; i++) {
    a.at[i] = f->out[i].buf.offset;
    a.type[i] = scalar_type(&f->out[i]);
  }
  return launch(b, b->tally, LM_TOTALS_MAX, (void *[]){&io, &totals, &a});
}

lm_status lm_cuda_rule_send(const lm_cuda_builtins *b, const lm_cuda_rule *r, lm_cuda_address to) {
  lm_cuda_rule rule = *r;
  return launch(b, b->rule, 1, (void *[]){&to, &rule});
}

lm_status lm_cuda_totals_scale(const lm_cuda_builtins *b, const lm_scale_rule *r,
                               lm_cuda_address io, lm_cuda_address totals, lm_cuda_address rule) {
  lm_cuda_address norm = io + (uint64_t)r->norm->buf.offset;
  lm_cuda_address scale = io + (uint64_t)r->scale->buf.offset;
  int32_t sum = r->sum, weight = r->weight;
  return launch(b, b->judge, 1, (void *[]){&totals, &rule, &norm, &scale, &sum, &weight});
}

// ---- sums over ranks

lm_status lm_cuda_ordered_reduce(const lm_cuda_builtins *b, const lm_cuda_ordered_sum *s,
                                 lm_dtype type, bool max, lm_cuda_address own,
                                 lm_cuda_address received, lm_cuda_address to) {
  lm_cuda_ordered_sum args = *s;
  if (!b->ordered[type][max])
    return lm_fail(LM_BUG_STATUS, "no sum over ranks of type %d", type);
  return launch(b, b->ordered[type][max], s->n, (void *[]){&own, &received, &to, &args});
}

lm_status lm_cuda_mark(const lm_cuda_builtins *b, void *at, uint64_t x) {
  return blocks_launch(b, b->mark, 1, 1, (void *[]){&at, &x});
}

// ---- a token from a row of logits

size_t lm_cuda_draw_bytes(int64_t n) {
  return sizeof(lm_draw_work) + (size_t)n * sizeof(int32_t);
}

lm_status lm_cuda_draw(const lm_cuda_builtins *b, lm_dtype type, lm_cuda_address row, int64_t n,
                       const lm_draw_rule *r, lm_cuda_address work) {
  lm_draw_rule rule = *r;
  int32_t elements = (int32_t)n;
  lm_cuda_address ids = work + sizeof(lm_draw_work);
  rule.of_16_bits = type == LM_BF16;
  if ((type != LM_BF16 && type != LM_F32) || n > LM_DRAW_MAX)
    return lm_fail(LM_BUG_STATUS, "no token of %lld logits of type %d", (long long)n, type);
  unsigned slices = (unsigned)lm_draw_slices(elements);
  LM_TRY(blocks_launch(b, b->draw[0], slices, DRAW_THREADS,
                       (void *[]){&row, &work, &elements, &rule}));
  if (rule.scale > 0)
    LM_TRY(blocks_launch(b, b->draw[1], slices, DRAW_THREADS,
                         (void *[]){&row, &work, &ids, &elements, &rule}));
  return blocks_launch(b, b->draw[2], 1, PICK_THREADS,
                       (void *[]){&row, &work, &ids, &elements, &rule});
}
