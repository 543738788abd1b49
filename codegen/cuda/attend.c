// attend.c - attention as CUDA C: the function around it, and the forward direction.
//
// A block has a tile of t at one place of the outer axes; for each tile of s in which anything is
// let through (Milakov & Gimelshein 2018, Dao et al. 2022):
//   x = score (-1e30 where the mask hides)    m' = max(m, max x)    l = l e^(m - m') + sum e^(x -
//   m') o = o e^(m - m') + e^(x - m') v           and in the end o / l, m + log l
// With tiles in bf16, x and m are the score without its constant factor c, and e^(c (x - m)) = 2^(c
// log2(e) x - c log2(e) m): one multiply-add before the exponential. The last tiles of t come
// first, and the first of s, since under causal masks they take longest: a multiprocessor that is
// done early finds short ones left. So tiles of as many places of the outer axes as share a cache
// are dealt out side by side.
#include "codegen/cuda/attend.h"
#include "codegen/cuda/emit.h"
#include <math.h>
#include <string.h>

static const char *text_of(cuda_attend *e, lm_buf *b) {
  const char *text = lm_arena_strndup(e->g.arena, b->n ? b->p : "", b->n);
  lm_buf_free(b);
  return text;
}

// ---- sections

void cuda_attend_section_begin(cuda_attend *e, bool rows_are_s) {
  e->row = rows_are_s ? e->f.s : e->f.t;
  e->col = rows_are_s ? e->f.t : e->f.s;
  e->pool = 0;
  e->declare.n = e->place.n = e->by_row.n = e->by_pair.n = e->by_col.n = e->by_element.n = 0;
  e->n_local = 0;
  memset(e->name, 0, (e->f.m->n_values + 1) * sizeof *e->name);
  memset(e->has_tile, 0, (e->f.op->n_in + 1) * sizeof *e->has_tile);
}

void cuda_attend_section_put(cuda_attend *e, const lm_buf *text, lm_buf *out) {
  if (e->declare.n)
    lm_buf_add(out, e->declare.p, e->declare.n);
  lm_buf_add(out, text->p, text->n);
}

// From `at`, the last axis fastest.
static void coordinates(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n) {
  for (int i = n - 1; i >= 0; i--) {
    const char *extent = cuda_attend_extent(e, axes[i]);
    lm_buf_printf(b, "const lm_at %s = at %% %s;\nat /= %s;\n", cuda_attend_coordinate(e, axes[i]),
                  extent, extent);
  }
}

// ---- forward

// Of what a mask hides, in units of x. A power of 2, so that in rows where all is hidden the
// multiply-add of an exponent gives 0.
static const char *low_text(const cuda_attend *e) {
  return lm_gen_const_text(e->g.arena, LM_F32,
                           e->half ? -exp2(floor(log2(1e30 / e->scale))) : -1e30);
}

// Of tiles in which something is not let through, or that reach beyond their axis; NULL: of none.
const char *cuda_attend_in_part(cuda_attend *e) {
  const char *part = e->f.mask ? (e->f.tile_t ? "!full" : "true") : NULL;
  if (!cuda_attend_inside(e))
    return part;
  const char *edge =
      lm_arena_printf(e->g.arena, "col0 + %d > %s", e->cols, cuda_attend_extent(e, e->col));
  return part ? lm_arena_printf(e->g.arena, "%s || %s", part, edge) : edge;
}

void cuda_attend_scores(cuda_attend *e, lm_buf *b) {
  const char *inside = cuda_attend_inside(e);
  const char *part = cuda_attend_in_part(e);
  const char *seen = "x[n][2 * r + c]";
  lm_buf_printf(b, "float x[%d][4];\n", e->cols / 8);
  cuda_attend_loops(
      e, b, lm_arena_printf(e->g.arena, "x[n][2 * r + c] = %s;\n", cuda_attend_value(e, e->score)));
  if (!part)
    return;
  if (e->f.mask)
    seen = lm_arena_printf(e->g.arena, "(%s ? %s : %s)", cuda_attend_value(e, e->f.mask), seen,
                           low_text(e));
  if (inside)
    seen = lm_arena_printf(e->g.arena, "%s ? %s : -__builtin_inff()", inside, seen);
  lm_buf_printf(b, "if (%s) {\n", part);
  cuda_attend_loops(e, b, lm_arena_printf(e->g.arena, "x[n][2 * r + c] = %s;\n", seen));
  lm_buf_puts(b, "}\n");
}

const char *cuda_attend_log2(const cuda_attend *e) {
  return lm_gen_const_text(e->g.arena, LM_F32, e->scale * 1.4426950408889634);
}

// change = e^(m - m'), sum is scaled by it; x = weights.
static void weights(cuda_attend *e, lm_buf *b) {
  const char *unit = cuda_attend_log2(e);
  const char *factor =
      e->f.factor ? lm_arena_printf(e->g.arena, " * %s", cuda_attend_value(e, e->f.factor)) : "";
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nmost[r] = lm_row_max(most[r]);\n");
  if (e->half)
    lm_buf_printf(
        b, "change[r] = lm_exp2_quick((top[r] - most[r]) * %s);\nleast[r] = -most[r] * %s;\n", unit,
        unit);
  else
    lm_buf_puts(b, "change[r] = lm_exp(top[r] - most[r]);\n");
  lm_buf_puts(b, "top[r] = most[r];\nsum[r] *= change[r];\n}\n");
  const char *p =
      e->half ? lm_arena_printf(e->g.arena, "lm_exp2_quick(LM_FMA(x[n][2 * r + c], %s, least[r]))",
                                unit)
              : "lm_exp(x[n][2 * r + c] - top[r])";
  cuda_attend_loops(e, b,
                    lm_arena_printf(e->g.arena,
                                    "const float p = %s;\nsum[r] += p;\nx[n][2 * r + c] = p%s;\n",
                                    p, factor));
}

void cuda_attend_softmax(cuda_attend *e, lm_buf *b) {
  cuda_attend_scores(e, b);
  lm_buf_printf(b, "float most[2] = {top[0], top[1]}, change[2]%s;\n", e->half ? ", least[2]" : "");
  cuda_attend_loops(e, b, "most[r] = lm_greater(most[r], x[n][2 * r + c]);\n");
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
  for (int i = 0; i < e->f.n_products; i++)
    cuda_attend_fill(e, b, e->f.products[i].col, &e->f.products[i].over);
  cuda_attend_fill(e, b, LM_ATTEND_V, &e->f.v_own);
  cuda_attend_fills_wait(e, b);
  for (int i = 0; i < e->f.n_products; i++) {
    const lm_attend_dot *p = &e->f.products[i];
    cuda_attend_product(e, b, lm_arena_printf(e->g.arena, "p%d", i), p->row, p->col, p->over.size);
  }
  cuda_attend_softmax(e, b);
  cuda_attend_rescale(b, width);
  cuda_attend_weighted(e, b, "o", "x", LM_ATTEND_V, e->f.v_own.size);
}

void cuda_attend_results(cuda_attend *e, lm_buf *b) {
  lm_type lse = e->f.op->out[1]->type;
  lm_buf at = {0};
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst float all = "
                 "lm_row_sum(sum[r]), part = 1.0f / all;\n");
  lm_buf_printf(b, "const lm_at row = row0 + lm_frag_row(r);\nif (row >= %s) continue;\n",
                cuda_attend_extent(e, e->row));
  cuda_attend_offset(e, &at, lse, "row", "");
  const char *top =
      e->scale == 1 ? "top[r]"
                    : lm_arena_printf(e->g.arena, "(top[r] > %s ? top[r] * %s : -1e30f)",
                                      low_text(e), lm_gen_const_text(e->g.arena, LM_F32, e->scale));
  lm_buf_printf(b, "if (lm_thread() %% 4 == 0) r1[%s] = %s + lm_log(all);\n", text_of(e, &at), top);
  cuda_attend_row_store(e, b, 0, &e->f.v_own, "o", " * part", "true");
  lm_buf_puts(b, "}\n");
}

// Bytes that the blocks of one place of the outer axes read in common: an operand for products and
// one for sums.
static int64_t common_bytes(const cuda_attend *e) {
  return lm_axis_size(e->f.m, e->col) *
         (e->f.v_own.size + (e->f.n_products ? e->f.products[0].over.size : 0)) * (e->half ? 2 : 4);
}

int64_t cuda_attend_rows_begin(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n,
                               int64_t places) {
  long long tiles = (lm_axis_size(e->f.m, e->row) + e->rows - 1) / e->rows;
  long long swath = (16 << 20) / common_bytes(e);
  long long all = places;
  const char *tile =
      e->row == e->f.t ? lm_arena_printf(e->g.arena, "(%lld - at / wide)", tiles - 1) : "at / wide";
  if (swath < 1)
    swath = 1;
  if (swath >= all)
    lm_buf_printf(b, "const lm_at first = 0, wide = %lld;\n", all);
  else
    lm_buf_printf(b,
                  "const lm_at first = at / %lld * %lld, wide = lm_no_further(%lld, %lld - first + "
                  "1);\nat %%= %lld;\n",
                  swath * tiles, swath, swath, all, swath * tiles);
  lm_buf_printf(b, "const lm_at row0 = %s * %d;\nat = first + at %% wide;\n", tile, e->rows);
  coordinates(e, b, axes, n);
  lm_buf_printf(b, "if (row0 >= %s) return;\n", cuda_attend_extent(e, e->row));
  return places * tiles;
}

int64_t cuda_attend_forward_begin(cuda_attend *e, lm_buf *b) {
  lm_buf_puts(b, "lm_at at = lm_block();\n");
  int64_t blocks = cuda_attend_rows_begin(e, b, e->f.outer.axis, e->f.outer.n, e->f.outer.size);
  if (e->place.n)
    lm_buf_add(b, e->place.p, e->place.n);
  return blocks;
}

void cuda_attend_sums_begin(lm_buf *b, long long width) {
  lm_buf_printf(
      b,
      "float top[2] = {-__builtin_inff(), -__builtin_inff()}, sum[2] = {0}, o[%lld][4] = {{0}};\n",
      width / 8);
}

static int64_t forward(cuda_attend *e, lm_buf *b) {
  long long width = cuda_attend_width(e->f.v_own.size);
  lm_buf tile = {0}, text = {0};
  cuda_attend_section_begin(e, false);
  for (int i = 0; i < e->f.n_products; i++)
    cuda_attend_fill(e, &text, e->f.products[i].row, &e->f.products[i].over);
  tile_forward(e, &tile, width);
  int64_t blocks = cuda_attend_forward_begin(e, b);
  cuda_attend_rows(e, &text);
  cuda_attend_sums_begin(&text, width);
  lm_buf_printf(&text, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n",
                cuda_attend_extent(e, e->col), e->cols);
  lm_buf_add(&text, tile.p, tile.n);
  lm_buf_puts(&text, "}\n");
  cuda_attend_results(e, &text);
  cuda_attend_section_put(e, &text, b);
  lm_buf_free(&tile);
  lm_buf_free(&text);
  return blocks;
}

// ---- the function

// Maps belong to the text: kernels of equal text are one.
static void map_print(const cuda_attend *e, const lm_plan_map *m, lm_buf *b) {
  lm_buf_printf(b, "// m%d: boxes of", m->buf);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++)
    lm_buf_printf(b, "%s%d", i ? "x" : " ", m->dim[i].box);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    const lm_plan_extent *x = &m->dim[i].size;
    lm_buf_printf(b, x->n_dyn ? "%sn%lld" : "%s%lld", i ? "x" : " in ",
                  x->n_dyn ? (long long)x->dyn[0].var : (long long)x->fixed);
  }
  lm_buf_puts(b, "\n");
}

static void put_params(cuda_attend *e, lm_buf *b) {
  const lm_op *op = e->f.op;
  lm_buf_puts(b, "(");
  for (uint32_t i = 0; i < op->n_in; i++)
    lm_buf_printf(b, "%sconst %s *LM_RESTRICT a%u", i ? ", " : "",
                  lm_gen_memory_type((lm_dtype)op->in[i]->type.dtype), i);
  for (uint32_t i = 0; i < op->n_out; i++)
    lm_buf_printf(b, ", %s *r%u", lm_gen_memory_type((lm_dtype)op->out[i]->type.dtype), i);
  for (int i = 0; i < 32; i++)
    if (e->g.extents >> i & 1)
      lm_buf_printf(b, ", int64_t n%d", i);
  for (int i = 0; i < e->n_maps; i++)
    lm_buf_printf(b, ", LM_CONSTANT lm_map m%d", e->maps[i].buf);
  lm_buf_puts(b, ") {\n");
  for (int i = 0; i < e->n_maps; i++)
    map_print(e, &e->maps[i], b);
  for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
    bool in = i < op->n_in;
    lm_buf_printf(b, "// %c%u: ", in ? 'a' : 'r', in ? i : i - op->n_in);
    lm_gen_type_print(&e->g, in ? op->in[i]->type : op->out[i - op->n_in]->type, b);
    lm_buf_puts(b, "\n");
  }
}

// All that stands in tiles is bf16.
static bool all_half(const lm_attend_spec *f) {
  bool half = f->op->in[LM_ATTEND_V]->type.dtype == LM_BF16;
  for (int i = 0; i < f->n_products; i++)
    half &= f->op->in[f->products[i].row]->type.dtype == LM_BF16 &&
            f->op->in[f->products[i].col]->type.dtype == LM_BF16;
  for (int i = 0; f->vjp && i < f->n_sums; i++)
    if (f->sums[i].other >= 0)
      half &= f->op->in[f->sums[i].other]->type.dtype == LM_BF16;
  return half && (!f->vjp || f->op->in[LM_ATTEND_DO]->type.dtype == LM_BF16);
}

static int64_t widest(const lm_attend_spec *f) {
  int64_t n = f->v_own.size;
  for (int i = 0; i < f->n_products; i++)
    if (f->products[i].over.size > n)
      n = f->products[i].over.size;
  return n;
}

// Writes the kernel with tiles of a size; false if they do not fit into shared memory.
static bool attempt(cuda_attend *e, int rows, int cols, lm_buf *body, int64_t *blocks) {
  e->rows = rows;
  e->cols = cols;
  e->threads = 2 * rows;
  e->pool_most = 0;
  e->n_names = 0;
  body->n = 0;
  *blocks = e->f.vjp ? cuda_attend_backward(e, body) : forward(e, body);
  return e->pool_most <= CUDA_POOL_MOST;
}

static const struct {
  int rows, cols;
} sizes[] = {{64, 64}, {64, 32}, {32, 32}, {32, 16}, {16, 16}};

// The first size whose scores and sums are sure to stay in registers.
static size_t size_first(const cuda_attend *e) {
  if (!e->f.vjp)
    return 0;
  if (e->half)
    return widest(&e->f) > 64;
  return widest(&e->f) > 96 ? 3 : 1;
}

static bool choose(cuda_attend *e, lm_buf *body, int64_t *blocks) {
  const char *why = !e->groups ? NULL
                    : e->f.vjp ? cuda_attend_groups_backward_why(e)
                               : cuda_attend_groups_forward_why(e);
  if (why)
    e->note = lm_arena_printf(e->g.arena, "mma.sync on tiles copied by cp.async: %s", why);
  e->groups = e->groups && !why;
  if (e->groups) {
    e->note = "wgmma on tiles that the copy engine brings";
    e->rows = CUDA_GROUP_ROWS;
    e->cols = e->f.vjp ? 64 : 128;
    *blocks = e->f.vjp ? cuda_attend_backward(e, body) : cuda_attend_groups_forward(e, body);
    return true;
  }
  for (size_t i = size_first(e); i < LM_COUNT(sizes); i++)
    if (attempt(e, sizes[i].rows, sizes[i].cols, body, blocks))
      return true;
  return false;
}

static bool fits_int(const lm_attend_spec *f) {
  int64_t most = 0;
  for (uint32_t i = 0; i < f->op->n_in + f->op->n_out; i++) {
    lm_type t = i < f->op->n_in ? f->op->in[i]->type : f->op->out[i - f->op->n_in]->type;
    if (lm_type_elements(f->m, t) > most)
      most = lm_type_elements(f->m, t);
  }
  return most < (int64_t)1 << 30;
}

static const lm_plan_map *maps_keep(const cuda_attend *e, lm_arena *arena, int *out_n) {
  lm_plan_map *maps = LM_NEW_N(arena, lm_plan_map, e->n_maps + 1);
  memcpy(maps, e->maps, sizeof *maps * (size_t)e->n_maps);
  *out_n = e->n_maps;
  return maps;
}

static void finish(cuda_attend *e, const lm_buf *body, int64_t blocks, lm_arena *arena,
                   lm_kernel_code *out) {
  lm_buf raw = {0}, text = {0};
  put_params(e, &raw);
  lm_buf_printf(&raw, "typedef %s lm_at;\nLM_POOL_DECLARE();\n",
                fits_int(&e->f) ? "int32_t" : "int64_t");
  lm_buf_add(&raw, body->p, body->n);
  lm_buf_puts(&raw, "}\n");
  lm_gen_indent(raw.p, &text);
  *out = (lm_kernel_code){
      .space = {.fixed = blocks},
      .launch = {
          .threads = e->threads, .per_block = 1, .shared = e->pool_most, .extents = e->g.extents}};
  out->launch.note = e->note ? lm_arena_strndup(arena, e->note, strlen(e->note)) : NULL;
  out->launch.maps = maps_keep(e, arena, &out->launch.n_maps);
  out->name = lm_arena_printf(arena, "a%016llx",
                              (unsigned long long)lm_hash(text.p, text.n, (uint64_t)e->threads));
  out->source = lm_arena_printf(arena, "LM_KERNEL(%d) %s%s", e->threads, out->name, text.p);
  lm_buf_free(&raw);
  lm_buf_free(&text);
}

bool cuda_attend_emit(const cuda_target *t, const lm_op *op, lm_arena *arena, lm_kernel_code *out) {
  const lm_module *m = t->m;
  lm_arena *scratch = lm_arena_create();
  cuda_attend e = {
      .g = {.arena = scratch, .m = m}, .groups = t->groups, .products = t->tf32 ? "TF32" : "F32"};
  lm_buf why = {0}, body = {0};
  int64_t blocks = 0;
  bool ok = lm_attend_spec_make(m, op, &e.f, &why);
  e.half = ok && all_half(&e.f);
  if (e.half)
    e.products = "BF16";
  e.scale = 1;
  if (ok)
    e.score = e.half ? cuda_attend_unscaled(e.f.score, &e.scale) : e.f.score;
  e.name = LM_NEW_N(scratch, const char *, m->n_values + 1);
  e.has_tile = LM_NEW_N(scratch, bool, op->n_in + 1);
  if (ok && !choose(&e, &body, &blocks)) {
    ok = false;
    lm_buf_printf(&why, "heads of %lld elements do not fit into shared memory",
                  (long long)widest(&e.f));
  }
  if (ok)
    finish(&e, &body, blocks, arena, out);
  else
    lm_error(m->ctx, op->loc, "E702", "attention: %s: not yet possible on a GPU", why.p);
  lm_buf *used[] = {&why,      &body,      &e.declare, &e.place,
                    &e.by_row, &e.by_pair, &e.by_col,  &e.by_element};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
  lm_arena_destroy(scratch);
  return ok;
}
