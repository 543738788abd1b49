// attend_vjp.c - the backward pass of attention as CUDA C.
//
// Results with the same parallel axes and direction form a section. A section has its own blocks;
// each of them accumulates one tile of positions in registers, over the tiles of the other axis and
// over the parallel axes that the results lack. No element is added to by two blocks, and the bits
// depend only on the shapes. Scores are computed once in each section.
//
//   p = e^(x - lse)   dp = do v   g = p (factor dp - sum do o)
//   over s:  dq += ds k               rows are positions of t
//   over t:  dv += p do, dk += ds q   rows are positions of s
//
// If the sums of a section do not fit into the registers of a thread, as of heads of 256 elements,
// each of them is a section.
#include <string.h>
#include "codegen/cuda/attend.h"

static lm_type result_type(const cuda_attend *e, int i) {
  return e->f.op->out[e->f.sums[i].result]->type;
}

typedef struct section {
  bool over_s;
  lm_axis axes[LM_RANK];
  lm_axis rest[LM_RANK];
  int n_axes;
  int n_rest;
  int64_t points;
  int alone; // the only sum of the section; -1: all with the same axes and direction
} section;

static section axes_of(const cuda_attend *e, int i) {
  section s = {
      .over_s = e->f.sums[i].rows,
      .points = 1,
      .alone = -1,
  };
  for (int k = 0; k < e->f.parallel.n; k++) {
    lm_axis a = e->f.parallel.axis[k];
    if (!cuda_attend_has(result_type(e, i), a)) {
      s.rest[s.n_rest++] = a;
      continue;
    }
    s.axes[s.n_axes++] = a;
    s.points *= lm_axis_size(e->f.m, a);
  }
  return s;
}

static bool same_section(const section *x, const section *y) {
  return x->over_s == y->over_s && x->n_axes == y->n_axes && x->alone == y->alone &&
         !memcmp(x->axes, y->axes, (size_t)x->n_axes * sizeof *x->axes);
}

// A thread has half as many sums as a row has elements.
static section section_of(const cuda_attend *e, int i) {
  enum {
    MOST = 320 // elements of all sums
  };
  section s = axes_of(e, i);
  int64_t elements = 0;
  for (int k = 0; k < e->f.n_sums; k++) {
    section other = axes_of(e, k);
    if (e->f.sums[k].other >= 0 && same_section(&s, &other))
      elements += cuda_attend_width(e->f.sums[k].channels.size);
  }
  s.alone = elements > MOST ? i : -1;
  return s;
}

static bool in_section(const cuda_attend *e, const section *s, int i) {
  section other = section_of(e, i);
  return same_section(s, &other);
}

// ---- a tile

// The number of the tile that sum i reads: sums of the same value share a tile.
static int tile_of(const cuda_attend *e, int i) {
  int k = 0;
  while (e->f.sums[k].tile != e->f.sums[i].tile)
    k++;
  return k;
}

static bool tile_wanted(const cuda_attend *e, const section *s, int k) {
  for (int i = 0; i < e->f.n_sums; i++)
    if (tile_of(e, i) == k && in_section(e, s, i))
      return true;
  return false;
}

// The tile of sum k is out_c times the returned value; NULL for the weights. Casts to bf16 or
// f16 happen when the tile is packed.
static const lm_value *tile_value(const cuda_attend *e, int k, double *out_c) {
  const lm_value *v = e->f.sums[k].tile;
  *out_c = 1;
  if (!e->half || !v)
    return v;
  if (v->def && v->def->code == LM_OP_CAST && v->type.dtype == e->half &&
      v->def->in[0]->type.dtype == LM_F32)
    v = v->def->in[0];
  return cuda_attend_unscaled(v, out_c);
}

static uint32_t of_axis(const cuda_attend *e, const lm_attend_dot *p, lm_axis a) {
  return cuda_attend_has(e->f.op->in[p->row]->type, a) ? p->row : p->col;
}

static uint32_t value_side(const cuda_attend *e, lm_axis a) {
  return a == e->f.s ? LM_ATTEND_V : LM_ATTEND_DO;
}

// ---- elements: q = e^(x - lse), 0 where masked; weights w = q, or a share for each position of a
// query that is entirely masked; g = q (dp - delta); and the tiles to be summed

// True if only g is summed apart from the weights: then exponentials need not wait for dp, nor the
// sums of weights for g.
static bool can_pipeline(const cuda_attend *e, const section *s) {
  bool plain = e->warpgroups && !e->f.factor;
  for (int i = 0; i < e->f.n_sums; i++) {
    double c;
    const lm_value *tile = tile_value(e, i, &c);
    if (in_section(e, s, i))
      plain = plain && e->f.sums[i].other >= 0 && (!tile || tile == e->f.op->body->args[0]);
  }
  return plain;
}

// True if there are registers for more than the sums: heads have 64 elements, and scores are dots
// with at most a constant factor.
static bool has_registers(const cuda_attend *e, const section *s) {
  const lm_value *x = e->score;
  if (x->def && x->def->code == LM_OP_CAST)
    x = x->def->in[0];
  return can_pipeline(e, s) && lm_attend_dot_of(&e->f, x) && e->f.v_channels.size <= 64 &&
         e->f.dots[0].over.size <= 64;
}

static const char *factor_text(cuda_attend *e, const char *x) {
  return e->f.factor
             ? lm_arena_printf(e->g.arena, "%s * %s", x, lm_attend_value(&e->values, e->f.factor))
             : x;
}

static void weights_write(cuda_attend *e, const section *s) {
  const char *neg_lse = s->over_s ? "neg_lse[r]" : "neg_lse";
  if (!s->over_s)
    cuda_attend_query_col(e);
  if (e->half)
    lm_buf_printf(&e->by_element,
                  "const float q = lm_exp2_approx(LM_FMA(x[n][2 * r + c], %s, %s));\n",
                  cuda_attend_log2(e), neg_lse);
  else
    lm_buf_printf(&e->by_element, "const float q = lm_exp_f32(x[n][2 * r + c] + %s);\n", neg_lse);
  lm_buf_printf(&e->by_element, "const float w = %s;\n(void)w;\n", factor_text(e, "q"));
}

static void gradients_write(cuda_attend *e, const section *s) {
  e->values.text[e->f.op->body->args[0]->id] = "g";
  lm_buf_printf(&e->by_element, "const float g = q * (%s - %s);\n(void)g;\n",
                factor_text(e, "d[n][2 * r + c]"), s->over_s ? "delta[r]" : "delta");
  for (int k = 0; k < e->f.n_sums; k++) {
    double c;
    const lm_value *tile = tile_value(e, k, &c);
    if (tile_of(e, k) == k && tile && tile_wanted(e, s, k))
      lm_buf_printf(&e->by_element, "z%d[n][2 * r + c] = %s;\n", k,
                    lm_attend_value(&e->values, tile));
  }
}

// z = x plus the share: only in tiles with masked elements.
static void shares_add(cuda_attend *e, lm_buf *b, const section *s, const char *z, const char *x) {
  if (!s->over_s)
    cuda_attend_query_col(e);
  const char *share = factor_text(e, s->over_s ? "share[r]" : "share");
  const char *inside = cuda_attend_inside(e);
  const char *at = "[n][2 * r + c]";
  cuda_attend_loops(e, b,
                    lm_arena_printf(e->g.arena, "%s%s = %s%s + (%s ? %s : 0.0f);\n", z, at, x, at,
                                    inside ? inside : "true", share));
}

static bool sums_gradients(const cuda_attend *e, const section *s) {
  for (int i = 0; i < e->f.n_sums; i++)
    if (e->f.sums[i].tile && in_section(e, s, i))
      return true;
  return false;
}

// The tile of weights; -1 if the section does not sum it.
static int weights_tile(const cuda_attend *e, const section *s) {
  for (int k = 0; k < e->f.n_sums; k++)
    if (tile_of(e, k) == k && !e->f.sums[k].tile && tile_wanted(e, s, k))
      return k;
  return -1;
}

static void z_declare(cuda_attend *e, lm_buf *b, int k) {
  lm_buf_printf(b, "float z%d[%d][4];\n", k, e->cols / 8);
}

// ---- GEMMs

// GEMMs in flight.
typedef struct inflight {
  const char *name[LM_ATTEND_PARTS];
  int64_t width[LM_ATTEND_PARTS];
  int n;
} inflight;

static void inflight_add(inflight *x, const char *name, int64_t width) {
  x->name[x->n] = name;
  x->width[x->n++] = width;
}

// Issues the GEMMs of a tile: of the weights, or of g.
static void sums(cuda_attend *e, lm_buf *b, const section *s, bool weights, inflight *under_way) {
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *x = &e->f.sums[i];
    if (!in_section(e, s, i) || weights != !x->tile)
      continue;
    const char *z = lm_arena_printf(e->g.arena, "z%d", tile_of(e, i));
    const char *c = lm_arena_printf(e->g.arena, "c%d", i);
    if (x->other >= 0) {
      cuda_attend_weighted(e, b, c, z, (uint32_t)x->other, x->channels.size);
      inflight_add(under_way, c, x->channels.size);
      continue;
    }
    lm_buf_printf(b,
                  "LM_UNROLL\nfor (int32_t n = 0; n < %d; n++) {\n%s[0] += %s[n][0] + "
                  "%s[n][1];\n%s[1] += %s[n][2] + %s[n][3];\n}\n",
                  e->cols / 8, c, z, z, c, z, z);
  }
}

static void inflight_wait(cuda_attend *e, lm_buf *b, const inflight *x, int left) {
  cuda_attend_gemms_wait(e, b, left, x->n, x->name, x->width);
}

// Packs x = q as weights; with shares, from a copy that lives only for that purpose.
static void weights_pack(cuda_attend *e, lm_buf *b, const section *s, int k) {
  const char *part = e->f.mask ? cuda_attend_in_part(e) : NULL;
  const char *z = lm_arena_printf(e->g.arena, "z%d", k);
  lm_buf_printf(b, "uint32_t %s_bf16[%d][4];\n", z, e->cols / 16);
  if (part) {
    lm_buf_printf(b, "if (%s) {\n", part);
    z_declare(e, b, k);
    shares_add(e, b, s, z, "x");
    lm_buf_printf(b, "LM_GROUP_PACK(%s_bf16, %s, %d)\n} else {\n", z, z, e->cols);
  }
  lm_buf_printf(b, part ? "LM_GROUP_PACK(%s_bf16, x, %d)\n}\n" : "LM_GROUP_PACK(%s_bf16, x, %d)\n",
                z, e->cols);
}

static void gradients_pack(cuda_attend *e, lm_buf *b, const section *s) {
  for (int k = 0; k < e->f.n_sums; k++)
    if (tile_of(e, k) == k && e->f.sums[k].tile && tile_wanted(e, s, k))
      cuda_attend_pack(e, b, lm_arena_printf(e->g.arena, "z%d", k));
}

static void gradient_tiles_declare(cuda_attend *e, lm_buf *b, const section *s) {
  for (int k = 0; k < e->f.n_sums; k++)
    if (tile_of(e, k) == k && e->f.sums[k].tile && tile_wanted(e, s, k))
      z_declare(e, b, k);
}

// Scores first, which become q in place; the sums of weights are then in flight while g is computed
// from dp.
static void pipelined(cuda_attend *e, lm_buf *b, const section *s, const inflight *scores,
                      const inflight *dp) {
  inflight under_way = {0};
  int w = weights_tile(e, s);
  inflight_wait(e, b, scores, 1);
  cuda_attend_scores(e, b);
  weights_write(e, s);
  cuda_attend_loops(e, b, "x[n][2 * r + c] = q;\n");
  if (w >= 0)
    weights_pack(e, b, s, w);
  sums(e, b, s, true, &under_way);
  inflight_wait(e, b, dp, under_way.n);
  if (!s->over_s)
    cuda_attend_query_col(e);
  gradient_tiles_declare(e, b, s);
  lm_buf_puts(&e->by_element, "const float q = x[n][2 * r + c];\n");
  gradients_write(e, s);
  cuda_attend_loops(e, b, "");
  gradients_pack(e, b, s);
  sums(e, b, s, false, &under_way);
  inflight_wait(e, b, &under_way, 0);
}

// Computes all elements after all scores and dp are complete: with factors, which are expensive to
// compute twice, or if values other than g are summed.
static void unpipelined(cuda_attend *e, lm_buf *b, const section *s, const inflight *scores,
                        const inflight *dp) {
  inflight both = *scores, under_way = {0};
  int w = weights_tile(e, s);
  const char *z = lm_arena_printf(e->g.arena, "z%d", w);
  const char *part = e->f.mask && w >= 0 ? cuda_attend_in_part(e) : NULL;
  for (int i = 0; i < dp->n; i++)
    inflight_add(&both, dp->name[i], dp->width[i]);
  inflight_wait(e, b, &both, 0);
  if (w >= 0)
    z_declare(e, b, w);
  gradient_tiles_declare(e, b, s);
  cuda_attend_scores(e, b);
  weights_write(e, s);
  if (w >= 0)
    lm_buf_printf(&e->by_element, "%s[n][2 * r + c] = w;\n", z);
  if (sums_gradients(e, s))
    gradients_write(e, s);
  cuda_attend_loops(e, b, "");
  if (part) {
    lm_buf_printf(b, "if (%s) {\n", part);
    shares_add(e, b, s, z, z);
    lm_buf_puts(b, "}\n");
  }
  if (w >= 0)
    cuda_attend_pack(e, b, z);
  // Packing halves the registers of the elements before the GEMMs begin.
  gradients_pack(e, b, s);
  sums(e, b, s, true, &under_way);
  sums(e, b, s, false, &under_way);
  inflight_wait(e, b, &under_way, 0);
}

static void dots(cuda_attend *e, lm_buf *b, const section *s) {
  inflight scores = {0}, dp = {0};
  for (int i = 0; i < e->f.n_dots; i++) {
    const lm_attend_dot *p = &e->f.dots[i];
    const char *name = lm_arena_printf(e->g.arena, "p%d", i);
    cuda_attend_dot(e, b, name, of_axis(e, p, e->values.row), of_axis(e, p, e->values.col),
                    p->over.size);
    inflight_add(&scores, name, e->cols);
  }
  if (sums_gradients(e, s)) {
    cuda_attend_dot(e, b, "d", value_side(e, e->values.row), value_side(e, e->values.col),
                    e->f.v_channels.size);
    inflight_add(&dp, "d", e->cols);
  }
  (can_pipeline(e, s) ? pipelined : unpipelined)(e, b, s, &scores, &dp);
}

static void tile_backward(cuda_attend *e, lm_buf *b, const section *s) {
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_dots; i++)
    cuda_attend_fill(e, b, of_axis(e, &e->f.dots[i], e->values.col), &e->f.dots[i].over);
  cuda_attend_fill(e, b, value_side(e, e->values.col), &e->f.v_channels);
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i) && e->f.sums[i].other >= 0)
      cuda_attend_fill(e, b, (uint32_t)e->f.sums[i].other, &e->f.sums[i].channels);
  if (!s->over_s)
    cuda_attend_query_cols(e, b);
  cuda_attend_fills_wait(e, b);
  dots(e, b, s);
}

// ---- a section

static void accumulators(cuda_attend *e, lm_buf *b, const section *s) {
  for (int i = 0; i < e->f.n_sums; i++) {
    if (!in_section(e, s, i))
      continue;
    if (e->f.sums[i].other < 0)
      lm_buf_printf(b, "float c%d[2] = {0};\n", i);
    else
      lm_buf_printf(b, "float c%d[%lld][4] = {{0}};\n", i,
                    (long long)cuda_attend_width(e->f.sums[i].channels.size) / 8);
  }
}

static const char *scale_text(cuda_attend *e, int i) {
  double c;
  tile_value(e, i, &c);
  return c == 1 ? ""
                : lm_arena_printf(e->g.arena, " * %s", lm_gen_const_text(e->g.arena, LM_F32, c));
}

static void store(cuda_attend *e, lm_buf *b, int i) {
  const lm_attend_sum *s = &e->f.sums[i];
  const char *scale = scale_text(e, i);
  if (s->other >= 0) {
    cuda_attend_row_store(e, b, s->result, &s->channels, lm_arena_printf(e->g.arena, "c%d", i),
                          scale, "inside");
    return;
  }
  lm_type t = result_type(e, i);
  lm_buf at = {0};
  cuda_attend_offset(e, &at, t, NULL, "row", "row");
  lm_buf_printf(
      b,
      "const float s%d = lm_row_sum(c%d[r])%s;\nif (inside && lm_thread() %% 4 == 0) r%u[%s] = "
      "%s;\n",
      i, i, scale, s->result, lm_gen_take(&e->g, &at),
      lm_gen_store_text(e->g.arena, (lm_dtype)t.dtype, lm_arena_printf(e->g.arena, "s%d", i)));
}

static void stores(cuda_attend *e, lm_buf *b, const section *s) {
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst lm_at row = row0 + "
                "lm_frag_row(r);\nconst bool inside = row < %s;\n",
                cuda_attend_extent(e, e->values.row));
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i) && !e->f.sums[i].epilogue)
      store(e, b, i);
  lm_buf_puts(b, "}\n");
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i) && e->f.sums[i].epilogue)
      cuda_attend_epilogue(e, b, &e->f.sums[i], lm_arena_printf(e->g.arena, "c%d", i),
                           scale_text(e, i));
}

static bool sums_points(const cuda_attend *e, const section *s) {
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i) && cuda_attend_sums_points(&e->f.sums[i]))
      return true;
  return false;
}

static void row_tiles(cuda_attend *e, lm_buf *b, const section *s) {
  if (s->n_rest)
    lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_dots; i++)
    cuda_attend_fill(e, b, of_axis(e, &e->f.dots[i], e->values.row), &e->f.dots[i].over);
  if (sums_gradients(e, s))
    cuda_attend_fill(e, b, value_side(e, e->values.row), &e->f.v_channels);
}

static void loops(cuda_attend *e, lm_buf *b, const section *s) {
  for (int i = 0; i < s->n_rest; i++) {
    const char *name = lm_attend_coordinate(&e->values, s->rest[i]);
    lm_buf_printf(b, "for (lm_at %s = 0; %s < %s; %s++) {\n", name, name,
                  cuda_attend_extent(e, s->rest[i]), name);
  }
}

static void work_of(const cuda_attend *e, lm_axis row, lm_axis col, cuda_attend_work *w) {
  for (int i = 0; i < e->f.n_dots; i++) {
    cuda_attend_work_side(w->row, &w->n_row, of_axis(e, &e->f.dots[i], row), &e->f.dots[i].over);
    cuda_attend_work_side(w->col, &w->n_col, of_axis(e, &e->f.dots[i], col), &e->f.dots[i].over);
  }
  cuda_attend_work_side(w->row, &w->n_row, value_side(e, row), &e->f.v_channels);
  cuda_attend_work_side(w->col, &w->n_col, value_side(e, col), &e->f.v_channels);
}

// Adds a section by warpgroups: of each item `first`, then the tiles for each point of the axes
// that it sums over, then `last`.
static void section_groups(cuda_attend *e, const section *s) {
  lm_buf decode = {0};
  lm_buf around = {0};
  lm_buf first = {0};
  lm_buf rows = {0};
  lm_buf tile = {0};
  lm_buf last = {0};
  lm_buf cols = {0};
  lm_buf held = {0};
  cuda_attend_work w = {
      .n_streams = 1,
      .n_loops = s->n_rest,
      .slots = cuda_attend_widest(&e->f) > CUDA_WARPGROUP_COLS ? 1 : 2,
      .holds_all = has_registers(e, s) && !s->over_s,
  };
  work_of(e, e->values.row, e->values.col, &w);
  cuda_attend_warpgroups_pools(e, &w);
  cuda_attend_rows_hold(e, &held, &w, w.holds_all ? w.n_row : has_registers(e, s));
  if (sums_points(e, s))
    lm_buf_puts(&decode, "const lm_at chunk = at;\n(void)chunk;\n");
  w.n = cuda_attend_rows_begin(e, &decode, s->axes, s->n_axes, s->points);
  if (!s->over_s)
    cuda_attend_query_cols(e, &cols);
  dots(e, &tile, s);
  loops(e, &around, s);
  accumulators(e, &first, s);
  lm_buf_add(&rows, e->point.p ? e->point.p : "", e->point.n);
  cuda_attend_rows(e, &rows);
  if (s->over_s)
    cuda_attend_query_rows(e, &rows);
  stores(e, &last, s);
  w.decode = decode.p;
  w.loops = around.n ? around.p : "";
  w.per_tile = cols.n ? cols.p : "";
  w.first = first.p;
  w.held = held.n ? held.p : "";
  w.rows = rows.n ? rows.p : "";
  w.tile = tile.p;
  w.last = last.p;
  cuda_attend_warpgroups_add(e, &w, NULL);
  lm_buf *used[] = {&decode, &around, &first, &rows, &tile, &last, &cols, &held};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
}

static void section_tiles(cuda_attend *e, lm_buf *text, const section *s) {
  lm_buf tile = {0};
  lm_buf fills = {0};
  row_tiles(e, &fills, s);
  tile_backward(e, &tile, s);
  accumulators(e, text, s);
  loops(e, text, s);
  if (e->point.n)
    lm_buf_add(text, e->point.p, e->point.n);
  cuda_attend_rows(e, text);
  if (s->over_s)
    cuda_attend_query_rows(e, text);
  lm_buf_add(text, fills.p, fills.n);
  lm_buf_printf(text, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n",
                cuda_attend_extent(e, e->values.col), e->cols);
  lm_buf_add(text, tile.p, tile.n);
  for (int i = 0; i <= s->n_rest; i++)
    lm_buf_puts(text, "}\n");
  stores(e, text, s);
  lm_buf_free(&tile);
  lm_buf_free(&fills);
}

// Returns the number of blocks of the section; `at` counts them in the text.
static int64_t section_put(cuda_attend *e, lm_buf *b, const section *s) {
  lm_buf text = {0};
  int64_t blocks = cuda_attend_rows_begin(e, &text, s->axes, s->n_axes, s->points);
  section_tiles(e, &text, s);
  lm_buf_printf(b, "if (at < %lld) {\n", (long long)blocks);
  cuda_attend_section_put(e, &text, b);
  lm_buf_printf(b, "return;\n}\nat -= %lld;\n", (long long)blocks);
  lm_buf_free(&text);
  return blocks;
}

// True if sum i is the first one of its section.
static bool begins_section(const cuda_attend *e, int i, const section *s) {
  for (int k = 0; k < i; k++)
    if (in_section(e, s, k))
      return false;
  return true;
}

int64_t cuda_attend_backward(cuda_attend *e, lm_buf *b) {
  int64_t blocks = 0;
  bool per_tile = false;
  if (!e->warpgroups)
    lm_buf_puts(b, "lm_at at = block;\n");
  for (int i = 0; i < e->f.n_sums; i++) {
    section s = section_of(e, i);
    if (!begins_section(e, i, &s))
      continue;
    if (e->warpgroups)
      e->cols = s.over_s && has_registers(e, &s) ? 2 * CUDA_WARPGROUP_COLS : CUDA_WARPGROUP_COLS;
    per_tile |= !s.over_s;
    cuda_attend_section_begin(e, !s.over_s);
    if (e->warpgroups)
      section_groups(e, &s);
    else
      blocks += section_put(e, b, &s);
  }
  return e->warpgroups ? cuda_attend_warpgroups_put(e, b, per_tile) : blocks;
}

// Why the section cannot use wgmma; NULL if wgmma reads the tiles of every operand and the tiles of
// a block's rows are the same at all points that it sums over.
static const char *section_why(cuda_attend *e, const section *s) {
  lm_axis row = s->over_s ? e->f.t : e->f.s;
  lm_axis col = s->over_s ? e->f.s : e->f.t;
  const char *why = NULL;
  cuda_attend_work w = {0};
  work_of(e, row, col, &w);
  for (int i = 0; i < w.n_row; i++)
    for (int k = 0; k < s->n_rest; k++)
      if (cuda_attend_has(e->f.op->in[w.row[i].k]->type, s->rest[k]))
        return "keys that change along the axes that they are summed over";
  for (int i = 0; !why && i < w.n_row; i++)
    why = cuda_attend_warpgroups_tile_why(e, w.row[i].k, w.row[i].channels);
  for (int i = 0; !why && i < w.n_col; i++)
    why = cuda_attend_warpgroups_tile_why(e, w.col[i].k, w.col[i].channels);
  return why || lm_axis_size(e->f.m, row) > CUDA_WARPGROUP_ROWS / 2 ? why : "64 positions or less";
}

// True if the operand of sum i already has tiles, as an operand of a dot.
static bool has_side(const cuda_attend *e, const section *s, int i) {
  const lm_attend_sum *x = &e->f.sums[i];
  lm_axis col = s->over_s ? e->f.s : e->f.t;
  return x->other < 0 || (uint32_t)x->other == value_side(e, col) ||
         (uint32_t)x->other == of_axis(e, &e->f.dots[0], col);
}

const char *cuda_attend_warpgroups_backward_why(cuda_attend *e) {
  const char *why = e->half != LM_BF16 ? "operands that are not bf16"
                    : e->f.n_dots != 1 ? "scores of several dots"
                                       : NULL;
  for (int i = 0; !why && i < e->f.n_sums; i++) {
    section s = section_of(e, i);
    why = has_side(e, &s, i) ? section_why(e, &s) : "sums of other operands";
  }
  return why;
}
