// attend.c - attention as CUDA C: the function around it, and the forward direction.
//
// A block has a tile of t at one place of the outer axes; for each tile of s in which anything is let through (Milakov &
// Gimelshein 2018, Dao et al. 2022):
//   x = score (-1e30 where the mask hides)    m' = max(m, max x)    l = l e^(m - m') + sum e^(x - m')
//   o = o e^(m - m') + e^(x - m') v           and in the end o / l, m + log l
// The last tiles of t come first, since under causal masks they take longest.
#include "codegen/cuda/attend.h"
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
  e->declare.n = e->place.n = e->by_row.n = e->by_col.n = e->by_element.n = 0;
  e->n_local = 0;
  memset(e->name, 0, (e->f.m->n_values + 1) * sizeof *e->name);
  memset(e->has_tile, 0, (e->f.op->n_in + 1) * sizeof *e->has_tile);
}

void cuda_attend_section_put(cuda_attend *e, const lm_buf *text, lm_buf *out) {
  if (e->declare.n) lm_buf_add(out, e->declare.p, e->declare.n);
  lm_buf_add(out, text->p, text->n);
}

// From `at`, the last axis fastest.
void cuda_attend_coordinates(cuda_attend *e, lm_buf *b, const lm_axis *axes, int n) {
  for (int i = n - 1; i >= 0; i--) {
    const char *extent = cuda_attend_extent(e, axes[i]);
    lm_buf_printf(b, "const lm_at %s = at %% %s;\nat /= %s;\n", cuda_attend_coordinate(e, axes[i]), extent, extent);
  }
}

// ---- forward

static const char *exponential(const cuda_attend *e) { return e->half ? "lm_exp_quick" : "lm_exp"; }

// x = score, and the greatest of each row.
static void score_loops(cuda_attend *e, lm_buf *b, bool masked) {
  const char *score = cuda_attend_value(e, e->f.score), *mask = masked ? cuda_attend_value(e, e->f.mask) : NULL;
  const char *y = mask ? lm_arena_printf(e->g.arena, "%s ? %s : -1e30f", mask, score) : score;
  const char *body = lm_arena_printf(e->g.arena, "const float y = col0 + lm_frag_col(n, c) < %s ? (%s) : -__builtin_inff();\nx[n][2 * r + c] = y;\nmost[r] = y > most[r] ? y : most[r];\n",
                                     cuda_attend_extent(e, e->col), y);
  cuda_attend_loops(e, b, body);
}

static void scores(cuda_attend *e, lm_buf *b) {
  bool both = e->f.mask && e->f.tile_t;
  if (both) lm_buf_puts(b, "if (full) {\n");
  if (both) score_loops(e, b, false);
  if (both) lm_buf_puts(b, "} else {\n");
  score_loops(e, b, e->f.mask != NULL);
  if (both) lm_buf_puts(b, "}\n");
}

static void weights(cuda_attend *e, lm_buf *b, long long width) {
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nmost[r] = lm_row_max(most[r]);\n");
  lm_buf_printf(b, "const float change = %s(top[r] - most[r]);\ntop[r] = most[r];\nsum[r] *= change;\n", exponential(e));
  lm_buf_printf(b, "LM_UNROLL\nfor (int32_t i = 0; i < %lld; i++) {\no[i][2 * r] *= change;\no[i][2 * r + 1] *= change;\n}\n}\n", width / 8);
  const char *factor = e->f.factor ? lm_arena_printf(e->g.arena, " * %s", cuda_attend_value(e, e->f.factor)) : "";
  cuda_attend_loops(e, b, lm_arena_printf(e->g.arena, "const float p = %s(x[n][2 * r + c] - top[r]);\nsum[r] += p;\nx[n][2 * r + c] = p%s;\n", exponential(e), factor));
}

void cuda_attend_softmax(cuda_attend *e, lm_buf *b, long long width) {
  lm_buf_printf(b, "float x[%d][4], most[2] = {top[0], top[1]};\n", e->cols / 8);
  scores(e, b);
  weights(e, b, width);
}

static void tile_forward(cuda_attend *e, lm_buf *b, long long width) {
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_barrier();\n");
  for (int i = 0; i < e->f.n_products; i++) cuda_attend_fill(e, b, e->f.products[i].col, &e->f.products[i].over);
  cuda_attend_fill(e, b, LM_ATTEND_V, &e->f.v_own);
  cuda_attend_fills_wait(e, b);
  for (int i = 0; i < e->f.n_products; i++) {
    const lm_attend_product *p = &e->f.products[i];
    cuda_attend_product(e, b, lm_arena_printf(e->g.arena, "p%d", i), p->row, p->col, p->over.size);
  }
  cuda_attend_softmax(e, b, width);
  cuda_attend_weighted(e, b, "o", "x", LM_ATTEND_V, e->f.v_own.size);
}

void cuda_attend_results(cuda_attend *e, lm_buf *b) {
  lm_type lse = e->f.op->out[1]->type;
  lm_buf at = {0};
  lm_buf_puts(b, "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst float all = lm_row_sum(sum[r]), part = 1.0f / all;\n");
  lm_buf_printf(b, "const lm_at row = row0 + lm_frag_row(r);\nif (row >= %s) continue;\n", cuda_attend_extent(e, e->row));
  cuda_attend_offset(e, &at, lse, "row", "");
  lm_buf_printf(b, "if (lm_thread() %% 4 == 0) r1[%s] = top[r] + lm_log(all);\n", text_of(e, &at));
  cuda_attend_row_store(e, b, 0, &e->f.v_own, "o", " * part", "true");
  lm_buf_puts(b, "}\n");
}

int64_t cuda_attend_rows_begin(cuda_attend *e, lm_buf *b) {
  long long tiles = (lm_axis_size(e->f.m, e->row) + e->rows - 1) / e->rows;
  lm_buf_printf(b, "lm_at at = lm_block();\nconst lm_at row0 = (%lld - at %% %lld) * %d;\nat /= %lld;\n", tiles - 1, tiles, e->rows, tiles);
  cuda_attend_coordinates(e, b, e->f.outer.axis, e->f.outer.n);
  lm_buf_printf(b, "if (row0 >= %s) return;\n", cuda_attend_extent(e, e->row));
  if (e->place.n) lm_buf_add(b, e->place.p, e->place.n);
  return e->f.outer.size * tiles;
}

void cuda_attend_sums_begin(lm_buf *b, long long width) {
  lm_buf_printf(b, "float top[2] = {-__builtin_inff(), -__builtin_inff()}, sum[2] = {0}, o[%lld][4] = {{0}};\n", width / 8);
}

static int64_t forward(cuda_attend *e, lm_buf *b) {
  long long width = cuda_attend_width(e->f.v_own.size);
  lm_buf tile = {0}, text = {0};
  cuda_attend_section_begin(e, false);
  for (int i = 0; i < e->f.n_products; i++) cuda_attend_fill(e, &text, e->f.products[i].row, &e->f.products[i].over);
  tile_forward(e, &tile, width);
  int64_t blocks = cuda_attend_rows_begin(e, b);
  cuda_attend_rows(e, &text);
  cuda_attend_sums_begin(&text, width);
  lm_buf_printf(&text, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n", cuda_attend_extent(e, e->col), e->cols);
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
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) lm_buf_printf(b, "%s%d", i ? "x" : " ", m->dim[i].box);
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    const lm_plan_extent *x = &m->dim[i].size;
    lm_buf_printf(b, x->n_dyn ? "%sn%lld" : "%s%lld", i ? "x" : " in ", x->n_dyn ? (long long)x->dyn[0].var : (long long)x->fixed);
  }
  lm_buf_puts(b, "\n");
}

static void put_params(cuda_attend *e, lm_buf *b) {
  const lm_op *op = e->f.op;
  lm_buf_puts(b, "(");
  for (uint32_t i = 0; i < op->n_in; i++) lm_buf_printf(b, "%sconst %s *LM_RESTRICT a%u", i ? ", " : "", lm_gen_memory_type((lm_dtype)op->in[i]->type.dtype), i);
  for (uint32_t i = 0; i < op->n_out; i++) lm_buf_printf(b, ", %s *r%u", lm_gen_memory_type((lm_dtype)op->out[i]->type.dtype), i);
  for (int i = 0; i < 32; i++)
    if (e->g.extents >> i & 1) lm_buf_printf(b, ", int64_t n%d", i);
  for (int i = 0; i < e->n_maps; i++) lm_buf_printf(b, ", LM_CONSTANT lm_map m%d", e->maps[i].buf);
  lm_buf_puts(b, ") {\n");
  for (int i = 0; i < e->n_maps; i++) map_print(e, &e->maps[i], b);
  for (uint32_t i = 0; i < op->n_in + op->n_out; i++) {
    bool in = i < op->n_in;
    lm_buf_printf(b, "// %c%u: ", in ? 'a' : 'r', in ? i : i - op->n_in);
    lm_gen_type_print(&e->g, in ? op->in[i]->type : op->out[i - op->n_in]->type, b);
    lm_buf_puts(b, "\n");
  }
}

// All that stands in tiles is bf16.
static bool all_half(const lm_attend_form *f) {
  bool half = f->op->in[LM_ATTEND_V]->type.dtype == LM_BF16;
  for (int i = 0; i < f->n_products; i++)
    half &= f->op->in[f->products[i].row]->type.dtype == LM_BF16 && f->op->in[f->products[i].col]->type.dtype == LM_BF16;
  for (int i = 0; f->vjp && i < f->n_sums; i++)
    if (f->sums[i].other >= 0) half &= f->op->in[f->sums[i].other]->type.dtype == LM_BF16;
  return half && (!f->vjp || f->op->in[LM_ATTEND_DO]->type.dtype == LM_BF16);
}

static int64_t widest(const lm_attend_form *f) {
  int64_t n = f->v_own.size;
  for (int i = 0; i < f->n_products; i++)
    if (f->products[i].over.size > n) n = f->products[i].over.size;
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

static const struct { int rows, cols; } sizes[] = {{64, 64}, {64, 32}, {32, 32}, {32, 16}, {16, 16}};

// The first size whose scores and sums are sure to stay in registers.
static size_t size_first(const cuda_attend *e) {
  if (!e->f.vjp) return 0;
  if (e->half) return widest(&e->f) > 64;
  return widest(&e->f) > 96 ? 3 : 1;
}

static bool choose(cuda_attend *e, lm_buf *body, int64_t *blocks) {
  const char *why = !e->groups ? NULL : e->f.vjp ? cuda_attend_groups_backward_why(e) : cuda_attend_groups_forward_why(e);
  if (why) e->note = lm_arena_printf(e->g.arena, "mma.sync on tiles copied by cp.async: %s", why);
  e->groups = e->groups && !why;
  if (e->groups) {
    e->note = "wgmma on tiles that the copy engine brings";
    e->rows = CUDA_GROUP_ROWS;
    e->cols = e->f.vjp ? 64 : 128;
    *blocks = e->f.vjp ? cuda_attend_backward(e, body) : cuda_attend_groups_forward(e, body);
    return true;
  }
  for (size_t i = size_first(e); i < LM_COUNT(sizes); i++)
    if (attempt(e, sizes[i].rows, sizes[i].cols, body, blocks)) return true;
  return false;
}

static bool fits_int(const lm_attend_form *f) {
  int64_t most = 0;
  for (uint32_t i = 0; i < f->op->n_in + f->op->n_out; i++) {
    lm_type t = i < f->op->n_in ? f->op->in[i]->type : f->op->out[i - f->op->n_in]->type;
    if (lm_type_elements(f->m, t) > most) most = lm_type_elements(f->m, t);
  }
  return most < (int64_t)1 << 30;
}

static const lm_plan_map *maps_keep(const cuda_attend *e, lm_arena *arena, int *out_n) {
  lm_plan_map *maps = LM_NEW_N(arena, lm_plan_map, e->n_maps + 1);
  memcpy(maps, e->maps, sizeof *maps * (size_t)e->n_maps);
  *out_n = e->n_maps;
  return maps;
}

static void finish(cuda_attend *e, const lm_buf *body, int64_t blocks, lm_arena *arena, lm_kernel_code *out) {
  lm_buf raw = {0}, text = {0};
  put_params(e, &raw);
  lm_buf_printf(&raw, "typedef %s lm_at;\nLM_POOL_DECLARE();\n", fits_int(&e->f) ? "int32_t" : "int64_t");
  lm_buf_add(&raw, body->p, body->n);
  lm_buf_puts(&raw, "}\n");
  lm_gen_indent(raw.p, &text);
  *out = (lm_kernel_code){.space = {.fixed = blocks}, .launch = {.threads = e->threads, .per_block = 1, .shared = e->pool_most, .extents = e->g.extents}};
  out->launch.note = e->note ? lm_arena_strndup(arena, e->note, strlen(e->note)) : NULL;
  out->launch.maps = maps_keep(e, arena, &out->launch.n_maps);
  out->name = lm_arena_printf(arena, "a%016llx", (unsigned long long)lm_hash(text.p, text.n, (uint64_t)e->threads));
  out->source = lm_arena_printf(arena, "LM_KERNEL(%d) %s%s", e->threads, out->name, text.p);
  lm_buf_free(&raw);
  lm_buf_free(&text);
}

bool lm_cuda_attend_emit(void *module, const lm_op *op, bool groups, lm_arena *arena, lm_kernel_code *out) {
  const lm_module *m = module;
  lm_arena *scratch = lm_arena_create();
  cuda_attend e = {.g = {.arena = scratch, .m = m}, .groups = groups};
  lm_buf why = {0}, body = {0};
  int64_t blocks = 0;
  bool ok = lm_attend_form_make(m, op, &e.f, &why);
  e.half = ok && all_half(&e.f);
  e.name = LM_NEW_N(scratch, const char *, m->n_values + 1);
  e.has_tile = LM_NEW_N(scratch, bool, op->n_in + 1);
  if (ok && !choose(&e, &body, &blocks)) {
    ok = false;
    lm_buf_printf(&why, "heads of %lld elements do not fit into shared memory", (long long)widest(&e.f));
  }
  if (ok) finish(&e, &body, blocks, arena, out);
  else lm_error(m->ctx, op->loc, "E702", "attention: %s: not yet possible on a GPU", why.p);
  lm_buf *used[] = {&why, &body, &e.declare, &e.place, &e.by_row, &e.by_col, &e.by_element};
  for (size_t i = 0; i < LM_COUNT(used); i++) lm_buf_free(used[i]);
  lm_arena_destroy(scratch);
  return ok;
}
