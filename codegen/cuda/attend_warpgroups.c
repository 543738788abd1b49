// attend_warpgroups.c - attention for sm_90a: two consumer warpgroups multiply, a third, the
// producer, starts the copies of tiles by TMA.
//
//   thread 256 on   one thread copies the block's own rows; then, for each tile of columns that is
//                   not masked: waits until a stage is free and starts the copy into it; the phase
//                   of the barrier `ready` ends when all bytes have arrived
//   to thread 255   64 rows for each group: waits for the next tile, multiplies, arrives at `done`
//
// Columns arrive in one stream, or in the forward pass in two, keys and values, whose stages become
// free at different times. A stage holds the tiles of one range of columns; `tiles` holds the first
// column of each stage and whether the mask is unnecessary, so that only the producer reads the
// block map. The elementwise work of one group overlaps with the GEMMs of the other.
//
// TMA sees an operand [outer.., t, inner.., channels..] as a tensor (channels, inner, t, outer);
// tiles are boxes of 64 x 1 x 64 x 1.
#include "codegen/cuda/attend.h"

enum {
  ROWS = CUDA_WARPGROUP_ROWS,
  STAGES = 2,
  BOX = 64,
  GROUP = 128,
  CONSUMERS = 256,
  MAX_POOL = 227 << 10
};

const char *cuda_attend_warpgroups_tile_why(cuda_attend *e, uint32_t k,
                                            const lm_attend_axes *channels) {
  if (channels->size != 64 && channels->size != 128)
    return lm_arena_printf(e->g.arena, "heads of %lld elements, not 64 or 128",
                           (long long)channels->size);
  return cuda_attend_in_runs(e->f.op->in[k]->type, channels, 8)
             ? NULL
             : "heads that are not contiguous in memory";
}

// ---- tiles

static int position_dim(const cuda_attend *e, lm_type t) {
  return lm_type_find(t, cuda_attend_has(t, e->f.t) ? e->f.t : e->f.s);
}

static int64_t axes_size(const cuda_attend *e, lm_type t, int from, int to) {
  int64_t n = 1;
  for (int i = from; i < to; i++)
    n *= lm_axis_size(e->f.m, t.axis[i]);
  return n;
}

static void map_need(cuda_attend *e, const cuda_attend_side *side) {
  lm_type t = e->f.op->in[side->k]->type;
  int at = position_dim(e, t);
  int inner = t.rank - side->channels->n;
  const lm_axis_info *position = &e->f.m->axes[t.axis[at]];
  int64_t size[] = {side->channels->size, axes_size(e, t, at + 1, inner), position->size,
                    axes_size(e, t, 0, at)};
  int64_t stride[] = {1, cuda_attend_unit(e, side->k, at + 1, inner), e->stride[side->k][at],
                      cuda_attend_unit(e, side->k, 0, at)};
  for (int i = 0; i < e->n_maps; i++)
    if (e->maps[i].buf == (int)side->k)
      return;
  LM_ASSERT(e->n_maps < LM_PLAN_MAPS);
  lm_plan_map *m = &e->maps[e->n_maps++];
  *m = (lm_plan_map){.buf = (int)side->k};
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    m->dim[i].size.fixed = size[i];
    m->dim[i].stride = 2 * (stride[i] ? stride[i] : stride[2]); // any, of one element
    m->dim[i].box = i % 2 ? 1 : BOX;
  }
  if (position->dyn)
    m->dim[2].size = (lm_plan_extent){.fixed = 1, .n_dyn = 1, .dyn = {{.var = position->dyn - 1}}};
  if (position->dyn)
    cuda_attend_extent(e, t.axis[at]);
}

// "0 + i_g * 3 + i_h": the flat index along axes from..to-1 of t.
static const char *number_among(cuda_attend *e, lm_type t, int from, int to) {
  const char *text = "0";
  for (int i = from; i < to; i++)
    text = lm_arena_printf(e->g.arena, "%s + %s * %lld", text,
                           lm_attend_coordinate(&e->values, t.axis[i]),
                           (long long)axes_size(e, t, i + 1, to));
  return text;
}

static int tile_positions(const cuda_attend *e, bool rows) {
  return rows ? ROWS : e->cols;
}

// Starts the copies of tiles; the phase also waits for their bytes.
static void copies(cuda_attend *e, lm_buf *b, const cuda_attend_side *sides, int n, bool rows,
                   const char *phase) {
  long long bytes = 0;
  for (int i = 0; i < n; i++)
    bytes += 2 * tile_positions(e, rows) * sides[i].channels->size;
  lm_buf_printf(b, "lm_phase_expect(ready, %s, %lld);\n", phase, bytes);
  for (int i = 0; i < n; i++) {
    const cuda_attend_side *s = &sides[i];
    lm_type t = e->f.op->in[s->k]->type;
    int at = position_dim(e, t);
    map_need(e, s);
    const char *position = rows ? ""
                                : lm_arena_printf(e->g.arena, " + stage * %lld",
                                                  e->cols * (long long)s->channels->size);
    lm_buf_printf(b, "LM_GROUP_FETCH(b%u%s, %d, %lld, m%u, %s, %s, %s, ready, %s)\n", s->k,
                  position, tile_positions(e, rows), (long long)s->channels->size, s->k,
                  number_among(e, t, at + 1, t.rank - s->channels->n), rows ? "row0" : "col0",
                  number_among(e, t, 0, at), phase);
  }
}

static const char *const NEXT = "if (++stage == 2) {\nstage = 0;\nparity ^= 1;\n}\n";

// The barriers of a stream's stages come after the barriers of all earlier streams.
static const char *phase_of(cuda_attend *e, int stream, const char *stage) {
  return stream ? lm_arena_printf(e->g.arena, "%d + %s", stream * STAGES, stage) : stage;
}

// Without further work for each tile one warp is enough, and one thread arrives for a stage.
static int producers(const cuda_attend_work *w) {
  return *w->per_tile ? GROUP : 32;
}
static int arrivals(const cuda_attend_work *w) {
  return *w->per_tile ? GROUP : 1;
}
static int rows_phase(const cuda_attend_work *w) {
  return w->n_streams * STAGES;
}
// Registers of a thread; the three warpgroups share 504. Addresses for the additional work take
// some.
static int producer_registers(const cuda_attend_work *w) {
  return *w->per_tile ? 40 : 24;
}
static int consumer_registers(const cuda_attend_work *w) {
  return *w->per_tile ? 232 : 240;
}

static void stream_fill(cuda_attend *e, lm_buf *b, const cuda_attend_work *w, int stream) {
  const char *phase = phase_of(e, stream, "stage");
  int from = stream * w->n_col / w->n_streams;
  int to = (stream + 1) * w->n_col / w->n_streams;
  lm_buf_printf(b, "lm_phase_wait(done, %s, parity);\nif (me == 0) {\n", phase);
  if (!stream)
    lm_buf_puts(b, "lm_put(tiles, stage, (int32_t)col0 * 2 + full);\n");
  copies(e, b, w->col + from, to - from, false, phase);
  lm_buf_printf(
      b, *w->per_tile ? "}\n%slm_phase_arrive(ready, %s);\n" : "%slm_phase_arrive(ready, %s);\n}\n",
      w->per_tile, phase);
}

static void producer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b,
                "lm_registers_fewer(%d);\nconst int32_t me = lm_thread() - %d;\nif (me < %d) {\nif "
                "(me == 0) {\n",
                producer_registers(w), CONSUMERS, producers(w));
  copies(e, b, w->row, w->n_row, true, lm_arena_printf(e->g.arena, "%d", rows_phase(w)));
  lm_buf_printf(b, "lm_phase_arrive(ready, %d);\n}\nint32_t stage = 0;\nuint32_t parity = 1;\n",
                rows_phase(w));
  lm_buf_puts(b, w->loops);
  lm_buf_printf(b, "for (lm_at col0 = 0; col0 < %s; col0 += %d) {\n",
                cuda_attend_extent(e, e->values.col), e->cols);
  cuda_attend_map_check(e, b);
  for (int i = 0; i < w->n_streams; i++)
    stream_fill(e, b, w, i);
  lm_buf_printf(b,
                "%s}\nlm_phase_wait(done, stage, parity);\nif (me == 0) lm_put(tiles, stage, "
                "-1);\nif (me < %d) lm_phase_arrive(ready, stage);\n%s",
                NEXT, arrivals(w), NEXT);
  for (int i = 0; i <= w->n_loops; i++)
    lm_buf_puts(b, "}\n");
}

// Releases a stage: all lanes have read it.
static const char *release_text(cuda_attend *e, const char *phase) {
  return lm_arena_printf(
      e->g.arena, "lm_warp_sync(~0u);\nif (lm_thread() %% 32 == 0) lm_phase_arrive(done, %s);\n",
      phase);
}

static const char *const TILE =
    "const lm_at col0 = tile / 2;\nconst bool full = tile % 2;\n(void)full;\n";

static void consumer_begin(lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b,
                "lm_registers_more(%d);\n%sint32_t stage = 0;\nuint32_t parity = "
                "0;\nlm_phase_wait(ready, %d, 0);\n%s",
                consumer_registers(w), w->first, rows_phase(w), w->held);
}

// A stage without a tile ends one iteration of the loops.
static void consumer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  const char *done = release_text(e, "stage");
  consumer_begin(b, w);
  lm_buf_printf(b, "%s%s", w->loops, w->rows);
  lm_buf_printf(b,
                "for (;;) {\nlm_phase_wait(ready, stage, parity);\nconst int32_t tile = "
                "lm_get(tiles, stage);\nif (tile < 0) break;\n%s",
                TILE);
  lm_buf_printf(b, "%s%s%s}\n%s%s", w->tile, done, NEXT, done, NEXT);
  for (int i = 0; i < w->n_loops; i++)
    lm_buf_puts(b, "}\n");
  lm_buf_puts(b, w->last);
}

void cuda_attend_warpgroups_pools(cuda_attend *e, const cuda_attend_work *w) {
  for (int i = 0; i < w->n_row; i++)
    cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->row[i].k, ROWS * w->row[i].channels->size);
  for (int i = 0; i < w->n_col; i++)
    cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->col[i].k,
                     STAGES * e->cols * w->col[i].channels->size);
  cuda_attend_pool(e, "uint64_t", 8, "ready", -1, rows_phase(w) + 1);
  cuda_attend_pool(e, "uint64_t", 8, "done", -1, rows_phase(w));
  cuda_attend_pool(e, "int32_t", 4, "tiles", -1, STAGES);
  LM_ASSERT(e->max_pool <= MAX_POOL);
}

// The threads up to 255, two warpgroups, execute `multiply`.
static void groups_put(cuda_attend *e, lm_buf *b, const cuda_attend_work *w,
                       const lm_buf *multiply) {
  e->threads = CONSUMERS + GROUP;
  lm_buf_printf(b,
                "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, "
                "i, %d);\nlm_phase_make(done, i, %d);\n}\n",
                rows_phase(w), arrivals(w), CONSUMERS / 32);
  lm_buf_printf(b, "lm_phase_make(ready, %d, 1);\nlm_proxy_fence();\n}\nlm_barrier();\n",
                rows_phase(w));
  lm_buf_printf(b, "if (lm_thread() >= %d) {\n", CONSUMERS);
  producer(e, b, w);
  lm_buf_puts(b, "} else {\n");
  lm_buf_add(b, multiply->p, multiply->n);
  lm_buf_puts(b, "}\n");
}

void cuda_attend_warpgroups_put(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  lm_buf text = {0};
  consumer(e, &text, w);
  groups_put(e, b, w, &text);
  lm_buf_free(&text);
}

void cuda_attend_work_side(cuda_attend_side *to, int *n, uint32_t k,
                           const lm_attend_axes *channels) {
  for (int i = 0; i < *n; i++)
    if (to[i].k == k)
      return;
  to[(*n)++] = (cuda_attend_side){k, channels};
}

// ---- forward

const char *cuda_attend_warpgroups_forward_why(cuda_attend *e) {
  const lm_attend_dot *p = e->f.dots;
  const char *why = NULL;
  if (e->half != LM_BF16)
    return "operands that are not bf16";
  if (e->f.n_dots != 1)
    return "scores of several dots";
  if (lm_axis_size(e->f.m, e->f.t) <= ROWS / 2)
    return "64 queries or less";
  why = cuda_attend_warpgroups_tile_why(e, p->row, &p->over);
  if (!why)
    why = cuda_attend_warpgroups_tile_why(e, p->col, &p->over);
  return why ? why : cuda_attend_warpgroups_tile_why(e, LM_ATTEND_V, &e->f.v_channels);
}

// The scores of the tile at `stage` and their softmax; `between` is the text between the issue of
// the GEMM and its completion.
static void forward_tile(cuda_attend *e, lm_buf *b, const char *issue, const char *between) {
  lm_buf_printf(b, "%s%s%s%s", TILE, issue, between, release_text(e, "stage"));
  cuda_attend_softmax(e, b);
}

static const char *captured(cuda_attend *e, void (*write)(cuda_attend *e, lm_buf *b)) {
  lm_buf b = {0};
  write(e, &b);
  const char *text = lm_arena_strndup(e->g.arena, b.p, b.n);
  lm_buf_free(&b);
  return text;
}

static void scores_issue(cuda_attend *e, lm_buf *b) {
  const lm_attend_dot *p = e->f.dots;
  cuda_attend_dot(e, b, "p0", p->row, p->col, p->over.size);
}

static void values_issue(cuda_attend *e, lm_buf *b) {
  long long width = e->f.v_channels.size;
  lm_buf_printf(b, "lm_phase_wait(ready, %s, parity_v);\n", phase_of(e, 1, "v"));
  lm_buf_printf(b, "LM_GROUP_WEIGHTED(o, %lld, w, %d, b%u + v * %lld)\n", width, e->cols,
                LM_ATTEND_V, e->cols * width);
}

// o += w v of a tile is in flight while the scores of the next tile are multiplied and weighted.
// The scores are issued first, since they are waited for first. The warpgroups alternate in issuing
// GEMMs (named barriers), so that the exponentials of one group overlap with the GEMMs of the
// other.
static void forward_consumer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  long long width = e->f.v_channels.size;
  const char *scores = captured(e, scores_issue);
  const char *values = captured(e, values_issue);
  const char *settled = lm_arena_printf(e->g.arena, "lm_wgmma_settle(p0, %d);\n", e->cols / 8);
  const char *pack = lm_arena_printf(e->g.arena, "LM_GROUP_PACK(w, x, %d)\n", e->cols);
  const char *values_end =
      lm_arena_printf(e->g.arena, "lm_wgmma_wait(0);\nlm_wgmma_settle(o, %lld);\n", width / 8);
  consumer_begin(b, w);
  lm_buf_printf(b, "%sconst int32_t group = lm_thread() / %d;\nuint32_t w[%d][4];\n", w->rows,
                GROUP, e->cols / 16);
  lm_buf_puts(
      b, "if (group == 1) lm_pingpong_arrive(0);\nlm_phase_wait(ready, stage, parity);\nint32_t "
         "tile = lm_get(tiles, stage);\nif (tile >= 0) {\n{\n");
  forward_tile(e, b, scores, lm_arena_printf(e->g.arena, "lm_wgmma_wait(0);\n%s", settled));
  lm_buf_printf(b,
                "(void)change;\n%s}\nint32_t v;\nuint32_t parity_v;\nfor (;;) {\nv = "
                "stage;\nparity_v = parity;\n%s",
                pack, NEXT);
  lm_buf_puts(b, "lm_phase_wait(ready, stage, parity);\ntile = lm_get(tiles, stage);\nif (tile < "
                 "0) break;\nlm_pingpong_wait(group);\n");
  forward_tile(e, b, scores,
               lm_arena_printf(e->g.arena,
                               "%slm_pingpong_arrive(1 - group);\nlm_wgmma_wait(1);\n%s", values,
                               settled));
  lm_buf_printf(b, "lm_order_after(sum[0] + sum[1]);\n%s%s", values_end,
                release_text(e, phase_of(e, 1, "v")));
  cuda_attend_rescale(b, width);
  lm_buf_printf(b, "%s}\n%s%s}\nif (group == 0) lm_pingpong_wait(0);\n%s", pack, values, values_end,
                w->last);
}

int64_t cuda_attend_warpgroups_forward(cuda_attend *e, lm_buf *b) {
  const lm_attend_dot *p = e->f.dots;
  lm_buf rows = {0};
  lm_buf last = {0};
  lm_buf multiply = {0};
  lm_buf text = {0};
  cuda_attend_section_begin(e, false);
  cuda_attend_work w = {.loops = "",
                        .per_tile = "",
                        .first = "",
                        .held = "",
                        .row = {{p->row, &p->over}},
                        .n_row = 1,
                        .col = {{p->col, &p->over}, {LM_ATTEND_V, &e->f.v_channels}},
                        .n_col = 2,
                        .n_streams = 2};
  cuda_attend_warpgroups_pools(e, &w);
  lm_buf tile = {0};
  // called only for its declarations of arrays by row
  cuda_attend_softmax(e, &tile);
  lm_buf_free(&tile);
  int64_t blocks = cuda_attend_forward_begin(e, b);
  cuda_attend_rows(e, &rows);
  cuda_attend_sums_begin(&rows, e->f.v_channels.size);
  cuda_attend_results(e, &last);
  w.rows = rows.p;
  w.last = last.p;
  forward_consumer(e, &multiply, &w);
  groups_put(e, &text, &w, &multiply);
  cuda_attend_section_put(e, &text, b);
  lm_buf *used[] = {&rows, &last, &multiply, &text};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
  return blocks;
}
