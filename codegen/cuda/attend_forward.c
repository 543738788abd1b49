// attend_forward.c - the forward pass of attention as CUDA C. The backward pass and kernels with
// wgmma use its parts: sections, the rows of a block, scores, the softmax.
//
// A block computes one tile of t at one point of the parallel axes. For each tile of s that is not
// masked (Milakov & Gimelshein 2018, Dao et al. 2022):
//
//   x = score (-1e30 where masked)
//   m' = max(m, max x)
//   l = l e^(m - m') + sum e^(x - m')
//   o = o e^(m - m') + e^(x - m') v
//
// and at the end o / l and m + log l. With bf16 tiles x and m are the score without its constant
// factor c, and e^(c (x - m)) = 2^(c log2(e) x - c log2(e) m): one multiply-add before the
// exponential. The last tiles of t, and the first tiles of s in the backward pass, are scheduled
// first: under causal masks they take longest, and a multiprocessor that finishes early then finds
// short ones left. As many points of the parallel axes as fit in the cache are interleaved.
#include "codegen/cuda/attend.h"
#include <math.h>
#include <string.h>

// ---- sections

void cuda_attend_section_begin(cuda_attend *e, bool rows_are_s) {
  e->values.row = rows_are_s ? e->f.s : e->f.t;
  e->values.col = rows_are_s ? e->f.t : e->f.s;
  e->pool = 0;
  e->declare.n = e->point.n = e->by_row.n = e->by_pair.n = e->by_col.n = e->by_element.n = 0;
  e->values.n_local = 0;
  memset(e->values.text, 0, (e->f.m->n_values + 1) * sizeof *e->values.text);
  memset(e->has_tile, 0, (e->f.op->n_in + 1) * sizeof *e->has_tile);
}

void cuda_attend_section_put(cuda_attend *e, const lm_buf *text, lm_buf *out) {
  if (e->declare.n)
    lm_buf_add(out, e->declare.p, e->declare.n);
  lm_buf_add(out, text->p, text->n);
}

// Decodes `at` into the given axes, the last varying fastest.
static void coordinates(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n) {
  for (int i = n - 1; i >= 0; i--) {
    const char *extent = cuda_attend_extent(e, axes[i]);
    lm_buf_printf(b, "const lm_at %s = at %% %s;\nat /= %s;\n",
                  lm_attend_coordinate(&e->values, axes[i]), extent, extent);
  }
}

// ---- forward

// The score of masked elements, in units of x. It is a power of 2, so that the multiply-add of an
// exponent gives 0 in rows that are entirely masked.
static const char *low_text(const cuda_attend *e) {
  return lm_gen_const_text(e->g.arena, LM_F32,
                           e->half ? -exp2(floor(log2(1e30 / e->scale))) : -1e30);
}

const char *cuda_attend_in_part(cuda_attend *e) {
  const char *part = e->f.mask ? (e->f.tile_t ? "!full" : "true") : NULL;
  if (!cuda_attend_inside(e))
    return part;
  const char *edge =
      lm_arena_printf(e->g.arena, "col0 + %d > %s", e->cols, cuda_attend_extent(e, e->values.col));
  return part ? lm_arena_printf(e->g.arena, "%s || %s", part, edge) : edge;
}

void cuda_attend_scores(cuda_attend *e, lm_buf *b) {
  const char *inside = cuda_attend_inside(e);
  const char *part = cuda_attend_in_part(e);
  const char *seen = "x[n][2 * r + c]";
  lm_buf_printf(b, "float x[%d][4];\n", e->cols / 8);
  cuda_attend_loops(e, b,
                    lm_arena_printf(e->g.arena, "x[n][2 * r + c] = %s;\n",
                                    lm_attend_value(&e->values, e->score)));
  if (!part)
    return;
  if (e->f.mask)
    seen = lm_arena_printf(e->g.arena, "(%s ? %s : %s)", lm_attend_value(&e->values, e->f.mask),
                           seen, low_text(e));
  if (inside)
    seen = lm_arena_printf(e->g.arena, "%s ? %s : -__builtin_inff()", inside, seen);
  lm_buf_printf(b, "if (%s) {\n", part);
  cuda_attend_loops(e, b, lm_arena_printf(e->g.arena, "x[n][2 * r + c] = %s;\n", seen));
  lm_buf_puts(b, "}\n");
}

const char *cuda_attend_log2(const cuda_attend *e) {
  return lm_gen_const_text(e->g.arena, LM_F32, e->scale * 1.4426950408889634);
}

// change = e^(m - m'); sum is scaled by it; x = weights.
static void weights(cuda_attend *e, lm_buf *b) {
  const char *unit = cuda_attend_log2(e);
  const char *factor =
      e->f.factor ? lm_arena_printf(e->g.arena, " * %s", lm_attend_value(&e->values, e->f.factor))
                  : "";
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nmost[r] = lm_row_max(most[r]);\n");
  bool rounds = lm_attend_rounds(e->f.op);
  if (e->half && rounds)
    lm_buf_printf(b,
                  "least[r] = -lm_whole(most[r], %s);\n"
                  "change[r] = lm_exp2_approx(lm_whole(top[r], %s) + least[r]);\n",
                  unit, unit);
  else if (rounds)
    lm_buf_puts(b, "least[r] = -lm_binade_of(most[r]);\n"
                   "change[r] = lm_exp_f32(lm_binade_of(top[r]) + least[r]);\n");
  else if (e->half)
    lm_buf_printf(
        b, "change[r] = lm_exp2_approx((top[r] - most[r]) * %s);\nleast[r] = -most[r] * %s;\n",
        unit, unit);
  else
    lm_buf_puts(b, "change[r] = lm_exp_f32(top[r] - most[r]);\n");
  lm_buf_puts(b, "top[r] = most[r];\nsum[r] *= change[r];\n}\n");
  const char *p =
      e->half ? lm_arena_printf(e->g.arena, "lm_exp2_approx(LM_FMA(x[n][2 * r + c], %s, least[r]))",
                                unit)
      : rounds ? "lm_exp_f32(x[n][2 * r + c] + least[r])"
               : "lm_exp_f32(x[n][2 * r + c] - top[r])";
  const char *weight = rounds ? "lm_weight_e4m3(p)" : "p";
  cuda_attend_loops(e, b,
                    lm_arena_printf(e->g.arena,
                                    "const float p = %s;\nsum[r] += p;\nx[n][2 * r + c] = %s%s;\n",
                                    p, weight, factor));
}

void cuda_attend_softmax(cuda_attend *e, lm_buf *b) {
  cuda_attend_scores(e, b);
  bool least = e->half || lm_attend_rounds(e->f.op);
  lm_buf_printf(b, "float most[2] = {top[0], top[1]}, change[2]%s;\n", least ? ", least[2]" : "");
  cuda_attend_loops(e, b, "most[r] = lm_max_f32(most[r], x[n][2 * r + c]);\n");
  weights(e, b);
}

void cuda_attend_rescale(lm_buf *b, long long width) {
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++)\nLM_UNROLL\nfor (int32_t k = 0; k < "
                "4; k++) o[i][k] *= change[k / 2];\n",
                width / 8);
}

static void tile_forward(cuda_attend *e, lm_buf *b, long long width) {
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_dots; i++)
    cuda_attend_fill(e, b, e->f.dots[i].col, &e->f.dots[i].over);
  cuda_attend_fill(e, b, LM_ATTEND_V, &e->f.v_channels);
  cuda_attend_fills_wait(e, b);
  for (int i = 0; i < e->f.n_dots; i++) {
    const lm_attend_dot *p = &e->f.dots[i];
    cuda_attend_dot(e, b, lm_arena_printf(e->g.arena, "p%d", i), p->row, p->col, p->over.size);
  }
  cuda_attend_softmax(e, b);
  cuda_attend_rescale(b, width);
  cuda_attend_weighted(e, b, "o", "x", LM_ATTEND_V, e->f.v_channels.size);
}

void cuda_attend_results(cuda_attend *e, lm_buf *b) {
  lm_type lse = e->f.op->out[1]->type;
  lm_buf at = {0};
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst float all = "
                 "lm_row_sum(sum[r]), part = 1.0f / all;\n");
  lm_buf_printf(b, "const lm_at row = row0 + lm_frag_row(r);\nif (row >= %s) continue;\n",
                cuda_attend_extent(e, e->values.row));
  cuda_attend_offset(e, &at, lse, NULL, "row", "");
  const char *top = "top[r]";
  if (lm_attend_rounds(e->f.op) && !e->half)
    top = "lm_binade_of(top[r])";
  else if (lm_attend_rounds(e->f.op))
    top =
        lm_arena_printf(e->g.arena, "(top[r] > %s ? lm_whole(top[r], %s) * 0x1.62e43p-1f : -1e30f)",
                        low_text(e), cuda_attend_log2(e));
  else if (e->scale != 1)
    top = lm_arena_printf(e->g.arena, "(top[r] > %s ? top[r] * %s : -1e30f)", low_text(e),
                          lm_gen_const_text(e->g.arena, LM_F32, e->scale));
  lm_buf_printf(b, "if (lm_thread() %% 4 == 0) r1[%s] = %s + lm_log(all);\n",
                lm_gen_take(&e->g, &at), top);
  cuda_attend_row_store(e, b, 0, &e->f.v_channels, "o", " * part", "true");
  lm_buf_puts(b, "}\n");
}

// The bytes that all blocks of one point of the parallel axes read: one operand of the scores and
// one of the sums.
static int64_t common_bytes(const cuda_attend *e) {
  return lm_axis_size(e->f.m, e->values.col) *
         (e->f.v_channels.size + (e->f.n_dots ? e->f.dots[0].over.size : 0)) * (e->half ? 2 : 4);
}

int64_t cuda_attend_rows_begin(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n,
                               int64_t points) {
  long long tiles = (lm_axis_size(e->f.m, e->values.row) + e->rows - 1) / e->rows;
  long long cached_points = (16 << 20) / common_bytes(e);
  long long all = points;
  const char *tile = e->values.row == e->f.t
                         ? lm_arena_printf(e->g.arena, "(%lld - at / wide)", tiles - 1)
                         : "at / wide";
  if (cached_points < 1)
    cached_points = 1;
  if (cached_points >= all)
    lm_buf_printf(b, "const lm_at first = 0, wide = %lld;\n", all);
  else
    lm_buf_printf(b,
                  "const lm_at first = at / %lld * %lld, wide = lm_min_index(%lld, %lld - first + "
                  "1);\nat %%= %lld;\n",
                  cached_points * tiles, cached_points, cached_points, all, cached_points * tiles);
  lm_buf_printf(b, "const lm_at row0 = %s * %d;\nat = first + at %% wide;\n", tile, e->rows);
  coordinates(e, b, axes, n);
  if (!e->warpgroups)
    lm_buf_printf(b, "if (row0 >= %s) return;\n", cuda_attend_extent(e, e->values.row));
  return points * tiles;
}

int64_t cuda_attend_forward_begin(cuda_attend *e, lm_buf *b) {
  lm_buf_puts(b, "lm_at at = block;\n");
  int64_t blocks =
      cuda_attend_rows_begin(e, b, e->f.parallel.axis, e->f.parallel.n, e->f.parallel.size);
  if (e->point.n)
    lm_buf_add(b, e->point.p, e->point.n);
  return blocks;
}

void cuda_attend_sums_begin(lm_buf *b, long long width) {
  lm_buf_printf(
      b,
      "float top[2] = {-__builtin_inff(), -__builtin_inff()}, sum[2] = {0}, o[%lld][4] = {{0}};\n",
      width / 8);
}

int64_t cuda_attend_forward(cuda_attend *e, lm_buf *b) {
  long long width = cuda_attend_width(e->f.v_channels.size);
  lm_buf tile = {0};
  lm_buf text = {0};
  cuda_attend_section_begin(e, false);
  for (int i = 0; i < e->f.n_dots; i++)
    cuda_attend_fill(e, &text, e->f.dots[i].row, &e->f.dots[i].over);
  tile_forward(e, &tile, width);
  int64_t blocks = cuda_attend_forward_begin(e, b);
  cuda_attend_rows(e, &text);
  cuda_attend_sums_begin(&text, width);
  lm_buf_printf(&text, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n",
                cuda_attend_extent(e, e->values.col), e->cols);
  lm_buf_add(&text, tile.p, tile.n);
  lm_buf_puts(&text, "}\n");
  cuda_attend_results(e, &text);
  cuda_attend_section_put(e, &text, b);
  lm_buf_free(&tile);
  lm_buf_free(&text);
  return blocks;
}
