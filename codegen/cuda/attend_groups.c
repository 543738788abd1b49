// attend_groups.c - attention for sm_90a: two warpgroups multiply, a third brings tiles.
//
//   thread 256 on   copies the block's own rows; for each tile of columns in which anything is let through: waits until its
//                   place is free, copies it there, swizzled as wgmma reads it; when it has come, fences, says that it is ready
//   to thread 255   64 rows each group: waits for the next tile, multiplies, says that it is free
//
// A place is the tiles of one stretch of columns; which columns, and whether the mask may be left out, is told beside it, so that
// only the third group looks at the map. One group's elements are computed while the other's products run. The copies are of 16
// bytes, not of the tensor engine: that would need descriptors from the driver for each operand.
#include "codegen/cuda/attend.h"

enum { ROWS = CUDA_GROUP_ROWS, PLACES = 2, GROUP = 128, CONSUMERS = 256, POOL_MOST = 227 << 10, REGISTERS_FEWER = 40, REGISTERS_MORE = 232 };

bool cuda_attend_groups_tile(const cuda_attend *e, uint32_t k, const lm_attend_axes *own) {
  return (own->size == 64 || own->size == 128) && cuda_attend_in_runs(e->f.op->in[k]->type, own, 8);
}

static void copies(cuda_attend *e, lm_buf *b, const cuda_attend_side *side, bool rows) {
  const char *origin = rows ? "row0" : "col0", *extent = cuda_attend_extent(e, rows ? e->row : e->col);
  int places = rows ? ROWS : e->cols;
  long long vectors = side->own->size / 8;
  lm_buf at = {0};
  cuda_attend_offset(e, &at, e->f.op->in[side->k]->type, "at", "at");
  lm_buf_printf(b, "LM_UNROLL_1\nfor (int32_t i = me; i < %lld; i += %d) {\n", places * vectors, GROUP);
  lm_buf_printf(b, "const int32_t j = i / %lld, k = i %% %lld * 8;\nconst lm_at at = lm_clamp(%s + j, %s);\n", vectors, vectors, origin, extent);
  lm_buf_printf(b, "lm_copy_async(b%u, %slm_swizzled(%d, j, k), a%u + (%s + k), %s + j < %s);\n}\n", side->k,
                rows ? "" : lm_arena_printf(e->g.arena, "stage * %lld + ", places * (long long)side->own->size), places, side->k, at.p, origin, extent);
  lm_buf_free(&at);
}

static const char *const NEXT = "if (++stage == 2) {\nstage = 0;\nparity ^= 1;\n}\n";

static void producer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b, "lm_registers_fewer(%d);\nconst int32_t me = lm_thread() - %d;\n", REGISTERS_FEWER, CONSUMERS);
  for (int i = 0; i < w->n_row; i++) copies(e, b, &w->row[i], true);
  lm_buf_puts(b, "int32_t stage = 0, before = -1;\nuint32_t parity = 1;\n");
  lm_buf_puts(b, w->loops);
  lm_buf_printf(b, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n", cuda_attend_extent(e, e->col), e->cols);
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\n");
  for (int i = 0; i < w->n_col; i++) copies(e, b, &w->col[i], false);
  lm_buf_puts(b, "lm_copies_commit();\n");
  lm_buf_puts(b, w->beside);
  lm_buf_puts(b, "if (me == 0) lm_put(tiles, stage, (int64_t)col0 * 2 + full);\n");
  lm_buf_puts(b, "if (before >= 0) {\nlm_copies_wait(1);\nlm_proxy_fence();\nlm_phase_arrive(ready, before);\n}\nbefore = stage;\n");
  lm_buf_puts(b, NEXT);
  lm_buf_puts(b, "}\nlm_copies_wait(0);\nlm_proxy_fence();\nif (before >= 0) lm_phase_arrive(ready, before);\nbefore = -1;\n");
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\nif (me == 0) lm_put(tiles, stage, -1);\nlm_phase_arrive(ready, stage);\n");
  lm_buf_puts(b, NEXT);
  for (int i = 0; i < w->n_loops; i++) lm_buf_puts(b, "}\n");
}

// A place of no tile ends a round of the loops.
static void consumer(lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b, "lm_registers_more(%d);\n", REGISTERS_MORE);
  lm_buf_puts(b, w->first);
  lm_buf_puts(b, "int32_t stage = 0;\nuint32_t parity = 0;\n");
  lm_buf_puts(b, w->loops);
  lm_buf_puts(b, w->rows);
  lm_buf_puts(b, "for (bool more = true; more;) {\nlm_phase_wait(ready, stage, parity);\nconst int64_t tile = lm_get(tiles, stage);\nmore = tile >= 0;\nif (more) {\n");
  lm_buf_puts(b, "const lm_at col0 = (lm_at)(tile / 2);\nconst bool full = tile % 2 != 0;\n(void)full;\n");
  lm_buf_puts(b, w->tile);
  lm_buf_puts(b, "}\nlm_warp_sync(~0u);\nif (lm_thread() % 32 == 0) lm_phase_arrive(done, stage);\n");
  lm_buf_puts(b, NEXT);
  lm_buf_puts(b, "}\n");
  for (int i = 0; i < w->n_loops; i++) lm_buf_puts(b, "}\n");
  lm_buf_puts(b, w->last);
}

void cuda_attend_groups_pools(cuda_attend *e, const cuda_attend_work *w) {
  for (int i = 0; i < w->n_row; i++) cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->row[i].k, ROWS * w->row[i].own->size);
  for (int i = 0; i < w->n_col; i++) cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->col[i].k, PLACES * e->cols * w->col[i].own->size);
  cuda_attend_pool(e, "uint64_t", 8, "ready", -1, PLACES);
  cuda_attend_pool(e, "uint64_t", 8, "done", -1, PLACES);
  cuda_attend_pool(e, "int64_t", 8, "tiles", -1, PLACES);
  LM_ASSERT(e->pool_most <= POOL_MOST);
}

void cuda_attend_groups_put(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  e->threads = CONSUMERS + GROUP;
  lm_buf_printf(b, "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, i, %d);\nlm_phase_make(done, i, %d);\n}\n}\nlm_barrier();\n", PLACES, GROUP, CONSUMERS / 32);
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

bool cuda_attend_groups_forward_fit(const cuda_attend *e) {
  const lm_attend_product *p = e->f.products;
  return e->half && e->f.n_products == 1 && lm_axis_size(e->f.m, e->f.t) > ROWS / 2 && cuda_attend_groups_tile(e, p->row, &p->over) &&
         cuda_attend_groups_tile(e, p->col, &p->over) && cuda_attend_groups_tile(e, LM_ATTEND_V, &e->f.v_own);
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
