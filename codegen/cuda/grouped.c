// grouped.c - the grouped GEMMs: rows that are side by side times the matrix of their group, or
// for each group the sum over its rows.
//
// On sm_90a warpgroups multiply (grouped_ring.c). This kernel is for other architectures and types,
// for few rows, and for the plans of decoding, where the bits of a row must not depend on how many
// rows are computed with it.
//
// How many rows a group has is known on the device alone. Blocks are as many as the GPU runs at a
// time; each walks over the counts and computes every n-th tile of the result. Tiles of k are
// copied to shared memory STAGES - 1 steps ahead (prelude/gemm.cuh).
#include <string.h>
#include "codegen/cuda/emit.h"

enum {
  THREADS = 256, // as in gemm.cuh
  STAGES = 3,
  LINE = 64,             // bytes of a tile along k
  VECTOR = 16,           // bytes of a copy
  UNITS = 132,           // multiprocessors of a GPU that is not known
  BLOCKS_FOR_A_UNIT = 2, // whose tiles and registers a multiprocessor has
};

typedef struct side {
  bool by_k, vectors;
  int64_t row, k, group;
  int rows;
  int64_t bytes; // of a tile in shared memory
} side;

typedef struct grouped {
  const lm_plan_gemm *g;
  lm_dtype ab, cc;
  bool tf32;
  int m, n, depth; // of a tile
  int at_m, at_n;  // fragments of a warp
  side a, b;
  bool pairs; // neighbours along n are stored together
  int64_t batches, sums;
  lm_arena *arena;
  lm_buf *out;
} grouped;

static int64_t pieces(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

static bool is_supported(const lm_plan_gemm *g) {
  bool sums = g->groups.sums;
  bool fixed = !g->n.n_dyn && !(sums ? g->m.n_dyn : g->k.n_dyn);
  for (int i = 0; i < g->n_batch; i++)
    fixed = fixed && !g->batch[i].size.n_dyn;
  bool half = lm_dtype_is_half((lm_dtype)g->dtype_ab);
  bool known = half || g->dtype_ab == LM_F32 || g->dtype_ab == LM_F64;
  bool result = g->dtype_c == g->dtype_ab || (half && g->dtype_c == LM_F32);
  return fixed && known && result;
}

// The stride of `unit` is 1 and all others are multiples of a vector, so its lines can be copied in
// vectors. `free`: the rows of groups begin anywhere along it.
static bool in_vectors(const grouped *w, const side *s, int64_t unit, int64_t size, bool free,
                       bool is_a) {
  int64_t each = VECTOR / lm_dtype_bytes(w->ab);
  int64_t all = size | (s->by_k ? s->row : s->k) | s->group;
  for (int i = 0; i < w->g->n_batch; i++)
    all |= is_a ? w->g->batch[i].a : w->g->batch[i].b;
  return unit == 1 && !free && all % each == 0 && w->g->aligned;
}

static side side_make(const grouped *w, bool is_a) {
  const lm_plan_gemm *g = w->g;
  bool sums = g->groups.sums;
  side s = {
      .row = is_a ? g->a_m : g->b_n,
      .k = is_a ? g->a_k : g->b_k,
      .group = is_a ? 0 : g->groups.b,
      .rows = is_a ? w->m : w->n,
  };
  s.by_k = s.k == 1 || s.row != 1;
  int64_t size = s.by_k ? g->k.fixed : is_a ? g->m.fixed : g->n.fixed;
  s.vectors = in_vectors(w, &s, s.by_k ? s.k : s.row, size, s.by_k ? sums : is_a && !sums, is_a);
  int element = lm_dtype_bytes(w->ab);
  int lines = s.by_k ? s.rows : w->depth;
  int line = s.by_k ? w->depth : s.rows;
  s.bytes = (int64_t)lines * (line * element + VECTOR);
  return s;
}

static bool in_pairs(const lm_plan_gemm *g) {
  int64_t all = g->n.fixed | g->c_m | g->groups.c;
  for (int i = 0; i < g->n_batch; i++)
    all |= g->batch[i].c;
  return g->c_n == 1 && all % 2 == 0;
}

// Few rows of a group take small tiles: of a run-time number, or of many groups.
static int tile_rows(const lm_plan_gemm *g) {
  int64_t rows = g->m.n_dyn ? 0 : g->groups.sums ? g->m.fixed : g->m.fixed / g->groups.count;
  bool wide = g->dtype_ab == LM_F64;
  return rows > 64 && !wide ? 128 : rows > 32 ? 64 : 32;
}

static grouped grouped_make(const lm_plan_options *o, const lm_plan_gemm *g, lm_arena *arena,
                            lm_buf *out) {
  grouped w = {
      .g = g,
      .ab = (lm_dtype)g->dtype_ab,
      .cc = (lm_dtype)g->dtype_c,
      .tf32 = o->tf32 && g->dtype_ab == LM_F32,
      .m = tile_rows(g),
      .n = g->n.fixed > 64 && g->dtype_ab != LM_F64 ? 128 : 64,
      .depth = LINE / lm_dtype_bytes((lm_dtype)g->dtype_ab),
      .pairs = in_pairs(g),
      .batches = 1,
      .sums = 1,
      .arena = arena,
      .out = out,
  };
  w.at_m = w.m / 32;
  w.at_n = w.n / 32;
  for (int i = 0; i < g->n_batch; i++)
    *(g->batch[i].sum ? &w.sums : &w.batches) *= g->batch[i].size.fixed;
  w.a = side_make(&w, true);
  w.b = side_make(&w, false);
  return w;
}

// ---- text

static const char *type_of(lm_dtype t) {
  return lm_dtype_is_half(t) ? "uint16_t" : t == LM_F64 ? "double" : "float";
}

// The rows of all groups.
static const lm_plan_extent *all_rows(const grouped *w) {
  return w->g->groups.sums ? &w->g->k : &w->g->m;
}

static void put_side(const grouped *w, const char *name, const side *s) {
  lm_buf_printf(w->out, "const lm_gemm_side %s = {%d, %d, %d, %d, %d, %lld, %lld};\n", name,
                lm_dtype_bytes(w->ab) / 2, s->rows, w->depth, s->by_k, s->vectors,
                (long long)s->row, (long long)s->k);
}

static void params_add(const grouped *w, cuda_code *c) {
  cuda_operand_add(c, w->ab, false, "a");
  cuda_operand_add(c, w->ab, false, "b");
  cuda_operand_add(c, LM_INT, false, "counts");
  cuda_code_param(c, lm_arena_printf(c->arena, "%s *LM_RESTRICT ", type_of(w->cc)), "c");
  c->extents = cuda_extent_mask(all_rows(w));
  c->last_params = w->g->accumulate ? ", int32_t adds" : NULL;
}

static void put_begin(const grouped *w) {
  long long a = (long long)(STAGES * w->a.bytes);
  long long b = (long long)(STAGES * w->b.bytes);
  const char *type = type_of(w->ab);
  int element = lm_dtype_bytes(w->ab);
  put_side(w, "A", &w->a);
  put_side(w, "B", &w->b);
  lm_buf_printf(w->out,
                "LM_POOL_DECLARE();\nLM_POOL(%s, tile_a, 0, %lld);\n"
                "LM_POOL(%s, tile_b, %lld, %lld);\n",
                type, a / element, type, a, b / element);
  lm_buf_printf(w->out,
                "const int32_t lane = lm_thread() %% 32, warp = lm_thread() / 32;\n"
                "const int32_t warp_m = warp / 4 * %d, warp_n = warp %% 4 * %d;\n",
                w->m / 2, w->n / 4);
}

// The loop over tiles. Those of a group are numbered along m, n and the batch axes. Rows of no
// group are behind the last one: sums of no terms.
static void put_tiles(const grouped *w) {
  const lm_plan_gemm *g = w->g;
  long long others = (long long)(pieces(g->n.fixed, w->n) * w->batches);
  long long down = (long long)pieces(g->m.fixed, w->m);
  lm_buf_printf(w->out,
                "lm_group_walk walk = {0};\n"
                "for (int64_t tile = block; lm_group_seek(&walk, counts, %d, %s, tile, %d, %lld); "
                "tile += grid) {\n"
                "const int64_t group = walk.group, row = walk.from, rows = walk.rows;\n",
                g->groups.count, cuda_extent_text(all_rows(w), w->arena), g->groups.sums ? 0 : w->m,
                g->groups.sums ? down * others : others);
}

// Adds the offsets at point `point` of the batch axes, or of those that are summed.
static void put_axes(const grouped *w, bool sum, const char *point) {
  long long inner = 1;
  for (int i = w->g->n_batch - 1; i >= 0; i--) {
    long long size = (long long)w->g->batch[i].size.fixed;
    if (w->g->batch[i].sum != sum)
      continue;
    lm_buf_printf(w->out, "{\nconst int64_t i = %s / %lld %% %lld;\n", point, inner, size);
    lm_buf_printf(w->out, "%s_a += i * %lld;\n%s_b += i * %lld;\n", sum ? "from" : "at",
                  (long long)w->g->batch[i].a, sum ? "from" : "at", (long long)w->g->batch[i].b);
    if (!sum)
      lm_buf_printf(w->out, "at_c += i * %lld;\n", (long long)w->g->batch[i].c);
    lm_buf_puts(w->out, "}\n");
    inner *= size;
  }
}

// The first row and column of the tile, and where the operands begin.
static void put_origin(const grouped *w) {
  const lm_plan_gemm *g = w->g;
  long long tiles_n = (long long)pieces(g->n.fixed, w->n);
  bool sums = g->groups.sums;
  long long size = (long long)(sums ? g->m : g->k).fixed;
  const char *fixed =
      sums ? lm_arena_printf(w->arena, "%lld", size)
           : lm_arena_printf(w->arena, "group < %d ? %lld : 0", g->groups.count, size);
  lm_buf_printf(w->out, "const int64_t m_end = %s, k_end = %s, n_end = %lld;\n",
                sums ? fixed : "rows", sums ? "rows" : fixed, (long long)g->n.fixed);
  lm_buf_printf(
      w->out,
      "const int64_t tiles_m = (m_end + %d) / %d, rest = (tile - walk.before) / tiles_m;\n"
      "const int64_t m0 = (tile - walk.before) %% tiles_m * %d, n0 = rest %% %lld * %d;\n",
      w->m - 1, w->m, w->m, tiles_n, w->n);
  lm_buf_printf(
      w->out, "int64_t at_a = row * %lld, at_b = group * %lld, at_c = group * %lld;\n%s * %lld;\n",
      (long long)(sums ? g->a_k : g->a_m), (long long)g->groups.b, (long long)g->groups.c,
      sums ? "at_b += row" : "at_c += row", (long long)(sums ? g->b_k : g->c_m));
  put_axes(w, false, lm_arena_printf(w->arena, "(rest / %lld)", tiles_n));
}

// Copies step `next` of the sum.
static void put_fetch(const grouped *w) {
  lm_buf_printf(w->out,
                "if (next < steps) {\nconst int64_t k = next %% along_k * %d;\n"
                "int64_t from_a = at_a, from_b = at_b;\n",
                w->depth);
  put_axes(w, true, "(next / along_k)");
  lm_buf_printf(w->out,
                "lm_gemm_fetch((uint16_t *)tile_a, (int32_t)(next %% %d) * %lld, (const uint16_t "
                "*)(a + from_a), A, m0, m_end, k, k_end);\n",
                STAGES, (long long)w->a.bytes / 2);
  lm_buf_printf(w->out,
                "lm_gemm_fetch((uint16_t *)tile_b, (int32_t)(next %% %d) * %lld, (const uint16_t "
                "*)(b + from_b), B, n0, n_end, k, k_end);\n}\nlm_copies_commit();\n",
                STAGES, (long long)w->b.bytes / 2);
}

// While a step is multiplied, STAGES - 1 further ones are copied, the last one over
// the step before it.
static void put_sum(const grouped *w) {
  int element = lm_dtype_bytes(w->ab);
  const char *kind = w->ab == LM_BF16  ? "BF16("
                     : w->ab == LM_F16 ? "F16("
                     : w->tf32         ? "TF32("
                                       : "PLAIN(";
  lm_buf_printf(w->out,
                "%s s[%d][%d][4] = {{{0}}};\n"
                "const int64_t along_k = (k_end + %d) / %d, steps = along_k * %lld;\n",
                w->ab == LM_F64 ? "double" : "float", w->at_m, w->at_n, w->depth - 1, w->depth,
                (long long)w->sums);
  lm_buf_printf(w->out,
                "for (int64_t next = 0; next < steps + %d; next++) {\n"
                "const int64_t step = next - %d;\n"
                "if (step >= 0) {\nlm_copies_wait(%d);\nlm_barrier();\n}\n",
                STAGES - 1, STAGES - 1, STAGES - 2);
  put_fetch(w);
  lm_buf_printf(w->out, "if (step < 0) continue;\nconst int32_t slot = (int32_t)(step %% %d);\n",
                STAGES);
  lm_buf_printf(w->out,
                "LM_GEMM_%s%s%ss, %d, %d, tile_a, slot * %lld, A, warp_m, tile_b, slot * %lld, B, "
                "warp_n);\n}\nlm_barrier();\n",
                kind, kind[0] == 'P' ? type_of(w->ab) : "", kind[0] == 'P' ? ", " : "", w->at_m,
                w->at_n, (long long)w->a.bytes / element, (long long)w->b.bytes / element);
}

// Stores the tile, in pairs of neighbours or element by element.
static void put_results(const grouped *w) {
  const lm_plan_gemm *g = w->g;
  const char *type = w->ab == LM_F64 ? "double" : "float";
  const char *kind = lm_dtype_name(w->cc);
  lm_buf_printf(w->out,
                "LM_UNROLL for (int32_t i = 0; i < %d; i++) LM_UNROLL for (int32_t h = 0; h < 2; "
                "h++) {\nconst int64_t m = m0 + warp_m + 16 * i + 8 * h + lane / 4;\n"
                "if (m >= m_end) continue;\nLM_UNROLL for (int32_t n = 0; n < %d; n++) {\n",
                w->at_m, w->at_n);
  lm_buf_printf(w->out,
                "const int64_t col = n0 + warp_n + 8 * n + lane %% 4 * 2;\n"
                "const int64_t at = at_c + m * %lld + col * %lld;\n"
                "%s z[2] = {s[i][n][2 * h], s[i][n][2 * h + 1]};\n",
                (long long)g->c_m, (long long)g->c_n, type);
  if (w->pairs && g->accumulate)
    lm_buf_puts(w->out, "if (col < n_end && adds) {\nfloat y[2];\nlm_load2_f32(y, c + at);\n"
                        "z[0] += y[0];\nz[1] += y[1];\n}\n");
  if (w->pairs)
    lm_buf_printf(w->out, "if (col < n_end) lm_store2_%s(c + at, z);\n", kind);
  for (int j = 0; !w->pairs && j < 2; j++) {
    const char *to = lm_arena_printf(w->arena, "c[at + %lld]", (long long)(j * g->c_n));
    lm_buf_printf(w->out, "if (col + %d < n_end) %s = ", j, to);
    if (g->accumulate)
      lm_buf_printf(w->out, "(adds ? %s : 0.0f) + ", to);
    const char *z = lm_arena_printf(w->arena, "z[%d]", j);
    lm_buf_printf(w->out, "%s;\n", lm_gen_store_text(w->arena, w->cc, z));
  }
  lm_buf_puts(w->out, "}\n}\n}\n");
}

// ---- the kernel

// As many blocks as the GPU runs at a time, or as there are tiles if these are fewer.
static int64_t blocks_of(const grouped *w, const lm_target *t) {
  const lm_plan_gemm *g = w->g;
  int64_t most = (int64_t)BLOCKS_FOR_A_UNIT * (t->units ? t->units : UNITS);
  int64_t tiles_m = pieces(g->m.fixed, w->m);
  int64_t tiles = pieces(g->n.fixed, w->n) * w->batches *
                  (g->groups.sums ? tiles_m * g->groups.count : tiles_m + g->groups.count);
  return g->m.n_dyn || tiles > most ? most : tiles;
}

bool cuda_grouped_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                       lm_arena *arena, lm_kernel_code *out) {
  if (!is_supported(g))
    return false;
  if (!any_rows && cuda_grouped_ring_emit(o, g, arena, out))
    return true;
  lm_buf b = {0};
  grouped w = grouped_make(o, g, arena, &b);
  cuda_code *c = cuda_code_make(arena, THREADS);
  params_add(&w, c);
  c->whole_block = true;
  c->paired = true;
  put_begin(&w);
  put_tiles(&w);
  put_origin(&w);
  put_sum(&w);
  put_results(&w);
  cuda_code_body(c, NULL, &b);
  *out = (lm_kernel_code){
      .launch = {.per_block = 1,
                 .blocks = blocks_of(&w, &o->target),
                 .shared = STAGES * (w.a.bytes + w.b.bytes),
                 .adds = g->accumulate},
  };
  cuda_code_render(c, "p", arena, out);
  return true;
}
