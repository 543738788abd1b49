// few_rows.c - GEMMs of at most eight rows, as in decoding: the time of one is that of reading B.
//
// Two forms, by the axis along which B is contiguous, each with loads of 16 bytes that all rows
// share:
//
//   columns  threads with neighbouring vectors of columns share an element of k; the other threads
//            of a block have other elements of k. Their sums are added by shuffles, then by warps
//            in order
//   k        a part of a warp has COLUMNS columns and its lanes neighbouring vectors of k. Their
//            sums are added by shuffles
//
// If a kernel computes A, each block computes all rows of A into shared memory (prologue.c), while
// its first loads of B are in flight.
//
// An element is summed in an order that its form, n, k and the types decide: it has the same bits
// for any number of rows. f32 operands are never rounded to TF32.
#include "codegen/cuda/emit.h"

enum {
  THREADS = 256,
  WARP = 32,
  WARPS = THREADS / WARP,
  MOST_ROWS = 8,
  MOST_K = 1 << 16,
  VECTOR = 16,     // bytes of a load
  MOST_LANES = 8,  // of the columns that a block computes: 128 bytes of a row
  LEAST_LANES = 2, // a sector of memory
  ENOUGH_BLOCKS = 128,
  COLUMNS = 4,      // of a part of a warp
  FEW = 2,          // rows whose sums leave registers for more loads
  SHARED = 47 << 10 // bytes of the arrays that a kernel declares
};

typedef struct few_rows {
  const lm_plan_gemm *g;
  lm_dtype ab, cc;
  bool by_k;
  int rows, vector; // elements of a load
  int64_t n, k;
  int lanes; // neighbouring vectors: of columns, or of k
  int loads; // of one thread in flight
  int64_t tiles, batches;
  bool wide;              // offsets within an operand need 64 bits
  const cuda_prologue *a; // computes A; NULL: it is in memory
  lm_arena *arena;
  lm_buf *out;
} few_rows;

static int64_t pieces(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

static bool is_multiple(const lm_plan_gemm *g, int64_t all, int vector) {
  for (int i = 0; i < g->n_batch; i++)
    all |= g->batch[i].b;
  return all % vector == 0;
}

bool cuda_few_rows_fits(const lm_plan_gemm *g) {
  bool fixed = !g->m.n_dyn && !g->n.n_dyn && !g->k.n_dyn;
  bool half = lm_dtype_is_half((lm_dtype)g->dtype_ab);
  bool types = (half || g->dtype_ab == LM_F32) &&
               (g->dtype_c == g->dtype_ab || (half && g->dtype_c == LM_F32));
  for (int i = 0; i < g->n_batch; i++)
    fixed = fixed && !g->batch[i].size.n_dyn && !g->batch[i].sum;
  if (!fixed || !types || g->groups.count || g->accumulate || g->m.fixed > MOST_ROWS ||
      g->k.fixed > MOST_K || (g->bias && g->c_n != 1))
    return false;
  int vector = VECTOR / lm_dtype_bytes((lm_dtype)g->dtype_ab);
  return g->b_n == 1   ? is_multiple(g, g->n.fixed | g->b_k, vector)
         : g->b_k == 1 ? is_multiple(g, g->k.fixed | g->b_n, vector)
                       : false;
}

// As many neighbouring lanes as leave a block for each multiprocessor.
static int lanes_of(const few_rows *w) {
  int lanes = MOST_LANES;
  while (lanes > LEAST_LANES && pieces(w->n, lanes * w->vector) * w->batches < ENOUGH_BLOCKS)
    lanes /= 2;
  return lanes;
}

static int lanes_of_k(const few_rows *w) {
  int lanes = 1;
  while (lanes < WARP && lanes * w->vector < w->k)
    lanes *= 2;
  return lanes;
}

// True if an offset within an operand may need more than 30 bits.
static bool is_wide(const lm_plan_gemm *g) {
  int64_t most = (int64_t)1 << 30, m = MOST_ROWS, n = g->n.fixed, k = g->k.fixed;
  return m * g->a_m + k * g->a_k >= most || k * g->b_k + n * g->b_n >= most ||
         m * g->c_m + n * g->c_n >= most;
}

static few_rows few_rows_make(const lm_plan_gemm *g, lm_arena *arena, lm_buf *out) {
  few_rows w = {
      .g = g,
      .ab = (lm_dtype)g->dtype_ab,
      .cc = (lm_dtype)g->dtype_c,
      .by_k = g->b_n != 1,
      .rows = (int)g->m.fixed,
      .n = g->n.fixed,
      .k = g->k.fixed,
      .batches = 1,
      .wide = is_wide(g),
      .arena = arena,
      .out = out,
  };
  bool few = w.rows <= FEW;
  w.vector = VECTOR / lm_dtype_bytes(w.ab);
  for (int i = 0; i < g->n_batch; i++)
    w.batches *= g->batch[i].size.fixed;
  w.lanes = w.by_k ? lanes_of_k(&w) : lanes_of(&w);
  w.loads = w.by_k ? few ? 2 : 1 : few ? 8 : 4;
  w.tiles = pieces(w.n, w.by_k ? THREADS / w.lanes * COLUMNS : w.lanes * w.vector);
  return w;
}

// ---- text

static const char *operand_name(const few_rows *w, uint32_t i) {
  return lm_arena_printf(w->arena, "p%u", i);
}

static void params_add(const few_rows *w, cuda_code *c) {
  for (uint32_t i = 0; w->a && i < w->a->code->n_params; i++)
    cuda_code_param(c, w->a->code->params[i].type, operand_name(w, i));
  if (!w->a)
    cuda_operand_add(c, w->ab, false, "a");
  cuda_operand_add(c, w->ab, false, "b");
  if (w->g->residual)
    cuda_operand_add(c, w->cc, true, "residual");
  if (w->g->bias)
    cuda_operand_add(c, w->cc, false, "bias");
  cuda_result_add(c, w->cc, "c");
  if (w->g->stored)
    cuda_result_add(c, w->cc, "before");
  c->extents = w->a ? w->a->code->extents : 0;
}

// The tile, and the operands at the block's point of the batch axes.
static void put_begin(const few_rows *w) {
  const lm_plan_gemm *g = w->g;
  long long inner = (long long)w->tiles;
  lm_buf_printf(w->out,
                "typedef %s lm_at;\nconst int64_t tile = block %% %lld;\nint64_t at_c = 0;\n",
                w->wide ? "int64_t" : "int32_t", inner);
  for (int i = g->n_batch - 1; i >= 0; i--) {
    long long size = (long long)g->batch[i].size.fixed;
    lm_buf_printf(w->out,
                  "{\nconst int64_t i = block / %lld %% %lld;\na += i * %lld;\nb += i * "
                  "%lld;\nat_c += i * %lld;\n}\n",
                  inner, size, (long long)g->batch[i].a, (long long)g->batch[i].b,
                  (long long)g->batch[i].c);
    inner *= size;
  }
}

// Stores the sum `s` of row m and column n: C = gelu(s + residual + bias).
static void put_result(const few_rows *w, const char *m, const char *n, const char *s) {
  const lm_plan_gemm *g = w->g;
  lm_buf_printf(w->out, "const int64_t at = at_c + (lm_at)%s * %lld + %s * %lld;\nfloat z = %s;\n",
                m, (long long)g->c_m, n, (long long)g->c_n, s);
  if (g->residual)
    lm_buf_printf(w->out, "z += %s;\n", lm_gen_load_text(w->arena, w->cc, "residual[at]"));
  if (g->bias)
    lm_buf_printf(w->out, "z += %s;\n",
                  lm_gen_load_text(w->arena, w->cc, lm_arena_printf(w->arena, "bias[%s]", n)));
  if (g->stored)
    lm_buf_printf(w->out, "before[at] = %s;\n", lm_gen_store_text(w->arena, w->cc, "z"));
  if (g->gelu)
    lm_buf_puts(w->out, "z = 0.5f * z * (1.0f + lm_tanh(0.7978845608f * (z + 0.044715f * z * z * "
                        "z)));\n");
  lm_buf_printf(w->out, "c[at] = %s;\n", lm_gen_store_text(w->arena, w->cc, "z"));
}

static const char *kind_of(const few_rows *w) {
  return lm_dtype_name(w->ab);
}

// The elements of k of a load from `k` on that are inside of B; NULL: all are.
static const char *inside_of(const few_rows *w) {
  long long step = THREADS / w->lanes;
  return w->k % (step * w->loads) == 0
             ? NULL
             : lm_arena_printf(w->arena, "k + i * %lld < %lld", step, (long long)w->k);
}

// `loads` vectors of B, which do not wait for each other.
static void put_columns_loads(const few_rows *w) {
  long long step = THREADS / w->lanes;
  const char *inside = inside_of(w);
  bool whole = !inside && w->n % (w->lanes * w->vector) == 0;
  lm_buf_printf(w->out, "LM_UNROLL for (int32_t i = 0; i < %d; i++)\n", w->loads);
  if (!whole)
    lm_buf_printf(w->out, "if (col < %lld && %s)\n", (long long)w->n, inside ? inside : "true");
  lm_buf_printf(w->out, "lm_load%d_%s(y[i], b + (lm_at)(k + i * %lld) * %lld + col);\n", w->vector,
                kind_of(w), step, (long long)w->g->b_k);
}

static const char *a_element(const few_rows *w, const char *m, const char *k) {
  const lm_plan_gemm *g = w->g;
  if (w->a)
    return lm_arena_printf(w->arena, "lm_get(" CUDA_A_ROWS ", %s * %lld + %s)", m, (long long)w->k,
                           k);
  return lm_arena_printf(w->arena, "a[(lm_at)%s * %lld + (lm_at)(%s) * %lld]", m, (long long)g->a_m,
                         k, (long long)g->a_k);
}

// The rows of A, while the first loads of B are in flight.
static void put_prologue(const few_rows *w, const char *first,
                         void (*put_loads)(const few_rows *)) {
  uint32_t n = w->a->code->n_params;
  const char **args = LM_NEW_N(w->arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++)
    args[i] = operand_name(w, i);
  lm_buf_printf(w->out, "LM_SHARED(%s, " CUDA_A_ROWS ", %lld);\n", lm_gen_memory_type(w->ab),
                (long long)(w->rows * w->k));
  lm_buf_printf(w->out, "{\nconst int32_t k = %s;\n", first);
  put_loads(w);
  lm_buf_puts(w->out, "}\n");
  const char *blocks = lm_arena_printf(w->arena, "%lld", (long long)w->a->blocks);
  cuda_code_put(w->a->code, args, &(cuda_blocks){.all = true, .grid = blocks}, w->out);
}

// The loads of an iteration, of which those of the first one are before the prologue.
static void put_loads_of(const few_rows *w, const char *first,
                         void (*put_loads)(const few_rows *)) {
  if (w->a)
    lm_buf_printf(w->out, "if (k != %s) {\n", first);
  put_loads(w);
  if (w->a)
    lm_buf_puts(w->out, "}\n");
}

static void put_columns_loop(const few_rows *w) {
  long long step = THREADS / w->lanes;
  const char *inside = inside_of(w);
  const char *x = a_element(w, "m", lm_arena_printf(w->arena, "(k + i * %lld)", step));
  lm_buf_printf(w->out, "for (int32_t k = row; k < %lld; k += %lld) {\n", (long long)w->k,
                step * w->loads);
  if (!w->a)
    lm_buf_printf(w->out, "float y[%d][%d] = {{0}};\n", w->loads, w->vector);
  put_loads_of(w, "row", put_columns_loads);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t i = 0; i < %d; i++) LM_UNROLL for (int32_t m = 0; m < %d; "
                "m++) {\nconst float x = ",
                w->loads, w->rows);
  if (inside)
    lm_buf_printf(w->out, "!(%s) ? 0.0f : ", inside);
  lm_buf_printf(w->out,
                "%s;\nLM_UNROLL for (int32_t v = 0; v < %d; v++) s[m][v] = LM_FMA(x, y[i][v], "
                "s[m][v]);\n}\n}\n",
                lm_gen_load_text(w->arena, w->ab, x), w->vector);
}

// The sums of the threads of a warp that have the same columns, then those of the warps.
static void put_columns_sums(const few_rows *w) {
  int width = w->lanes * w->vector;
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t m = 0; m < %d; m++) LM_UNROLL for (int32_t v = 0; v < %d; "
                "v++) {\nLM_UNROLL for (int32_t other = 16; other >= %d; other /= 2) s[m][v] += "
                "lm_shuffle_xor_f32(~0u, s[m][v], other);\n",
                w->rows, w->vector, w->lanes);
  lm_buf_printf(w->out,
                "if (lm_thread() %% 32 < %d) lm_put(sums, (lm_thread() / 32 * %d + m) * %d + lane "
                "* %d + v, s[m][v]);\n}\nlm_barrier();\n",
                w->lanes, w->rows, width, w->vector);
  lm_buf_printf(
      w->out,
      "for (int32_t i = lm_thread(); i < %d; i += %d) {\nconst int32_t m = i / %d;\nconst "
      "int64_t n = tile * %d + i %% %d;\nfloat sum = lm_get(sums, i);\n",
      w->rows * width, THREADS, width, width, width);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t warp = 1; warp < %d; warp++) sum += lm_get(sums, warp * %d "
                "+ i);\nif (n >= %lld) continue;\n",
                WARPS, w->rows * width, (long long)w->n);
  put_result(w, "m", "n", "sum");
  lm_buf_puts(w->out, "}\n");
}

static void put_columns(const few_rows *w) {
  int width = w->lanes * w->vector;
  lm_buf_printf(w->out,
                "LM_SHARED(float, sums, %d);\nconst int32_t lane = lm_thread() %% %d, row = "
                "lm_thread() / %d;\nconst int64_t col = tile * %d + lane * %d;\nfloat s[%d][%d] = "
                "{{0}};\n",
                WARPS * w->rows * width, w->lanes, w->lanes, width, w->vector, w->rows, w->vector);
  if (w->a) {
    lm_buf_printf(w->out, "float y[%d][%d] = {{0}};\n", w->loads, w->vector);
    put_prologue(w, "row", put_columns_loads);
  }
  put_columns_loop(w);
  put_columns_sums(w);
}

// A vector of row m of A at element `k`.
static void put_a_load(const few_rows *w) {
  const lm_plan_gemm *g = w->g;
  int64_t all = g->a_m;
  for (int i = 0; i < g->n_batch; i++)
    all |= g->batch[i].a;
  if (!w->a && g->a_k == 1 && all % w->vector == 0) {
    lm_buf_printf(w->out, "lm_load%d_%s(x, a + (lm_at)m * %lld + at_k);\n", w->vector, kind_of(w),
                  (long long)g->a_m);
    return;
  }
  lm_buf_printf(w->out, "LM_UNROLL for (int32_t v = 0; v < %d; v++) x[v] = %s;\n", w->vector,
                lm_gen_load_text(w->arena, w->ab, a_element(w, "m", "(at_k + v)")));
}

static bool k_is_whole(const few_rows *w) {
  return w->k % ((int64_t)w->lanes * w->vector * w->loads) == 0;
}

// `loads` vectors of each of COLUMNS columns of B.
static void put_k_loads(const few_rows *w) {
  long long step = (long long)w->lanes * w->vector;
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t i = 0; i < %d; i++) LM_UNROLL for (int32_t n = 0; n < %d; "
                "n++)\n",
                w->loads, COLUMNS);
  if (!k_is_whole(w))
    lm_buf_printf(w->out, "if (k + i * %lld < %lld)\n", step, (long long)w->k);
  lm_buf_printf(w->out, "lm_load%d_%s(y[i][n], b + from[n] + k + i * %lld);\n", w->vector,
                kind_of(w), step);
}

static void put_k_buffer(const few_rows *w) {
  lm_buf_printf(w->out, "float y[%d][%d][%d] = {{{0}}};\n", w->loads, COLUMNS, w->vector);
}

static void put_k_loop(const few_rows *w) {
  long long step = (long long)w->lanes * w->vector;
  bool whole = k_is_whole(w);
  const char *first = lm_arena_printf(w->arena, "lane * %d", w->vector);
  if (w->a) {
    put_k_buffer(w);
    put_prologue(w, first, put_k_loads);
  }
  lm_buf_printf(w->out, "for (int32_t k = %s; k < %lld; k += %lld) {\n", first, (long long)w->k,
                step * w->loads);
  if (!w->a)
    put_k_buffer(w);
  put_loads_of(w, first, put_k_loads);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t i = 0; i < %d; i++) LM_UNROLL for (int32_t m = 0; m < %d; "
                "m++) {\nconst int32_t at_k = k + (int32_t)(i * %lld);\nfloat x[%d] = {0};\n",
                w->loads, w->rows, step, w->vector);
  if (!whole)
    lm_buf_printf(w->out, "if (at_k < %lld) {\n", (long long)w->k);
  put_a_load(w);
  if (!whole)
    lm_buf_puts(w->out, "}\n");
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t n = 0; n < %d; n++) LM_UNROLL for (int32_t v = 0; v < %d; "
                "v++) s[m][n] = LM_FMA(x[v], y[i][n][v], s[m][n]);\n}\n}\n",
                COLUMNS, w->vector);
}

// Columns beyond the last one read it again, and are not stored.
static void put_k(const few_rows *w) {
  lm_buf_printf(w->out,
                "const int32_t lane = lm_thread() %% %d;\nconst int64_t col = (tile * %d + "
                "lm_thread() / %d) * %d;\nfloat s[%d][%d] = {{0}};\nint64_t from[%d];\n",
                w->lanes, THREADS / w->lanes, w->lanes, COLUMNS, w->rows, COLUMNS, COLUMNS);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t n = 0; n < %d; n++) from[n] = lm_min64(col + n, %lld) * "
                "%lld;\n",
                COLUMNS, (long long)(w->n - 1), (long long)w->g->b_n);
  put_k_loop(w);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t m = 0; m < %d; m++) LM_UNROLL for (int32_t n = 0; n < %d; "
                "n++) {\nconst float sum = lm_team_sum_f32(s[m][n], lm_team_mask(%d), %d);\nif "
                "(lane == (m * %d + n) %% %d && col + n < %lld) {\n",
                w->rows, COLUMNS, w->lanes, w->lanes, COLUMNS, w->lanes, (long long)w->n);
  put_result(w, "m", "(col + n)", "sum");
  lm_buf_puts(w->out, "}\n}\n");
}

// ---- the kernel

// A load, its conversion, and for each row the elements of A and a multiply-add for each element.
static double instructions_of(const few_rows *w) {
  double vectors = (double)w->batches * (double)w->n * (double)w->k / w->vector;
  int converted = w->ab == LM_F32 ? 0 : w->vector;
  int of_a = !w->by_k ? 2 : (w->a ? 2 : 1) * w->vector / COLUMNS + 1;
  double own = vectors * (2 + converted + w->rows * (w->vector + of_a));
  return own + (w->a ? w->a->instructions * (double)w->tiles : 0);
}

static int64_t sums_bytes(const few_rows *w) {
  return w->by_k ? 0 : (int64_t)sizeof(float) * WARPS * w->rows * w->lanes * w->vector;
}

bool cuda_few_rows_emit(const lm_plan_options *o, const lm_plan_gemm *g, const lm_op *kernel,
                        lm_arena *arena, lm_kernel_code *out) {
  lm_buf b = {0};
  few_rows w = few_rows_make(g, arena, &b);
  cuda_code *c = cuda_code_make(arena, THREADS);
  cuda_prologue a;
  if (kernel && !cuda_prologue_make(o, kernel, g, SHARED - sums_bytes(&w), arena, &a))
    return false;
  w.a = kernel ? &a : NULL;
  params_add(&w, c);
  c->whole_block = true;
  put_begin(&w);
  if (w.by_k)
    put_k(&w);
  else
    put_columns(&w);
  cuda_code_body(c, NULL, &b);
  *out = (lm_kernel_code){
      .launch = {.per_block = 1,
                 .blocks = w.tiles * w.batches,
                 .unroll = w.loads * (w.by_k ? COLUMNS : 1)},
      .instructions = instructions_of(&w),
  };
  cuda_code_render(c, "p", arena, out);
  return true;
}
