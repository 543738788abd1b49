// attend_vjp.c - the backward direction of attention as CUDA C.
//
// Results with the same outer axes and direction are a section: blocks of their own, each of which
// sums up one tile of places in registers, over tiles of the other axis and over the outer axes
// that the results lack. So nothing is added by two blocks, and bits depend on nothing but the
// shapes; scores are computed once a section.
//
//   p = e^(x - lse)   dp = do v   g = p (factor dp - sum do o)
//   over s:  dq += ds k, rows are places of t        over t:  dv += p do, dk += ds q, rows are
//   places of s
#include <string.h>
#include "codegen/cuda/attend.h"

static const char *text_of(cuda_attend *e, lm_buf *b) {
  const char *text = lm_arena_strndup(e->g.arena, b->n ? b->p : "", b->n);
  lm_buf_free(b);
  return text;
}

static lm_type result_type(const cuda_attend *e, int i) {
  return e->f.op->out[e->f.sums[i].result]->type;
}

typedef struct section {
  bool over_s;
  lm_axis axes[LM_RANK], rest[LM_RANK];
  int n_axes, n_rest;
  int64_t places;
} section;

static section section_of(const cuda_attend *e, int i) {
  section s = {.over_s = e->f.sums[i].rows, .places = 1};
  for (int k = 0; k < e->f.outer.n; k++) {
    lm_axis a = e->f.outer.axis[k];
    if (!cuda_attend_has(result_type(e, i), a)) {
      s.rest[s.n_rest++] = a;
      continue;
    }
    s.axes[s.n_axes++] = a;
    s.places *= lm_axis_size(e->f.m, a);
  }
  return s;
}

static bool same_section(const section *x, const section *y) {
  return x->over_s == y->over_s && x->n_axes == y->n_axes &&
         !memcmp(x->axes, y->axes, (size_t)x->n_axes * sizeof *x->axes);
}

static bool in_section(const cuda_attend *e, const section *s, int i) {
  section other = section_of(e, i);
  return same_section(s, &other);
}

// ---- of a query: lse, the share of each place if nothing is seen, and the sum of do * o

// Four lanes to a line, which lm_row_sum then joins; in vectors where memory allows. Where the sum
// is given, that.
static const char *line_product(cuda_attend *e, const char *at) {
  lm_type o = e->f.op->in[LM_ATTEND_O]->type;
  lm_type d = e->f.op->in[LM_ATTEND_DO]->type;
  bool vector = lm_type_equal(o, d) && cuda_attend_in_runs(o, &e->f.v_own, 8) &&
                (o.dtype == LM_BF16 || o.dtype == LM_F32);
  lm_buf place = {0};
  cuda_attend_offset(e, &place, o, at, at);
  if (lm_attend_has_mean(e->f.op))
    return lm_arena_printf(e->g.arena, "dot = a%d[%s];\n", LM_ATTEND_O, text_of(e, &place));
  if (vector)
    lm_buf_puts(&place, " + j");
  else
    cuda_attend_own_offset(e, &place, o, &e->f.v_own, "j");
  const char *where = text_of(e, &place);
  const char *kind = lm_dtype_name(o.dtype);
  if (vector)
    return lm_arena_printf(e->g.arena,
                           "%sfor (int32_t j = lm_thread() %% 4 * 8; j < %lld; j += 32) {\nfloat "
                           "x[8], y[8];\nlm_load8_%s(x, a%d + (%s));\nlm_load8_%s(y, a%d + (%s));\n"
                           "LM_UNROLL\nfor (int32_t i = 0; i < 8; i++) dot += x[i] * y[i];\n}\ndot "
                           "= lm_row_sum(dot);\n",
                           e->groups ? "LM_UNROLL_1\n" : "", (long long)e->f.v_own.size, kind,
                           LM_ATTEND_O, where, kind, LM_ATTEND_DO, where);
  const char *x = lm_gen_load_text(e->g.arena, (lm_dtype)o.dtype,
                                   lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_O, where));
  const char *y = lm_gen_load_text(e->g.arena, (lm_dtype)d.dtype,
                                   lm_arena_printf(e->g.arena, "a%d[%s]", LM_ATTEND_DO, where));
  return lm_arena_printf(e->g.arena,
                         "for (int32_t j = lm_thread() %% 4; j < %lld; j += 4) dot += %s * "
                         "%s;\ndot = lm_row_sum(dot);\n",
                         (long long)e->f.v_own.size, x, y);
}

// What is added in the exponent: -lse, in powers of 2 where those are taken; to a query that sees
// nothing, what leaves 0.
static const char *far_text(cuda_attend *e, const char *at) {
  lm_buf place = {0};
  cuda_attend_offset(e, &place, e->f.op->in[LM_ATTEND_LSE]->type, at, at);
  return lm_arena_printf(e->g.arena, "lm_far(a%d[%s]) * %s", LM_ATTEND_LSE, text_of(e, &place),
                         e->half ? "1.44269504f" : "1.0f");
}

// The weight of each place of a query that sees nothing.
static const char *share_text(cuda_attend *e, const char *far) {
  return lm_arena_printf(e->g.arena, "%s < -1e38f ? 1.0f / (float)%s : 0.0f", far,
                         cuda_attend_extent(e, e->f.s));
}

// Where rows are queries: in registers, the four lanes of a row together.
static void query_rows(cuda_attend *e, lm_buf *b) {
  lm_buf_puts(b,
              "float far[2], mean[2], share[2];\nLM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\n");
  lm_buf_printf(b,
                "const lm_at row = lm_no_further(row0 + lm_frag_row(r), %s);\nfloat dot = 0.0f;\n",
                cuda_attend_extent(e, e->row));
  lm_buf_puts(b, line_product(e, "row"));
  lm_buf_printf(b, "far[r] = %s;\nmean[r] = dot;\nshare[r] = %s;\n(void)share;\n}\n",
                far_text(e, "row"), share_text(e, "far[r]"));
}

// Number of a column's place in what lies beside the tiles.
static const char *beside(const cuda_attend *e, const char *col) {
  return e->groups ? lm_arena_printf(e->g.arena, "stage * %d + %s", e->cols, col) : col;
}

// Where columns are queries: in shared memory, four lanes to a column.
static void query_cols(cuda_attend *e, lm_buf *b) {
  cuda_attend_pool(e, "float", 4, "fars", -1, (e->groups ? 2 : 1) * e->cols);
  cuda_attend_pool(e, "float", 4, "means", -1, (e->groups ? 2 : 1) * e->cols);
  lm_buf_printf(b, "%sfor (int32_t i = %s / 4; i < %d; i += %d) {\n",
                e->groups ? "LM_UNROLL_1\n" : "", e->groups ? "me" : "lm_thread()", e->cols,
                e->groups ? 32 : e->rows / 2);
  lm_buf_printf(b, "const lm_at col = lm_no_further(col0 + i, %s);\nfloat dot = 0.0f;\n",
                cuda_attend_extent(e, e->col));
  lm_buf_puts(b, line_product(e, "col"));
  lm_buf_printf(
      b, "if (lm_thread() %% 4 == 0) {\nlm_put(fars, %s, %s);\nlm_put(means, %s, dot);\n}\n}\n",
      beside(e, "i"), far_text(e, "col"), beside(e, "i"));
}

// Those of a column, where the columns are queries.
static void query_col(cuda_attend *e) {
  const char *at = beside(e, "lm_frag_col(n, c)");
  lm_buf_printf(
      &e->by_col,
      "const float far = lm_get(fars, %s), mean = lm_get(means, %s), share = %s;\n(void)share;\n",
      at, at, share_text(e, "far"));
}

// ---- a tile

// Number of the tile that sum i is of: sums of the same share one.
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

// The tile of sum k is out_c times this one; NULL: the weights. Casts to bf16 are done when it is
// packed.
static const lm_value *tile_value(const cuda_attend *e, int k, double *out_c) {
  const lm_value *v = e->f.sums[k].tile;
  *out_c = 1;
  if (!e->half || !v)
    return v;
  if (v->def && v->def->code == LM_OP_CAST && v->type.dtype == LM_BF16 &&
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

// ---- elements: q = e^(x - lse), 0 where nothing is seen; weights w = q, or a share for each place
// to a query that sees nothing; g = q (dp - mean); and the tiles to be summed

// With g alone to be summed beside the weights, exponentials need not wait for dp, nor the weights'
// sums for g.
static bool in_steps(const cuda_attend *e, const section *s) {
  bool plain = e->groups && !e->f.factor;
  for (int i = 0; i < e->f.n_sums; i++) {
    double c;
    const lm_value *tile = tile_value(e, i, &c);
    if (in_section(e, s, i))
      plain = plain && e->f.sums[i].other >= 0 && (!tile || tile == e->f.op->body->args[0]);
  }
  return plain;
}

static const char *factor_text(cuda_attend *e, const char *x) {
  return e->f.factor ? lm_arena_printf(e->g.arena, "%s * %s", x, cuda_attend_value(e, e->f.factor))
                     : x;
}

static void weights_write(cuda_attend *e, const section *s) {
  const char *far = s->over_s ? "far[r]" : "far";
  if (!s->over_s)
    query_col(e);
  if (e->half)
    lm_buf_printf(&e->by_element,
                  "const float q = lm_exp2_quick(LM_FMA(x[n][2 * r + c], %s, %s));\n",
                  cuda_attend_log2(e), far);
  else
    lm_buf_printf(&e->by_element, "const float q = lm_exp(x[n][2 * r + c] + %s);\n", far);
  lm_buf_printf(&e->by_element, "const float w = %s;\n(void)w;\n", factor_text(e, "q"));
}

static void gradients_write(cuda_attend *e, const section *s) {
  e->name[e->f.op->body->args[0]->id] = "g";
  lm_buf_printf(&e->by_element, "const float g = q * (%s - %s);\n(void)g;\n",
                factor_text(e, "d[n][2 * r + c]"), s->over_s ? "mean[r]" : "mean");
  for (int k = 0; k < e->f.n_sums; k++) {
    double c;
    const lm_value *tile = tile_value(e, k, &c);
    if (tile_of(e, k) == k && tile && tile_wanted(e, s, k))
      lm_buf_printf(&e->by_element, "z%d[n][2 * r + c] = %s;\n", k, cuda_attend_value(e, tile));
  }
}

// z = x, and the share where it is one: only in tiles that have something to hide.
static void shares_add(cuda_attend *e, lm_buf *b, const section *s, const char *z, const char *x) {
  if (!s->over_s)
    query_col(e);
  const char *share = factor_text(e, s->over_s ? "share[r]" : "share");
  const char *inside = cuda_attend_inside(e);
  const char *at = "[n][2 * r + c]";
  cuda_attend_loops(e, b,
                    lm_arena_printf(e->g.arena, "%s%s = %s%s + (%s ? %s : 0.0f);\n", z, at, x, at,
                                    inside ? inside : "true", share));
}

// The tile of weights, -1 where the section sums none.
static int weights_tile(const cuda_attend *e, const section *s) {
  for (int k = 0; k < e->f.n_sums; k++)
    if (tile_of(e, k) == k && !e->f.sums[k].tile && tile_wanted(e, s, k))
      return k;
  return -1;
}

static void z_declare(cuda_attend *e, lm_buf *b, int k) {
  lm_buf_printf(b, "float z%d[%d][4];\n", k, e->cols / 8);
}

// ---- sums and products

typedef struct running {
  const char *name[LM_ATTEND_PARTS];
  int64_t width[LM_ATTEND_PARTS];
  int n;
} running; // products under way

static void running_add(running *x, const char *name, int64_t width) {
  x->name[x->n] = name;
  x->width[x->n++] = width;
}

// Products of a tile: those of weights, or those of g.
static void sums(cuda_attend *e, lm_buf *b, const section *s, bool weights, running *under_way) {
  for (int i = 0; i < e->f.n_sums; i++) {
    const lm_attend_sum *x = &e->f.sums[i];
    if (!in_section(e, s, i) || weights != !x->tile)
      continue;
    const char *z = lm_arena_printf(e->g.arena, "z%d", tile_of(e, i));
    const char *c = lm_arena_printf(e->g.arena, "c%d", i);
    if (x->other >= 0) {
      cuda_attend_weighted(e, b, c, z, (uint32_t)x->other, x->own.size);
      running_add(under_way, c, x->own.size);
      continue;
    }
    lm_buf_printf(b,
                  "LM_UNROLL\nfor (int32_t n = 0; n < %d; n++) {\n%s[0] += %s[n][0] + "
                  "%s[n][1];\n%s[1] += %s[n][2] + %s[n][3];\n}\n",
                  e->cols / 8, c, z, z, c, z, z);
  }
}

static void running_wait(cuda_attend *e, lm_buf *b, const running *x, int left) {
  cuda_attend_products_wait(e, b, left, x->n, x->name, x->width);
}

// x = q is packed as weights; with shares, from a copy that lives no longer than that.
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

// Scores first, of which x becomes q; then the weights' sums are under way while g is computed from
// dp.
static void steps(cuda_attend *e, lm_buf *b, const section *s, const running *scores,
                  const running *dp) {
  running under_way = {0};
  int w = weights_tile(e, s);
  running_wait(e, b, scores, 1);
  cuda_attend_scores(e, b);
  weights_write(e, s);
  cuda_attend_loops(e, b, "x[n][2 * r + c] = q;\n");
  if (w >= 0)
    weights_pack(e, b, s, w);
  sums(e, b, s, true, &under_way);
  running_wait(e, b, dp, under_way.n);
  if (!s->over_s)
    query_col(e);
  gradient_tiles_declare(e, b, s);
  lm_buf_puts(&e->by_element, "const float q = x[n][2 * r + c];\n");
  gradients_write(e, s);
  cuda_attend_loops(e, b, "");
  gradients_pack(e, b, s);
  sums(e, b, s, false, &under_way);
  running_wait(e, b, &under_way, 0);
}

// All elements once all scores and dp are there: with factors, which are costly to compute twice,
// or where other values than g are summed.
static void at_once(cuda_attend *e, lm_buf *b, const section *s, const running *scores,
                    const running *dp) {
  running both = *scores, under_way = {0};
  int w = weights_tile(e, s);
  const char *z = lm_arena_printf(e->g.arena, "z%d", w);
  const char *part = e->f.mask && w >= 0 ? cuda_attend_in_part(e) : NULL;
  for (int i = 0; i < dp->n; i++)
    running_add(&both, dp->name[i], dp->width[i]);
  running_wait(e, b, &both, 0);
  if (w >= 0)
    z_declare(e, b, w);
  gradient_tiles_declare(e, b, s);
  cuda_attend_scores(e, b);
  weights_write(e, s);
  if (w >= 0)
    lm_buf_printf(&e->by_element, "%s[n][2 * r + c] = w;\n", z);
  gradients_write(e, s);
  cuda_attend_loops(e, b, "");
  if (part) {
    lm_buf_printf(b, "if (%s) {\n", part);
    shares_add(e, b, s, z, z);
    lm_buf_puts(b, "}\n");
  }
  if (w >= 0)
    cuda_attend_pack(e, b, z);
  gradients_pack(e, b, s); // elements end in half as many registers before products begin
  sums(e, b, s, true, &under_way);
  sums(e, b, s, false, &under_way);
  running_wait(e, b, &under_way, 0);
}

static void products(cuda_attend *e, lm_buf *b, const section *s) {
  running scores = {0}, dp = {0};
  for (int i = 0; i < e->f.n_products; i++) {
    const lm_attend_dot *p = &e->f.products[i];
    const char *name = lm_arena_printf(e->g.arena, "p%d", i);
    cuda_attend_product(e, b, name, of_axis(e, p, e->row), of_axis(e, p, e->col), p->over.size);
    running_add(&scores, name, e->cols);
  }
  cuda_attend_product(e, b, "d", value_side(e, e->row), value_side(e, e->col), e->f.v_own.size);
  running_add(&dp, "d", e->cols);
  (in_steps(e, s) ? steps : at_once)(e, b, s, &scores, &dp);
}

static void tile_backward(cuda_attend *e, lm_buf *b, const section *s) {
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_products; i++)
    cuda_attend_fill(e, b, of_axis(e, &e->f.products[i], e->col), &e->f.products[i].over);
  cuda_attend_fill(e, b, value_side(e, e->col), &e->f.v_own);
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i) && e->f.sums[i].other >= 0)
      cuda_attend_fill(e, b, (uint32_t)e->f.sums[i].other, &e->f.sums[i].own);
  if (!s->over_s)
    query_cols(e, b);
  cuda_attend_fills_wait(e, b);
  products(e, b, s);
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
                    (long long)cuda_attend_width(e->f.sums[i].own.size) / 8);
  }
}

static void store(cuda_attend *e, lm_buf *b, int i) {
  const lm_attend_sum *s = &e->f.sums[i];
  double c;
  tile_value(e, i, &c);
  const char *scale =
      c == 1 ? "" : lm_arena_printf(e->g.arena, " * %s", lm_gen_const_text(e->g.arena, LM_F32, c));
  if (s->other >= 0) {
    cuda_attend_row_store(e, b, s->result, &s->own, lm_arena_printf(e->g.arena, "c%d", i), scale,
                          "inside");
    return;
  }
  lm_type t = result_type(e, i);
  lm_buf at = {0};
  cuda_attend_offset(e, &at, t, "row", "row");
  lm_buf_printf(
      b,
      "const float s%d = lm_row_sum(c%d[r])%s;\nif (inside && lm_thread() %% 4 == 0) r%u[%s] = "
      "%s;\n",
      i, i, scale, s->result, text_of(e, &at),
      lm_gen_store_text(e->g.arena, (lm_dtype)t.dtype, lm_arena_printf(e->g.arena, "s%d", i)));
}

static void stores(cuda_attend *e, lm_buf *b, const section *s) {
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst lm_at row = row0 + "
                "lm_frag_row(r);\nconst bool inside = row < %s;\n",
                cuda_attend_extent(e, e->row));
  for (int i = 0; i < e->f.n_sums; i++)
    if (in_section(e, s, i))
      store(e, b, i);
  lm_buf_puts(b, "}\n");
}

static void row_tiles(cuda_attend *e, lm_buf *b, const section *s) {
  if (s->n_rest)
    lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_products; i++)
    cuda_attend_fill(e, b, of_axis(e, &e->f.products[i], e->row), &e->f.products[i].over);
  cuda_attend_fill(e, b, value_side(e, e->row), &e->f.v_own);
}

static void loops(cuda_attend *e, lm_buf *b, const section *s) {
  for (int i = 0; i < s->n_rest; i++) {
    const char *name = cuda_attend_coordinate(e, s->rest[i]);
    lm_buf_printf(b, "for (lm_at %s = 0; %s < %s; %s++) {\n", name, name,
                  cuda_attend_extent(e, s->rest[i]), name);
  }
}

static void work_of(const cuda_attend *e, lm_axis row, lm_axis col, cuda_attend_work *w) {
  for (int i = 0; i < e->f.n_products; i++) {
    cuda_attend_work_side(w->row, &w->n_row, of_axis(e, &e->f.products[i], row),
                          &e->f.products[i].over);
    cuda_attend_work_side(w->col, &w->n_col, of_axis(e, &e->f.products[i], col),
                          &e->f.products[i].over);
  }
  cuda_attend_work_side(w->row, &w->n_row, value_side(e, row), &e->f.v_own);
  cuda_attend_work_side(w->col, &w->n_col, value_side(e, col), &e->f.v_own);
}

// The section's text by warpgroups: `first`, then for each place of the axes that it sums over the
// tiles, `last`.
static void section_groups(cuda_attend *e, lm_buf *text, const section *s) {
  lm_buf around = {0}, first = {0}, rows = {0}, tile = {0}, last = {0}, cols = {0};
  cuda_attend_work w = {.n_streams = 1, .n_loops = s->n_rest};
  work_of(e, e->row, e->col, &w);
  cuda_attend_groups_pools(e, &w);
  if (!s->over_s)
    query_cols(e, &cols);
  products(e, &tile, s);
  loops(e, &around, s);
  accumulators(e, &first, s);
  lm_buf_add(&rows, e->place.p ? e->place.p : "", e->place.n);
  cuda_attend_rows(e, &rows);
  if (s->over_s)
    query_rows(e, &rows);
  stores(e, &last, s);
  w.loops = around.n ? around.p : "";
  w.beside = cols.n ? cols.p : "";
  w.first = first.p;
  w.rows = rows.n ? rows.p : "";
  w.tile = tile.p;
  w.last = last.p;
  cuda_attend_groups_put(e, text, &w);
  lm_buf *used[] = {&around, &first, &rows, &tile, &last, &cols};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
}

static void section_tiles(cuda_attend *e, lm_buf *text, const section *s) {
  lm_buf tile = {0}, fills = {0};
  row_tiles(e, &fills, s);
  tile_backward(e, &tile, s);
  accumulators(e, text, s);
  loops(e, text, s);
  if (e->place.n)
    lm_buf_add(text, e->place.p, e->place.n);
  cuda_attend_rows(e, text);
  if (s->over_s)
    query_rows(e, text);
  lm_buf_add(text, fills.p, fills.n);
  lm_buf_printf(text, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n",
                cuda_attend_extent(e, e->col), e->cols);
  lm_buf_add(text, tile.p, tile.n);
  for (int i = 0; i <= s->n_rest; i++)
    lm_buf_puts(text, "}\n");
  stores(e, text, s);
  lm_buf_free(&tile);
  lm_buf_free(&fills);
}

// Returns the number of its blocks; `at` counts them in the text.
static int64_t section_put(cuda_attend *e, lm_buf *b, const section *s) {
  lm_buf text = {0};
  cuda_attend_section_begin(e, !s->over_s);
  int64_t blocks = cuda_attend_rows_begin(e, &text, s->axes, s->n_axes, s->places);
  if (e->groups)
    section_groups(e, &text, s);
  else
    section_tiles(e, &text, s);
  cuda_attend_section_put(e, &text, b);
  lm_buf_free(&text);
  return blocks;
}

int64_t cuda_attend_backward(cuda_attend *e, lm_buf *b) {
  int64_t blocks = 0;
  lm_buf_puts(b, "lm_at at = lm_block();\n");
  for (int i = 0; i < e->f.n_sums; i++) {
    section s = section_of(e, i);
    bool first = true;
    for (int k = 0; k < i; k++)
      first &= !in_section(e, &s, k);
    if (!first)
      continue;
    lm_buf text = {0};
    int64_t n = section_put(e, &text, &s);
    lm_buf_printf(b, "if (at < %lld) {\n", (long long)n);
    lm_buf_add(b, text.p, text.n);
    lm_buf_printf(b, "return;\n}\nat -= %lld;\n", (long long)n);
    lm_buf_free(&text);
    blocks += n;
  }
  return blocks;
}

// Tiles of every operand are wgmma's, and those of a block's rows the same at all places that it
// sums over.
static const char *section_why(cuda_attend *e, const section *s) {
  lm_axis row = s->over_s ? e->f.t : e->f.s;
  lm_axis col = s->over_s ? e->f.s : e->f.t;
  const char *why = NULL;
  cuda_attend_work w = {0};
  work_of(e, row, col, &w);
  for (int i = 0; i < w.n_row; i++)
    for (int k = 0; k < s->n_rest; k++)
      if (cuda_attend_has(e->f.op->in[w.row[i].k]->type, s->rest[k]))
        return "keys that change along what they are summed over";
  for (int i = 0; !why && i < w.n_row; i++)
    why = cuda_attend_groups_tile_why(e, w.row[i].k, w.row[i].own);
  for (int i = 0; !why && i < w.n_col; i++)
    why = cuda_attend_groups_tile_why(e, w.col[i].k, w.col[i].own);
  return why || lm_axis_size(e->f.m, row) > CUDA_GROUP_ROWS / 2 ? why : "64 places or less";
}

// An operand that is multiplied by scores has tiles already.
static bool has_side(const cuda_attend *e, const section *s, int i) {
  const lm_attend_sum *x = &e->f.sums[i];
  lm_axis col = s->over_s ? e->f.s : e->f.t;
  return x->other < 0 || (uint32_t)x->other == value_side(e, col) ||
         (uint32_t)x->other == of_axis(e, &e->f.products[0], col);
}

const char *cuda_attend_groups_backward_why(cuda_attend *e) {
  const char *why = !e->half               ? "operands that are not bf16"
                    : e->f.n_products != 1 ? "scores of several products"
                                           : NULL;
  for (int i = 0; !why && i < e->f.n_sums; i++) {
    section s = section_of(e, i);
    why = has_side(e, &s, i) ? section_why(e, &s) : "sums of other operands";
  }
  return why;
}
