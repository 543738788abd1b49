// attend_groups.c - attention forward for sm_90a: two warpgroups multiply and take softmaxes, a third brings tiles.
//
//   thread 256 on   for each tile of s in which anything is let through: wait until its place is free, copy k and v there,
//                   swizzled as wgmma reads them; when they have come, fence, and say that it is ready
//   to thread 255   64 rows of t each group: wait for the next tile, x = q k, softmax, o += e^(x - m) v; say that it is free
//
// A place is a pair of tiles; which columns lie in it, and whether the mask may be left out, is told beside it, so that only
// the third group looks at the map. A softmax of one group runs while the other's products do. The copies are of 16 bytes, not
// of the tensor engine: that would need descriptors from the driver for each operand, and the swizzle costs nothing here.
#include "codegen/cuda/attend.h"

enum { ROWS = 128, COLS = 128, PLACES = 2, GROUP = 128, CONSUMERS = 256, POOL_MOST = 227 << 10, REGISTERS_FEWER = 40, REGISTERS_MORE = 232 };

static bool tile_fits(const cuda_attend *e, uint32_t k, const lm_attend_axes *own) {
  return (own->size == 64 || own->size == 128) && cuda_attend_in_runs(e->f.op->in[k]->type, own, 8);
}

bool cuda_attend_groups_fit(const cuda_attend *e) {
  const lm_attend_product *p = e->f.products;
  return !e->f.vjp && e->half && e->f.n_products == 1 && lm_axis_size(e->f.m, e->f.t) > ROWS / 2 && tile_fits(e, p->row, &p->over) &&
         tile_fits(e, p->col, &p->over) && tile_fits(e, LM_ATTEND_V, &e->f.v_own);
}

static void copies(cuda_attend *e, lm_buf *b, uint32_t k, const lm_attend_axes *own, bool rows) {
  const char *origin = rows ? "row0" : "col0", *extent = cuda_attend_extent(e, rows ? e->row : e->col);
  int places = rows ? ROWS : COLS;
  long long vectors = own->size / 8;
  lm_buf at = {0};
  cuda_attend_offset(e, &at, e->f.op->in[k]->type, "at", "at");
  lm_buf_printf(b, "for (int32_t i = me; i < %lld; i += %d) {\n", places * vectors, GROUP);
  lm_buf_printf(b, "const int32_t j = i / %lld, k = i %% %lld * 8;\nconst lm_at at = lm_clamp(%s + j, %s);\n", vectors, vectors, origin, extent);
  lm_buf_printf(b, "lm_copy_async(b%u, %slm_swizzled(%d, j, k), a%u + (%s + k), %s + j < %s);\n}\n", k,
                rows ? "" : lm_arena_printf(e->g.arena, "stage * %lld + ", COLS * (long long)own->size), places, k, at.p, origin, extent);
  lm_buf_free(&at);
}

static const char *const NEXT = "if (++stage == 2) {\nstage = 0;\nparity ^= 1;\n}\n";

static void producer(cuda_attend *e, lm_buf *b) {
  const lm_attend_product *p = e->f.products;
  lm_buf_printf(b, "lm_registers_fewer(%d);\nconst int32_t me = lm_thread() - %d;\n", REGISTERS_FEWER, CONSUMERS);
  copies(e, b, p->row, &p->over, true);
  lm_buf_puts(b, "int32_t stage = 0, before = -1;\nuint32_t parity = 1;\n");
  lm_buf_printf(b, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n", cuda_attend_extent(e, e->col), COLS);
  cuda_attend_map_check(e, b);
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\n");
  copies(e, b, p->col, &p->over, false);
  copies(e, b, LM_ATTEND_V, &e->f.v_own, false);
  lm_buf_puts(b, "if (me == 0) lm_put(tiles, stage, (int64_t)col0 * 2 + full);\nlm_copies_commit();\n");
  lm_buf_puts(b, "if (before >= 0) {\nlm_copies_wait(1);\nlm_proxy_fence();\nlm_phase_arrive(ready, before);\n}\nbefore = stage;\n");
  lm_buf_puts(b, NEXT);
  lm_buf_puts(b, "}\nlm_copies_wait(0);\nlm_proxy_fence();\nif (before >= 0) lm_phase_arrive(ready, before);\n");
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\nif (me == 0) lm_put(tiles, stage, -1);\nlm_phase_arrive(ready, stage);\n");
}

static void consumer(cuda_attend *e, lm_buf *b) {
  const lm_attend_product *p = e->f.products;
  long long width = e->f.v_own.size;
  lm_buf tile = {0};
  lm_buf_printf(&tile, "float p0[%d][4];\nLM_GROUP_PRODUCT(p0, %d, b%u, lm_thread() / %d * 64, %d, b%u + stage * %lld, %lld)\n", COLS / 8, COLS, p->row, GROUP, ROWS,
                p->col, COLS * (long long)p->over.size, (long long)p->over.size);
  cuda_attend_softmax(e, &tile, width);
  lm_buf_printf(&tile, "LM_GROUP_WEIGHTED(o, %lld, x, %d, b%d + stage * %lld)\n", width, COLS, LM_ATTEND_V, COLS * width);
  lm_buf_printf(b, "lm_registers_more(%d);\n", REGISTERS_MORE);
  cuda_attend_rows(e, b);
  cuda_attend_sums_begin(b, width);
  lm_buf_puts(b, "int32_t stage = 0;\nuint32_t parity = 0;\nfor (;;) {\nlm_phase_wait(ready, stage, parity);\nconst int64_t tile = lm_get(tiles, stage);\nif (tile < 0) break;\n");
  lm_buf_puts(b, "const lm_at col0 = (lm_at)(tile / 2);\nconst bool full = tile % 2 != 0;\n(void)full;\n");
  lm_buf_add(b, tile.p, tile.n);
  lm_buf_puts(b, "lm_warp_sync(~0u);\nif (lm_thread() % 32 == 0) lm_phase_arrive(done, stage);\n");
  lm_buf_puts(b, NEXT);
  lm_buf_puts(b, "}\n");
  cuda_attend_results(e, b);
  lm_buf_free(&tile);
}

static void pools(cuda_attend *e) {
  const lm_attend_product *p = e->f.products;
  cuda_attend_pool(e, "uint16_t", 2, "b", (int)p->row, ROWS * p->over.size);
  cuda_attend_pool(e, "uint16_t", 2, "b", (int)p->col, PLACES * COLS * p->over.size);
  cuda_attend_pool(e, "uint16_t", 2, "b", LM_ATTEND_V, PLACES * COLS * e->f.v_own.size);
  cuda_attend_pool(e, "uint64_t", 8, "ready", -1, PLACES);
  cuda_attend_pool(e, "uint64_t", 8, "done", -1, PLACES);
  cuda_attend_pool(e, "int64_t", 8, "tiles", -1, PLACES);
  LM_ASSERT(e->pool_most <= POOL_MOST);
}

int64_t cuda_attend_groups(cuda_attend *e, lm_buf *b) {
  lm_buf bring = {0}, multiply = {0}, text = {0};
  e->rows = ROWS;
  e->cols = COLS;
  e->threads = CONSUMERS + GROUP;
  cuda_attend_section_begin(e, false);
  pools(e);
  producer(e, &bring);
  consumer(e, &multiply);
  int64_t blocks = cuda_attend_rows_begin(e, b);
  lm_buf_printf(&text, "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, i, %d);\nlm_phase_make(done, i, %d);\n}\n}\nlm_barrier();\n", PLACES, GROUP, CONSUMERS / 32);
  lm_buf_printf(&text, "if (lm_thread() >= %d) {\n%s} else {\n%s}\n", CONSUMERS, bring.p, multiply.p);
  cuda_attend_section_put(e, &text, b);
  lm_buf *used[] = {&bring, &multiply, &text};
  for (size_t i = 0; i < LM_COUNT(used); i++) lm_buf_free(used[i]);
  return blocks;
}
