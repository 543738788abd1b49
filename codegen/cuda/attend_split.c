// attend_split.c - attention of one query as CUDA C, as in decoding (Flash-Decoding, Dao et al.
// 2023): positions are split into chunks of 256, so that all multiprocessors read keys and values.
//
// The first kernel has a block for each chunk at each point of the parallel axes that keys or
// values have. It reads keys and values once for up to eight heads of queries that share them:
//
//   x = score (-1e30 where masked)   m = max x   l = sum e^(x - m)   o = sum e^(x - m) v
//
// over the chunk, in f32, to the workspaces. The second one combines the chunks in order:
//
//   M = max m   L = sum e^(m - M) l   o = sum e^(m - M) o / L   lse = M + log L
//
// The grid is that of the cache's capacity; blocks of chunks beyond the positions in use end at
// once. A GEMM of few rows whose operand o is does the second one's work itself (prologue.c). A
// result depends on the positions alone: chunks are the same for any capacity and any
// number of blocks.
#include <string.h>
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  CHUNK = 256, // positions
  MOST_HEADS = 8,
  VECTOR = 8, // channels that a lane has at a time
  MOST_WIDTH = 32 * VECTOR,
  UNROLLED = 4, // positions whose loads do not wait for each other
  COMBINED = 4, // channels that a thread combines at a time
  COMBINE_THREADS = 64
};

typedef struct attend_split {
  cuda_attend *e;
  const lm_attend_dot *dot;
  lm_attend_axes heads, rest; // parallel axes that keys and values lack; the others
  int block_heads;            // of the heads, those that a block computes
  int key_lanes, value_lanes; // that share a position
  int64_t chunks, points;     // points: of `rest` and of blocks of heads
  lm_buf region;              // statements of a score
} attend_split;

static void axes_add(const lm_module *m, lm_attend_axes *x, lm_axis a) {
  x->axis[x->n++] = a;
  x->size *= lm_axis_size(m, a);
}

static int lanes_of(int64_t width) {
  int lanes = 1;
  while (lanes * VECTOR < width)
    lanes *= 2;
  return lanes;
}

static bool is_vector(const lm_attend_spec *f, uint32_t k, const lm_attend_axes *channels) {
  lm_type t = f->op->in[k]->type;
  bool known = lm_dtype_is_half(t.dtype) || t.dtype == LM_F32;
  return known && channels->size <= MOST_WIDTH && cuda_attend_in_runs(t, channels, VECTOR);
}

bool cuda_attend_is_split(const lm_attend_spec *f) {
  return !f->vjp && !f->m->axes[f->t].dyn && lm_axis_size(f->m, f->t) == 1;
}

// Why there is no such kernel; NULL if there is.
const char *cuda_attend_split_why(const lm_attend_spec *f) {
  if (f->n_dots != 1)
    return "scores of several dots";
  if (f->factor)
    return "weights with a factor";
  if (!is_vector(f, f->dots[0].row, &f->dots[0].over) ||
      !is_vector(f, f->dots[0].col, &f->dots[0].over) || !is_vector(f, LM_ATTEND_V, &f->v_channels))
    return "heads that are no vectors of 8 channels, at most 256";
  for (int i = 0; i < f->parallel.n; i++)
    if (f->m->axes[f->parallel.axis[i]].dyn)
      return "a run-time number of rows";
  return NULL;
}

static attend_split split_make(cuda_attend *e) {
  const lm_module *m = e->f.m;
  attend_split x = {.e = e, .dot = &e->f.dots[0], .heads = {.size = 1}, .rest = {.size = 1}};
  lm_type k = e->f.op->in[x.dot->col]->type;
  lm_type v = e->f.op->in[LM_ATTEND_V]->type;
  for (int i = 0; i < e->f.parallel.n; i++) {
    lm_axis a = e->f.parallel.axis[i];
    bool shared = !cuda_attend_has(k, a) && !cuda_attend_has(v, a);
    axes_add(m, shared ? &x.heads : &x.rest, a);
  }
  x.block_heads = MOST_HEADS;
  while (x.heads.size % x.block_heads)
    x.block_heads--;
  x.key_lanes = lanes_of(x.dot->over.size);
  x.value_lanes = lanes_of(e->f.v_channels.size);
  x.chunks = (lm_axis_size(m, e->f.s) + CHUNK - 1) / CHUNK;
  x.points = x.rest.size * (x.heads.size / x.block_heads);
  return x;
}

// ---- the score of a head and a position

static const char *statement(void *user, lm_attend_level at, lm_dtype t, const char *text) {
  attend_split *x = user;
  (void)at;
  const char *name = lm_arena_printf(x->e->g.arena, "u%d", x->e->values.n_names++);
  lm_buf_printf(&x->region, "const %s %s = %s;\n", lm_gen_register_type(t), name, text);
  return name;
}

static const char *operand_load(void *user, const lm_value *arg, lm_attend_level at) {
  attend_split *x = user;
  cuda_attend *e = x->e;
  int k = lm_attend_operand(&e->f, arg);
  lm_buf b = {0};
  lm_buf_printf(&b, "a%d[", k);
  cuda_attend_offset(e, &b, arg->type, e->stride[k], "row", "col");
  lm_buf_puts(&b, "]");
  lm_dtype t = (lm_dtype)arg->type.dtype;
  return statement(x, at, t, lm_gen_load_text(e->g.arena, t, lm_gen_take(&e->g, &b)));
}

static const char *dot_element(void *user, int k) {
  (void)user;
  (void)k;
  return "p[h]";
}

static void values_set(attend_split *x) {
  lm_attend_values *v = &x->e->values;
  v->row = x->e->f.t;
  v->col = x->e->f.s;
  v->user = x;
  v->statement = statement;
  v->operand = operand_load;
  v->dot = dot_element;
  memset(v->text, 0, (x->e->f.m->n_values + 1) * sizeof *v->text);
}

// ---- text of the first kernel

static void put_coordinates(const attend_split *x, lm_buf *b, const lm_attend_axes *axes,
                            const char *from) {
  int64_t below = 1;
  for (int i = axes->n - 1; i >= 0; i--) {
    int64_t size = lm_axis_size(x->e->f.m, axes->axis[i]);
    const char *name = lm_attend_coordinate(&x->e->values, axes->axis[i]);
    lm_buf_printf(b, "const lm_at %s = %s / %lld %% %lld;\n(void)%s;\n", name, from,
                  (long long)below, (long long)size, name);
    below *= size;
  }
}

// The coordinates of head h of the block.
static void put_head(const attend_split *x, lm_buf *b) {
  lm_buf_printf(b, "const lm_at head = heads0 + h;\n(void)head;\n");
  put_coordinates(x, b, &x->heads, "head");
}

static const char *offset_of(const attend_split *x, uint32_t k, const char *col) {
  lm_buf b = {0};
  cuda_attend_offset(x->e, &b, x->e->f.op->in[k]->type, x->e->stride[k], "0", col);
  return lm_gen_take(&x->e->g, &b);
}

static const char *kind_of(const attend_split *x, uint32_t k) {
  return lm_dtype_name(x->e->f.op->in[k]->type.dtype);
}

static void put_begin(const attend_split *x, lm_buf *b) {
  cuda_attend *e = x->e;
  const char *extent = cuda_attend_extent(e, e->f.s);
  lm_buf_printf(b,
                "const lm_at row = 0, chunk = block %% %lld, point = block / %lld;\n"
                "const lm_at col0 = chunk * %d, end = lm_min64(col0 + %d, %s);\n(void)row;\nif "
                "(col0 >= end) return;\n",
                (long long)x->chunks, (long long)x->chunks, CHUNK, CHUNK, extent);
  long long blocks = (long long)(x->heads.size / x->block_heads);
  lm_buf_printf(b, "const lm_at heads0 = point %% %lld * %d, rest = point / %lld;\n(void)rest;\n",
                blocks, x->block_heads, blocks);
  put_coordinates(x, b, &x->rest, "rest");
}

// Scores of the chunk, in shared memory; -inf beyond the positions. A position's lanes each compute
// the scores of every n-th head, from dots that all of them have.
static void put_scores(attend_split *x, lm_buf *b) {
  cuda_attend *e = x->e;
  int lanes = x->key_lanes;
  long long width = (long long)x->dot->over.size;
  const char *score = lm_attend_value(&e->values, e->f.score);
  const char *seen = e->f.mask ? lm_attend_value(&e->values, e->f.mask) : NULL;
  lm_buf_printf(
      b,
      "{\nconst int32_t lane = lm_thread() %% %d, channel = lane * %d;\nfloat q[%d][%d] = "
      "{{0}};\nLM_UNROLL for (int32_t h = 0; h < %d; h++) {\n",
      lanes, VECTOR, x->block_heads, VECTOR, x->block_heads);
  put_head(x, b);
  lm_buf_printf(b, "if (channel < %lld) lm_load8_%s(q[h], a%u + (%s + channel));\n}\n", width,
                kind_of(x, x->dot->row), x->dot->row, offset_of(x, x->dot->row, "0"));
  lm_buf_printf(b,
                "for (int32_t i0 = lm_thread() / %d; i0 < %d; i0 += %d) {\nfloat k[%d][%d] = "
                "{{0}};\nLM_UNROLL for (int32_t j = 0; j < %d; j++) {\nconst lm_at col = col0 + i0 "
                "+ j * %d;\nif (channel < %lld && col < end) lm_load8_%s(k[j], a%u + (%s + "
                "channel));\n}\n",
                lanes, CHUNK, THREADS / lanes * x->e->rows, x->e->rows, VECTOR, x->e->rows,
                THREADS / lanes, width, kind_of(x, x->dot->col), x->dot->col,
                offset_of(x, x->dot->col, "col"));
  lm_buf_printf(b,
                "LM_UNROLL for (int32_t j = 0; j < %d; j++) {\nconst int32_t i = i0 + j * %d;\n"
                "const bool inside = col0 + i < end;\nconst lm_at col = inside ? col0 + i : end - "
                "1;\n(void)col;\nfloat p[%d] = {0};\nLM_UNROLL for (int32_t h = 0; h < %d; h++) "
                "{\nLM_UNROLL for (int32_t v = 0; v < %d; v++) p[h] = LM_FMA(q[h][v], k[j][v], "
                "p[h]);\np[h] = lm_team_sum_f32(p[h], lm_team_mask(%d), %d);\n}\n",
                x->e->rows, THREADS / lanes, x->block_heads, x->block_heads, VECTOR, lanes, lanes);
  lm_buf_printf(b, "LM_UNROLL for (int32_t h = 0; h < %d; h++) {\nif (h %% %d != lane) continue;\n",
                x->block_heads, lanes);
  put_head(x, b);
  lm_buf_add(b, x->region.p ? x->region.p : "", x->region.n);
  const char *value = seen ? lm_arena_printf(e->g.arena, "(%s ? (float)%s : -1e30f)", seen, score)
                           : lm_arena_printf(e->g.arena, "(float)%s", score);
  lm_buf_printf(b, "lm_put(weights, h * %d + i, inside ? %s : -__builtin_inff());\n}\n}\n}\n}\n",
                CHUNK, value);
}

// The weights of a head, by one warp; its maximum and sum to the workspaces.
static void put_softmax(const attend_split *x, lm_buf *b) {
  int each = CHUNK / 32;
  lm_buf_puts(b, "lm_barrier();\n");
  lm_buf_printf(
      b,
      "for (int32_t h = lm_thread() / 32; h < %d; h += %d) {\nfloat x[%d], top = "
      "-__builtin_inff(), sum = 0.0f;\nLM_UNROLL for (int32_t i = 0; i < %d; i++) {\nx[i] "
      "= lm_get(weights, h * %d + i * 32 + lm_thread() %% 32);\ntop = lm_max_f32(top, "
      "x[i]);\n}\ntop = lm_team_max_f32(top, ~0u, 32);\n",
      x->block_heads, WARPS, each, each, CHUNK);
  lm_buf_printf(
      b,
      "LM_UNROLL for (int32_t i = 0; i < %d; i++) {\nconst float w = lm_exp_f32(x[i] - "
      "top);\nsum += w;\nlm_put(weights, h * %d + i * 32 + lm_thread() %% 32, w);\n}\n"
      "sum = lm_team_sum_f32(sum, ~0u, 32);\nif (lm_thread() %% 32 == 0) {\nconst int64_t "
      "at = (point * %lld + chunk) * %d + h;\ntops[at] = top;\nsums[at] = sum;\n}\n}\n"
      "lm_barrier();\n",
      each, CHUNK, (long long)x->chunks, x->block_heads);
}

// The sums of the weighted values: of a thread, of the threads of a warp, of the warps in order.
static void put_values(const attend_split *x, lm_buf *b) {
  int lanes = x->value_lanes, heads = x->block_heads, rows = x->e->rows;
  long long width = (long long)x->e->f.v_channels.size;
  lm_buf_printf(b,
                "const int32_t lane = lm_thread() %% %d, channel = lane * %d;\nfloat o[%d][%d] = "
                "{{0}};\nfor (int32_t i0 = lm_thread() / %d; i0 < %d; i0 += %d) {\nfloat v[%d][%d] "
                "= {{0}};\nLM_UNROLL for (int32_t j = 0; j < %d; j++) {\nconst lm_at col = col0 + "
                "i0 + j * %d;\nif (channel < %lld && col < end) lm_load8_%s(v[j], a%d + (%s + "
                "channel));\n}\n",
                lanes, VECTOR, heads, VECTOR, lanes, CHUNK, THREADS / lanes * rows, rows, VECTOR,
                rows, THREADS / lanes, width, kind_of(x, LM_ATTEND_V), LM_ATTEND_V,
                offset_of(x, LM_ATTEND_V, "col"));
  lm_buf_printf(b,
                "LM_UNROLL for (int32_t j = 0; j < %d; j++) LM_UNROLL for (int32_t h = 0; h < %d; "
                "h++) {\nconst float w = lm_get(weights, h * %d + i0 + j * %d);\nLM_UNROLL for "
                "(int32_t c = 0; c < %d; c++) o[h][c] = LM_FMA(w, v[j][c], o[h][c]);\n}\n}\n",
                rows, heads, CHUNK, THREADS / lanes, VECTOR);
  lm_buf_printf(b,
                "LM_UNROLL for (int32_t h = 0; h < %d; h++) LM_UNROLL for (int32_t c = 0; c < %d; "
                "c++) {\nLM_UNROLL for (int32_t other = 16; other >= %d; other /= 2) o[h][c] += "
                "lm_shuffle_xor_f32(~0u, o[h][c], other);\nif (lm_thread() %% 32 < %d) "
                "lm_put(parts, (lm_thread() / 32 * %d + h) * %d + channel + c, o[h][c]);\n}\n"
                "lm_barrier();\n",
                heads, VECTOR, lanes, lanes, heads, lanes * VECTOR);
  lm_buf_printf(b,
                "for (int32_t i = lm_thread(); i < %d; i += %d) {\nconst int32_t h = i / %d, c = i "
                "%% %d;\nfloat sum = lm_get(parts, i);\nLM_UNROLL for (int32_t w = 1; w < %d; w++) "
                "sum += lm_get(parts, w * %d + i);\nif (c < %lld) values[((point * %lld + chunk) * "
                "%d + h) * %lld + c] = sum;\n}\n",
                heads * lanes * VECTOR, THREADS, lanes * VECTOR, lanes * VECTOR, WARPS,
                heads * lanes * VECTOR, width, (long long)x->chunks, heads, width);
}

static void inputs_add(const attend_split *x, cuda_code *c) {
  cuda_attend_operands_add(x->e->f.op, c);
  cuda_result_add(c, LM_F32, "tops");
  cuda_result_add(c, LM_F32, "sums");
  cuda_result_add(c, LM_F32, "values");
  c->extents = x->e->g.extents;
}

// ---- text of the second kernel

// Coordinates of element i: a head of a point, and COMBINED of its channels from `channel` on.
static void put_element(const attend_split *x, lm_buf *b) {
  long long blocks = (long long)(x->heads.size / x->block_heads);
  long long pieces = (long long)(x->e->f.v_channels.size / COMBINED);
  lm_buf_printf(b, "const lm_at channel = i %% %lld * %d, h = i / %lld %% %d, point = i / %lld;\n",
                pieces, COMBINED, pieces, x->block_heads, pieces * x->block_heads);
  lm_buf_printf(b,
                "const lm_at heads0 = point %% %lld * %d, rest = point / %lld, at = point * %lld * "
                "%d + h;\n(void)rest;\n",
                blocks, x->block_heads, blocks, (long long)x->chunks, x->block_heads);
  put_coordinates(x, b, &x->rest, "rest");
  put_head(x, b);
}

// The sums over the chunks: `all` of the weights, sum[v] of the values.
static void put_combined(const attend_split *x, lm_buf *b) {
  long long width = (long long)x->e->f.v_channels.size;
  lm_buf_printf(b,
                "float top = -__builtin_inff(), all = 0.0f, sum[%d] = {0};\nLM_UNROLL_4\nfor "
                "(lm_at n = 0; n < chunks; n++) top = lm_max_f32(top, tops[at + n * %d]);\n",
                COMBINED, x->block_heads);
  lm_buf_printf(b,
                "LM_UNROLL_4\nfor (lm_at n = 0; n < chunks; n++) {\nfloat x[%d];\nlm_load%d_f32(x, "
                "values + (at + n * %d) * %lld + channel);\nconst float w = lm_exp_f32(tops[at + n "
                "* %d] - top);\nall += w * sums[at + n * %d];\nLM_UNROLL for (int32_t v = 0; v < "
                "%d; v++) sum[v] = LM_FMA(w, x[v], sum[v]);\n}\n",
                COMBINED, COMBINED, x->block_heads, width, x->block_heads, x->block_heads,
                COMBINED);
}

static void put_results(const attend_split *x, const char *rows, lm_buf *b) {
  cuda_attend *e = x->e;
  lm_type o = e->f.op->out[0]->type, lse = e->f.op->out[1]->type;
  lm_buf at = {0};
  if (!rows) {
    cuda_attend_offset(e, &at, lse, NULL, "row", "");
    lm_buf_printf(b, "if (channel == 0) r1[%s] = top + lm_log(all);\n", lm_gen_take(&e->g, &at));
  }
  cuda_attend_offset(e, &at, o, e->result_stride[0], "row", "");
  cuda_attend_channel_offset(e, &at, o, e->result_stride[0], &e->f.v_channels, "(channel + v)");
  const char *to = lm_gen_take(&e->g, &at);
  lm_buf_printf(b, "LM_UNROLL for (int32_t v = 0; v < %d; v++) ", COMBINED);
  lm_buf_printf(b, rows ? "lm_put(%s, %s, %s);\n" : "%s[%s] = %s;\n", rows ? rows : "r0", to,
                lm_gen_store_text(e->g.arena, (lm_dtype)o.dtype, "sum[v] / all"));
}

static void combine_params_add(const attend_split *x, const char *rows, cuda_code *c) {
  const lm_op *op = x->e->f.op;
  cuda_operand_add(c, LM_F32, false, "tops");
  cuda_operand_add(c, LM_F32, false, "sums");
  cuda_operand_add(c, LM_F32, false, "values");
  for (uint32_t i = 0; i < op->n_out && !rows; i++)
    cuda_result_add(c, (lm_dtype)op->out[i]->type.dtype, lm_arena_printf(c->arena, "r%u", i));
}

static int64_t combine_elements(const attend_split *x) {
  return x->points * x->block_heads * (x->e->f.v_channels.size / COMBINED);
}

static cuda_code *combine_code(const attend_split *x, const char *rows, lm_arena *arena) {
  cuda_attend *e = x->e;
  cuda_code *c = cuda_code_make(arena, rows ? THREADS : COMBINE_THREADS);
  lm_buf b = {0};
  combine_params_add(x, rows, c);
  lm_buf_printf(&b, "typedef int64_t lm_at;\nconst lm_at row = 0, chunks = (%s + %d) / %d;\n",
                cuda_attend_extent(e, e->f.s), CHUNK - 1, CHUNK);
  lm_buf_printf(&b,
                "(void)row;\nfor (lm_at i = block * %d + lm_thread(); i < %lld; i += grid * %d) "
                "{\n",
                c->threads, (long long)combine_elements(x), c->threads);
  put_element(x, &b);
  put_combined(x, &b);
  put_results(x, rows, &b);
  lm_buf_puts(&b, "}\n");
  c->extents = e->g.extents;
  cuda_code_body(c, NULL, &b);
  return c;
}

// For a chunk and COMBINED channels: loads, an exponential, a multiply-add for each channel.
static double combine_instructions(const attend_split *x) {
  return (double)combine_elements(x) * (double)x->chunks * 40;
}

cuda_code *cuda_attend_combine(cuda_attend *e, const char *rows, lm_arena *arena,
                               double *out_instructions) {
  attend_split x = split_make(e);
  values_set(&x);
  *out_instructions = combine_instructions(&x);
  return combine_code(&x, rows, arena);
}

// ---- the kernels

static double instructions_of(const attend_split *x) {
  double positions = (double)x->points * (double)lm_axis_size(x->e->f.m, x->e->f.s);
  double widths = (double)(x->dot->over.size + x->e->f.v_channels.size);
  double score = 20; // the region, the exponential and the accesses to shared memory
  return positions * (widths * (1 + x->block_heads) + x->block_heads * score);
}

static void combine_emit(const attend_split *x, lm_arena *arena, lm_kernel_code *out) {
  *out = (lm_kernel_code){.space = {.fixed = combine_elements(x)},
                          .launch = {.per_block = COMBINE_THREADS},
                          .instructions = combine_instructions(x)};
  cuda_code_render(combine_code(x, NULL, arena), "c", arena, out);
}

void cuda_attend_split_emit(cuda_attend *e, bool wide, lm_arena *arena, lm_kernel_code *out) {
  lm_buf body = {0};
  cuda_code *c = cuda_code_make(arena, THREADS);
  e->rows = UNROLLED;
  attend_split x = split_make(e);
  int64_t width = e->f.v_channels.size;
  while (THREADS / (x.key_lanes < x.value_lanes ? x.key_lanes : x.value_lanes) * e->rows > CHUNK)
    e->rows /= 2;
  values_set(&x);
  lm_buf_printf(&body, "typedef %s lm_at;\n", wide ? "int64_t" : "int32_t");
  put_begin(&x, &body);
  lm_buf_printf(&body, "LM_SHARED(float, weights, %d);\n", x.block_heads * CHUNK);
  lm_buf_printf(&body, "LM_POOL_DECLARE();\nLM_POOL(float, parts, 0, %d);\n",
                WARPS * x.block_heads * x.value_lanes * VECTOR);
  put_scores(&x, &body);
  put_softmax(&x, &body);
  put_values(&x, &body);
  inputs_add(&x, c);
  c->whole_block = true;
  cuda_code_body(c, NULL, &body);
  int64_t slots = x.points * x.chunks * x.block_heads * (int64_t)sizeof(float);
  *out = (lm_kernel_code){
      .space = {.fixed = x.points * x.chunks},
      .workspace = {slots, slots, slots * width},
      .n_workspaces = 3,
      .instructions = instructions_of(&x),
      .launch = {.shared = (int64_t)WARPS * x.block_heads * x.value_lanes * VECTOR * 4,
                 .per_block = 1,
                 .unroll = e->rows,
                 .note = "one query, positions in chunks of 256"},
  };
  cuda_code_render(c, "a", arena, out);
  lm_kernel_code *combine = LM_NEW(arena, lm_kernel_code);
  combine_emit(&x, arena, combine);
  out->combine = combine;
  lm_buf_free(&x.region);
}
