// attend_groups.c - attention for sm_90a: two warpgroups multiply, a third has tiles brought by the copy engine.
//
//   thread 256 on   one thread asks for the block's own rows; then, for each tile of columns in which anything is let through:
//                   waits until its place is free, asks for it there; the phase that says "ready" ends when its bytes are there
//   to thread 255   64 rows each group: waits for the next tile, multiplies, says that it is free
//
// A place is the tiles of one stretch of columns; which columns, and whether the mask may be left out, is told beside it, so that
// only the third group looks at the map. One group's elements are computed while the other's products run.
//
// An operand [outer.., t, inner.., own..] is a tensor (own, inner, t, outer) to the copy engine; tiles are boxes of 64 x 1 x 64 x 1.
#include "codegen/cuda/attend.h"

enum { ROWS = CUDA_GROUP_ROWS, PLACES = 2, BOX = 64, GROUP = 128, CONSUMERS = 256, POOL_MOST = 227 << 10, REGISTERS_FEWER = 40, REGISTERS_MORE = 232 };

const char *cuda_attend_groups_tile_why(cuda_attend *e, uint32_t k, const lm_attend_axes *own) {
  if (own->size != 64 && own->size != 128) return lm_arena_printf(e->g.arena, "heads of %lld elements, not 64 or 128", (long long)own->size);
  return cuda_attend_in_runs(e->f.op->in[k]->type, own, 8) ? NULL : "heads that are no runs of memory";
}

// ---- tiles

static int place_dim(const cuda_attend *e, lm_type t) { return lm_type_find(t, cuda_attend_has(t, e->f.t) ? e->f.t : e->f.s); }

static int64_t axes_size(const cuda_attend *e, lm_type t, int from, int to) {
  int64_t n = 1;
  for (int i = from; i < to; i++) n *= lm_axis_size(e->f.m, t.axis[i]);
  return n;
}

static void map_need(cuda_attend *e, const cuda_attend_side *side) {
  lm_type t = e->f.op->in[side->k]->type;
  int at = place_dim(e, t), inner = t.rank - side->own->n;
  const lm_axis_info *place = &e->f.m->axes[t.axis[at]];
  int64_t size[] = {side->own->size, axes_size(e, t, at + 1, inner), place->size, axes_size(e, t, 0, at)}, stride = 2;
  for (int i = 0; i < e->n_maps; i++)
    if (e->maps[i].buf == (int)side->k) return;
  LM_ASSERT(e->n_maps < LM_PLAN_MAPS);
  lm_plan_map *m = &e->maps[e->n_maps++];
  *m = (lm_plan_map){.buf = (int)side->k};
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    m->dim[i].size.fixed = size[i];
    m->dim[i].stride = stride;
    m->dim[i].box = i % 2 ? 1 : BOX;
    stride *= size[i];
  }
  if (place->dyn) m->dim[2].size = (lm_plan_extent){.fixed = 1, .n_dyn = 1, .dyn = {{.var = place->dyn - 1}}};
  if (place->dyn) cuda_attend_extent(e, t.axis[at]);
}

// "0 + i_g * 3 + i_h": the number among axes of t from `from` to before `to`.
static const char *number_among(cuda_attend *e, lm_type t, int from, int to) {
  const char *text = "0";
  for (int i = from; i < to; i++)
    text = lm_arena_printf(e->g.arena, "%s + %s * %lld", text, cuda_attend_coordinate(e, t.axis[i]), (long long)axes_size(e, t, i + 1, to));
  return text;
}

static int places_of(const cuda_attend *e, bool rows) { return rows ? ROWS : e->cols; }

// Has tiles brought; the phase also waits for their bytes.
static void copies(cuda_attend *e, lm_buf *b, const cuda_attend_side *sides, int n, bool rows, const char *phase) {
  long long bytes = 0;
  for (int i = 0; i < n; i++) bytes += 2 * places_of(e, rows) * sides[i].own->size;
  lm_buf_printf(b, "lm_phase_expect(ready, %s, %lld);\n", phase, bytes);
  for (int i = 0; i < n; i++) {
    const cuda_attend_side *s = &sides[i];
    lm_type t = e->f.op->in[s->k]->type;
    int at = place_dim(e, t);
    map_need(e, s);
    const char *place = rows ? "" : lm_arena_printf(e->g.arena, " + stage * %lld", e->cols * (long long)s->own->size);
    lm_buf_printf(b, "LM_GROUP_FETCH(b%u%s, %d, %lld, m%u, %s, %s, %s, ready, %s)\n", s->k, place, places_of(e, rows), (long long)s->own->size, s->k,
                  number_among(e, t, at + 1, t.rank - s->own->n), rows ? "row0" : "col0", number_among(e, t, 0, at), phase);
  }
}

static const char *const NEXT = "if (++stage == 2) {\nstage = 0;\nparity ^= 1;\n}\n";

// Without work beside the tiles one warp is enough, and one thread says that a place is ready.
static int producers(const cuda_attend_work *w) { return *w->beside ? GROUP : 32; }
static int sayers(const cuda_attend_work *w) { return *w->beside ? GROUP : 1; }
static const char *say(const cuda_attend_work *w) { return *w->beside ? "lm_phase_arrive(ready, stage);\n" : "if (me == 0) lm_phase_arrive(ready, stage);\n"; }

static void producer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b, "lm_registers_fewer(%d);\nconst int32_t me = lm_thread() - %d;\nif (me < %d) {\nif (me == 0) {\n", REGISTERS_FEWER, CONSUMERS, producers(w));
  copies(e, b, w->row, w->n_row, true, lm_arena_printf(e->g.arena, "%d", PLACES));
  lm_buf_printf(b, "lm_phase_arrive(ready, %d);\n}\nint32_t stage = 0;\nuint32_t parity = 1;\n", PLACES);
  lm_buf_puts(b, w->loops);
  lm_buf_printf(b, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n", cuda_attend_extent(e, e->col), e->cols);
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\nif (me == 0) {\nlm_put(tiles, stage, (int32_t)col0 * 2 + full);\n");
  copies(e, b, w->col, w->n_col, false, "stage");
  lm_buf_printf(b, "}\n%s%s%s}\n", w->beside, say(w), NEXT);
  lm_buf_printf(b, "lm_phase_wait(done, stage, parity);\nif (me == 0) lm_put(tiles, stage, -1);\n%s%s", say(w), NEXT);
  for (int i = 0; i <= w->n_loops; i++) lm_buf_puts(b, "}\n");
}

static const char *const FREE = "lm_warp_sync(~0u);\nif (lm_thread() % 32 == 0) lm_phase_arrive(done, stage);\n";

// A place of no tile ends a round of the loops.
static void consumer(lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b, "lm_registers_more(%d);\n", REGISTERS_MORE);
  lm_buf_puts(b, w->first);
  lm_buf_printf(b, "int32_t stage = 0;\nuint32_t parity = 0;\nlm_phase_wait(ready, %d, 0);\n", PLACES);
  lm_buf_puts(b, w->loops);
  lm_buf_puts(b, w->rows);
  lm_buf_puts(b, "for (;;) {\nlm_phase_wait(ready, stage, parity);\nconst int32_t tile = lm_get(tiles, stage);\nif (tile < 0) break;\n");
  lm_buf_puts(b, "const lm_at col0 = tile / 2;\nconst bool full = tile % 2;\n(void)full;\n");
  lm_buf_puts(b, w->tile);
  lm_buf_printf(b, "%s%s}\n%s%s", FREE, NEXT, FREE, NEXT);
  for (int i = 0; i < w->n_loops; i++) lm_buf_puts(b, "}\n");
  lm_buf_puts(b, w->last);
}

void cuda_attend_groups_pools(cuda_attend *e, const cuda_attend_work *w) {
  for (int i = 0; i < w->n_row; i++) cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->row[i].k, ROWS * w->row[i].own->size);
  for (int i = 0; i < w->n_col; i++) cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->col[i].k, PLACES * e->cols * w->col[i].own->size);
  cuda_attend_pool(e, "uint64_t", 8, "ready", -1, PLACES + 1);
  cuda_attend_pool(e, "uint64_t", 8, "done", -1, PLACES);
  cuda_attend_pool(e, "int32_t", 4, "tiles", -1, PLACES);
  LM_ASSERT(e->pool_most <= POOL_MOST);
}

void cuda_attend_groups_put(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  e->threads = CONSUMERS + GROUP;
  lm_buf_printf(b, "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, i, %d);\nlm_phase_make(done, i, %d);\n}\n", PLACES, sayers(w), CONSUMERS / 32);
  lm_buf_printf(b, "lm_phase_make(ready, %d, 1);\nlm_proxy_fence();\n}\nlm_barrier();\n", PLACES);
  lm_buf_printf(b, "if (lm_thread() >= %d) {\n", CONSUMERS);
  producer(e, b, w);
  lm_buf_puts(b, "} else {\n");
  consumer(b, w);
  lm_buf_puts(b, "}\n");
}

void cuda_attend_work_side(cuda_attend_side *to, int *n, uint32_t k, const lm_attend_axes *own) {
  for (int i = 0; i < *n; i++)
    if (to[i].k == k) return;
  to[(*n)++] = (cuda_attend_side){k, own};
}

// ---- forward

const char *cuda_attend_groups_forward_why(cuda_attend *e) {
  const lm_attend_product *p = e->f.products;
  const char *why = NULL;
  if (!e->half) return "operands that are not bf16";
  if (e->f.n_products != 1) return "scores of several products";
  if (lm_axis_size(e->f.m, e->f.t) <= ROWS / 2) return "64 queries or less";
  why = cuda_attend_groups_tile_why(e, p->row, &p->over);
  if (!why) why = cuda_attend_groups_tile_why(e, p->col, &p->over);
  return why ? why : cuda_attend_groups_tile_why(e, LM_ATTEND_V, &e->f.v_own);
}

int64_t cuda_attend_groups_forward(cuda_attend *e, lm_buf *b) {
  const lm_attend_product *p = e->f.products;
  long long width = e->f.v_own.size;
  lm_buf tile = {0}, rows = {0}, last = {0}, text = {0};
  cuda_attend_section_begin(e, false);
  cuda_attend_work w = {.loops = "", .beside = "", .first = "", .row = {{p->row, &p->over}}, .n_row = 1, .col = {{p->col, &p->over}, {LM_ATTEND_V, &e->f.v_own}}, .n_col = 2};
  cuda_attend_groups_pools(e, &w);
  cuda_attend_product(e, &tile, "p0", p->row, p->col, p->over.size);
  cuda_attend_products_wait(e, &tile, 1, (const char *const[]){"p0"});
  cuda_attend_softmax(e, &tile, width);
  cuda_attend_weighted(e, &tile, "o", "x", LM_ATTEND_V, width);
  int64_t blocks = cuda_attend_rows_begin(e, b);
  cuda_attend_rows(e, &rows);
  cuda_attend_sums_begin(&rows, width);
  cuda_attend_results(e, &last);
  w.tile = tile.p;
  w.rows = rows.p;
  w.last = last.p;
  cuda_attend_groups_put(e, &text, &w);
  cuda_attend_section_put(e, &text, b);
  lm_buf *used[] = {&tile, &rows, &last, &text};
  for (size_t i = 0; i < LM_COUNT(used); i++) lm_buf_free(used[i]);
  return blocks;
}
