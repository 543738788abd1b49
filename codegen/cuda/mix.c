// mix.c - a kernel that computes a factor of its dot, as CUDA C (see mix.h).
//
// The tiles of the next head are copied to shared memory while this one is computed. For each head
//
//   p = the scores, from tiles of rows and columns
//   p = weights, and sums of elements: of a row over the four threads that share it, of a column
//       over the warps, which add in order
//   o = p times the tile of x, which is stored
#include "codegen/cuda/mix.h"

enum {
  WARP_ROWS = 16,
  PANEL = 64,
  PAD = 8 // elements between the rows of tiles, so that eight of them begin in different banks
};
// Instructions of the GEMM of a tile for each of its elements and 64 channels: a multiplication for
// 256 products of a lane, an operand for two of them, and packing.
static const double GEMM = 1.5, PACK = 0.5;
// Of a column's sum over the rows of a warp: three shuffles and additions, for two elements.
static const double COLUMN = 3;

typedef struct tile {
  uint32_t operand;
  const char *name;
  int64_t channels;
} tile;

typedef struct tiles {
  tile t[3];
  int n;
  int64_t elements; // of all
} tiles;

static int64_t pitch(int64_t channels) {
  return channels + PAD;
}

static const char *tile_add(cuda_mix_text *e, tiles *all, uint32_t operand, int64_t channels) {
  for (int i = 0; i < all->n; i++)
    if (all->t[i].operand == operand)
      return all->t[i].name;
  const char *name = lm_arena_printf(e->g.arena, "b%u", operand);
  int64_t n = e->x->rows * pitch(channels);
  all->t[all->n++] = (tile){
      operand,
      name,
      channels,
  };
  cuda_mix_pool(e, "uint16_t", 2, name, 2 * n);
  return name;
}

static tiles tiles_declare(cuda_mix_text *e) {
  const cuda_mix *x = e->x;
  tiles all = {0};
  tile_add(e, &all, x->x, x->channels);
  if (!x->scores)
    return all;
  tile_add(e, &all, x->score_row, x->score_channels);
  tile_add(e, &all, x->score_col, x->score_channels);
  return all;
}

// Writes the asynchronous copies of the tiles of a head to a stage of shared memory. head, stage:
// expressions of their numbers.
static void fetch(cuda_mix_text *e, const tiles *all, const char *head, const char *stage,
                  lm_buf *b) {
  const cuda_mix *x = e->x;
  lm_buf_printf(b, "{\nconst lm_at %s = %s;\n(void)%s;\n", cuda_mix_coordinate(e, x->head), head,
                cuda_mix_coordinate(e, x->head));
  for (int i = 0; i < all->n; i++) {
    const tile *t = &all->t[i];
    long long vectors = t->channels / 8;
    lm_buf at = {0};
    int64_t stride[LM_RANK];
    cuda_mix_strides(x, t->operand, stride);
    cuda_mix_offset(e, &at, x->kernel->in[t->operand]->type, stride, "at", "at");
    lm_buf_printf(b,
                  "LM_UNROLL_4\nfor (int32_t i = lm_thread(); i < %lld; i += %lld) {\n"
                  "const lm_at at = i / %lld;\nconst int32_t k = i %% %lld * 8;\n"
                  "lm_copy_async(%s, %s * %lld + (int32_t)at * %lld + k, a%u + (%s + k), true);\n"
                  "}\n",
                  (long long)x->rows * vectors, (long long)x->rows * 2, vectors, vectors, t->name,
                  stage, (long long)(x->rows * pitch(t->channels)), (long long)pitch(t->channels),
                  t->operand, lm_gen_take(&e->g, &at));
  }
  lm_buf_puts(b, "}\n");
}

// ---- elements

static void buffer_put(lm_buf *b, lm_buf *from) {
  lm_buf_add(b, from->p, from->n);
  from->n = 0;
}

// Columns whose elements are in registers at a time.
static int64_t panel(const cuda_mix *x) {
  return x->cols % PANEL ? x->cols : PANEL;
}

// The loop over panels of columns.
static void panels_begin(const cuda_mix *x, lm_buf *b) {
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t n0 = 0; n0 < %lld; n0 += %lld) {\n",
                (long long)x->cols / 8, (long long)panel(x) / 8);
}

// The loops over the elements that a thread has of a panel, with the statements of their levels
// around `body`, and `begin` and `end` in front of and behind the two rows of a column.
static void elements_put(cuda_mix_text *e, const char *begin, const char *body, const char *end,
                         lm_buf *b) {
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t n = 0; n < %lld; n++) {\n", (long long)panel(e->x) / 8);
  buffer_put(b, &e->pair);
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t c = 0; c < 2; c++) {\n"
                   "const lm_at col = lm_frag_col(n0 + n, c);\n(void)col;\n");
  buffer_put(b, &e->column);
  lm_buf_printf(b,
                "%sLM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                "const lm_at row = lm_frag_row(r);\n(void)row;\n",
                begin);
  buffer_put(b, &e->element);
  lm_buf_printf(b, "%s}\n%s}\n}\n", body, end);
}

// Weights and terms of sums.
static void weights_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  lm_buf begin = {0}, body = {0}, end = {0};
  double elements = (double)(x->rows * x->cols);
  for (int i = 0; i < x->n_sums; i++) {
    const cuda_mix_sum *s = &x->sum[i];
    const char *text = cuda_mix_value(e, s->op->in[0], CUDA_MIX_ROW, CUDA_MIX_COL);
    e->counted_heads += elements;
    if (s->kind == CUDA_MIX_OF_HEADS)
      lm_buf_printf(&body, "t%d[n0 + n][2 * r + c] += %s;\n", i, text);
    if (s->kind == CUDA_MIX_OF_ROWS)
      lm_buf_printf(&body, "t%d[r] += %s;\n", i, text);
    if (s->kind != CUDA_MIX_OF_COLS)
      continue;
    e->counted_heads += COLUMN * elements;
    lm_buf_printf(&begin, "float t%d = 0;\n", i);
    lm_buf_printf(&body, "t%d += %s;\n", i, text);
    lm_buf_printf(&end,
                  "t%d = lm_column_sum(t%d);\n"
                  "if (lm_thread() %% 32 < 4) lm_put(s%d, lm_thread() / 32 * %lld + col, t%d);\n",
                  i, i, i, (long long)x->cols, i);
  }
  const char *w = cuda_mix_value(e, x->weights, CUDA_MIX_ROW, CUDA_MIX_COL);
  lm_buf_printf(&body, "p[n][2 * r + c] = %s;\n", w);
  elements_put(e, begin.n ? begin.p : "", body.p, end.n ? end.p : "", b);
  lm_buf_free(&begin);
  lm_buf_free(&body);
  lm_buf_free(&end);
}

// ---- results

static void mix_store(cuda_mix_text *e, uint32_t r, lm_buf *b) {
  const cuda_mix *x = e->x;
  lm_buf at = {0};
  cuda_mix_offset(e, &at, x->mix->out[0]->type, NULL, "row", "row");
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                "const lm_at row = lm_frag_row(r);\n"
                "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++) {\n"
                "const float y[2] = {o[i][2 * r], o[i][2 * r + 1]};\n"
                "lm_store2_bf16(r%u + (%s + lm_frag_col(i, 0)), y);\n}\n}\n",
                (long long)x->channels / 8, r, lm_gen_take(&e->g, &at));
  e->counted_heads += 2.0 * (double)(x->rows * x->channels) / 2;
}

static bool is_mix(const cuda_mix *x, const lm_value *v) {
  return v == x->mix->out[0];
}

// True if the computation of a head ends with a barrier, behind which threads store such results.
static bool has_vectors(const cuda_mix *x) {
  const lm_op *yield = x->kernel->body->last;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (!is_mix(x, yield->in[i]) && cuda_mix_has(yield->in[i]->type, x->head))
      return true;
  return false;
}

// Stores an element of result i, at the given position of its axes of rows and of columns.
static void result_put(cuda_mix_text *e, uint32_t i, cuda_mix_at row, cuda_mix_at col, lm_buf *b) {
  static const char *const names[] = {
      [CUDA_MIX_ROW] = "row", [CUDA_MIX_COL] = "col", [CUDA_MIX_THREAD] = "at"};
  const lm_value *v = e->x->kernel->body->last->in[i];
  lm_buf at = {0};
  const char *text = cuda_mix_value(e, v, row, col);
  cuda_mix_offset(e, &at, v->type, NULL, names[row], names[col]);
  lm_buf_printf(b, "r%u[%s] = %s;\n", i, lm_gen_take(&e->g, &at),
                lm_gen_store_text(e->g.arena, (lm_dtype)v->type.dtype, text));
}

// Results of rows or of columns, by a thread for each.
static void vectors_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  const lm_op *yield = x->kernel->body->last;
  lm_buf stores = {0};
  e->scope++;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (!is_mix(x, yield->in[i]) && cuda_mix_has(yield->in[i]->type, x->head))
      result_put(e, i, CUDA_MIX_THREAD, CUDA_MIX_THREAD, &stores);
  if (stores.n) {
    lm_buf_printf(b, "lm_barrier();\nif (lm_thread() < %lld) {\nconst lm_at at = lm_thread();\n",
                  (long long)x->rows);
    for (int i = 0; i < x->n_sums; i++)
      if (x->sum[i].kind == CUDA_MIX_OF_COLS)
        lm_buf_printf(b,
                      "float t%d = lm_get(s%d, at);\nLM_UNROLL\nfor (int32_t w = 1; w < %lld; w++) "
                      "t%d += lm_get(s%d, w * %lld + at);\n",
                      i, i, (long long)x->rows / WARP_ROWS, i, i, (long long)x->cols);
    buffer_put(b, &e->thread);
    lm_buf_add(b, stores.p, stores.n);
    lm_buf_puts(b, "}\n");
  }
  lm_buf_free(&stores);
}

// Results of rows and columns, from the sums over heads.
static void tiles_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  const lm_op *yield = x->kernel->body->last;
  lm_buf body = {0};
  e->scope++;
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (!is_mix(x, yield->in[i]) && !cuda_mix_has(yield->in[i]->type, x->head)) {
      result_put(e, i, CUDA_MIX_ROW, CUDA_MIX_COL, &body);
      e->counted += 2.0 * (double)(x->rows * x->cols);
    }
  if (body.n) {
    panels_begin(x, b);
    elements_put(e, "", body.p, "", b);
    lm_buf_puts(b, "}\n");
  }
  lm_buf_free(&body);
}

// ---- the kernel

static void sums_declare(cuda_mix_text *e, lm_buf *of_point, lm_buf *of_head) {
  const cuda_mix *x = e->x;
  long long n = x->cols / 8;
  for (int i = 0; i < x->n_sums; i++)
    switch (x->sum[i].kind) {
    case CUDA_MIX_OF_HEADS: lm_buf_printf(of_point, "float t%d[%lld][4] = {{0}};\n", i, n); break;
    case CUDA_MIX_OF_ROWS:
      lm_buf_printf(of_head, "float t%d[2] = {0};\n", i);
      cuda_mix_pool(e, "float", 4, lm_arena_printf(e->g.arena, "s%d", i), x->rows);
      break;
    default:
      cuda_mix_pool(e, "float", 4, lm_arena_printf(e->g.arena, "s%d", i),
                    x->rows / WARP_ROWS * x->cols);
    }
}

static void rows_sum(cuda_mix_text *e, lm_buf *b) {
  for (int i = 0; i < e->x->n_sums; i++)
    if (e->x->sum[i].kind == CUDA_MIX_OF_ROWS)
      lm_buf_printf(b,
                    "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nt%d[r] = lm_row_sum(t%d[r]);\n"
                    "if (lm_thread() %% 4 == 0) lm_put(s%d, lm_frag_row(r), t%d[r]);\n}\n",
                    i, i, i, i);
}

static void point_decode(cuda_mix_text *e, lm_buf *b) {
  const lm_attr *a = &e->x->kernel->attr;
  lm_buf_puts(b, "lm_at at = (lm_at)block;\n");
  for (int i = a->n_axes - 1; i >= 0; i--) {
    long long size = lm_axis_size(e->x->m, a->axes[i]);
    const char *name = cuda_mix_coordinate(e, a->axes[i]);
    lm_buf_printf(b, "const lm_at %s = at %% %lld;\n(void)%s;\nat /= %lld;\n", name, size, name,
                  size);
  }
}

static void rows_put(const lm_buf *rows, lm_buf *b) {
  if (!rows->n)
    return;
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n"
                 "const lm_at row = lm_frag_row(r);\n(void)row;\n");
  lm_buf_add(b, rows->p, rows->n);
  lm_buf_puts(b, "}\n");
}

static void fill_put(const cuda_mix_text *e, const lm_buf *fill, lm_buf *b) {
  if (!fill->n)
    return;
  lm_buf_printf(b, "if (lm_thread() < %lld) {\nconst lm_at at = lm_thread();\n",
                (long long)e->x->cols);
  lm_buf_add(b, fill->p, fill->n);
  lm_buf_puts(b, "}\n");
}

static void multiply(cuda_mix_text *e, double channels) {
  e->counted_heads += GEMM * channels / 64 * (double)(e->x->rows * e->x->cols);
}

static void scores_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  long long width = pitch(x->score_channels);
  lm_buf_printf(b,
                "LM_TILE_DOT_BF16(p, %lld, (b%u + stage * %lld), lm_thread() / 32 * %d, "
                "(b%u + stage * %lld + n0 * %lld), %lld, %lld)\n",
                (long long)panel(x) / 8, x->score_row, x->rows * width, WARP_ROWS, x->score_col,
                x->rows * width, 8 * width, (long long)x->score_channels, width);
  multiply(e, (double)x->score_channels);
}

static void weighted_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  long long width = pitch(x->channels);
  lm_buf_printf(
      b, "LM_TILE_WEIGHTED_BF16(o, %lld, p, %lld, (b%u + stage * %lld + n0 * %lld), %lld)\n",
      (long long)x->channels / 8, (long long)panel(x) / 8, x->x, x->rows * width, 8 * width, width);
  multiply(e, (double)x->channels);
  e->counted_heads += PACK * (double)(x->rows * x->cols);
}

// The computation of a head, whose tiles are in shared memory.
static void head_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  const lm_op *yield = x->kernel->body->last;
  lm_buf_printf(b, "float o[%lld][4] = {{0}};\n", (long long)x->channels / 8);
  panels_begin(x, b);
  lm_buf_printf(b, "float p[%lld][4] = {{0}};\n", (long long)panel(x) / 8);
  if (x->scores)
    scores_put(e, b);
  weights_put(e, b);
  weighted_put(e, b);
  lm_buf_puts(b, "}\n");
  rows_sum(e, b);
  for (uint32_t i = 0; i < yield->n_in; i++)
    if (is_mix(x, yield->in[i]))
      mix_store(e, i, b);
  vectors_put(e, b);
}

static void body_put(cuda_mix_text *e, lm_buf *b) {
  const cuda_mix *x = e->x;
  lm_buf head = {0}, last = {0}, of_point = {0}, of_head = {0}, begin = {0};
  tiles all = tiles_declare(e);
  sums_declare(e, &of_point, &of_head);
  head_put(e, &head);
  tiles_put(e, &last);
  point_decode(e, &begin);
  lm_buf_add(b, e->declare.p, e->declare.n);
  buffer_put(b, &begin);
  buffer_put(b, &e->point);
  rows_put(&e->rows, b);
  fill_put(e, &e->fill, b);
  buffer_put(b, &of_point);
  fetch(e, &all, "0", "0", b);
  lm_buf_puts(b, "lm_copies_commit();\n");
  lm_buf_printf(b,
                "LM_UNROLL_1\nfor (int32_t head = 0; head < %lld; head++) {\n"
                "const int32_t stage = head %% 2;\nconst lm_at %s = head;\n(void)%s;\n"
                "%sif (head + 1 < %lld) ",
                (long long)x->heads, cuda_mix_coordinate(e, x->head),
                cuda_mix_coordinate(e, x->head), has_vectors(x) ? "" : "lm_barrier();\n",
                (long long)x->heads);
  fetch(e, &all, "head + 1", "(1 - stage)", b);
  lm_buf_puts(b, "lm_copies_commit();\n");
  buffer_put(b, &of_head);
  buffer_put(b, &e->head);
  rows_put(&e->head_rows, b);
  fill_put(e, &e->head_fill, b);
  lm_buf_puts(b, "lm_copies_wait(1);\nlm_barrier();\n");
  buffer_put(b, &head);
  lm_buf_puts(b, "}\n");
  buffer_put(b, &last);
  lm_buf *used[] = {
      &head, &last, &of_point, &of_head, &begin,
  };
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
}

static void emit_free(cuda_mix_text *e) {
  lm_buf *used[] = {
      &e->declare,   &e->point, &e->head,   &e->rows,    &e->head_rows, &e->fill,
      &e->head_fill, &e->pair,  &e->column, &e->element, &e->thread,
  };
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
}

static cuda_mix_text emit_begin(const cuda_mix *x, const lm_target *t, lm_arena *arena) {
  return (cuda_mix_text){
      .x = x,
      .g =
          {
              .target = cuda_gen_target(t, x->m, x->kernel),
              .arena = arena,
              .m = x->m,
              .kernel = x->kernel,
          },
  };
}

bool cuda_mix_is_supported(const lm_target *t, const lm_op *kernel) {
  cuda_mix x;
  if (!cuda_mix_make(lm_op_module(kernel), kernel, &x))
    return false;
  lm_arena *temporary = lm_arena_create();
  cuda_mix_text e = emit_begin(&x, t, temporary);
  lm_buf body = {0};
  body_put(&e, &body);
  int64_t pool = e.pool;
  emit_free(&e);
  lm_buf_free(&body);
  lm_arena_destroy(temporary);
  return pool <= cuda_max_pool(t);
}

void cuda_mix_emit(const lm_plan_options *o, const lm_op *kernel, lm_arena *arena,
                   lm_kernel_code *out) {
  cuda_mix x;
  if (!cuda_mix_make(lm_op_module(kernel), kernel, &x))
    LM_BUG("a kernel that mixes of an unsupported form");
  lm_arena *temporary = lm_arena_create();
  cuda_mix_text e = emit_begin(&x, &o->target, temporary);
  cuda_code *c = cuda_code_make(arena, 2 * (int)x.rows);
  lm_buf body = {0};
  cuda_params(&e.g, NULL, NULL, c);
  c->whole_block = true;
  lm_buf_printf(&body, "typedef %s lm_at;\nLM_POOL_DECLARE();\n", e.g.target->index);
  body_put(&e, &body);
  cuda_code_body(c, NULL, &body);
  double heads = (double)x.heads * e.counted_heads;
  *out = (lm_kernel_code){
      .space =
          {
              .fixed = x.points,
          },
      .launch =
          {
              .per_block = 1,
              .shared = e.pool,
          },
      .instructions = (double)x.points * (e.counted + heads),
  };
  out->launch.note = "a GEMM by mma.sync, one of whose factors is computed in registers";
  cuda_code_render(c, "x", arena, out);
  emit_free(&e);
  lm_arena_destroy(temporary);
}
