// attend_warpgroups.c - attention for sm_90a: two consumer warpgroups multiply, a warp of a third
// one, the producer, starts the copies of tiles by TMA.
//
//   thread 256 on   for each item: one thread copies its rows; then, for each tile of columns that
//                   is not masked: waits until a stage is free and starts the copy into it; the
//                   phase of the barrier `ready` ends when all bytes have arrived
//   to thread 255   64 rows for each group: waits for the next tile, multiplies, arrives at `done`
//
// An item is what a block of the other kernels computes: the tiles of 128 rows at one point. Blocks
// are as many as the GPU runs at a time. Block i begins with item i and then takes the
// next one that no block has begun (lm_item_take), in the order of their numbers, the longest
// first. Which block computes an item does not change its bits. The copies of the next item begin
// while the consumers are in the last tiles and the results of the one before.
//
// Columns arrive in one stream, or in the forward pass in two, keys and values, whose stages become
// free at different times. A stage holds the tiles of one range of columns; `tiles` holds the first
// column of each stage of the first stream and whether the mask is unnecessary, so that only the
// producer reads the block map. The rows of items arrive in slots; `items` holds the item of each.
// The elementwise work of one group overlaps with the GEMMs of the other.
//
// The items of a section follow those of the section before, and so does their text in both roles.
// Tiles of different sections are at the same addresses, so a block begins a section with a
// barrier.
//
// TMA sees an operand [outer.., t, inner.., channels..] as a tensor (channels, inner, t, outer);
// tiles are boxes of 64 x 1 x 64 x 1.
#include "codegen/cuda/attend.h"
#include <string.h>

enum {
  ROWS = CUDA_WARPGROUP_ROWS,
  STAGES = 2,
  BOX = 64,
  GROUP = 128,
  CONSUMERS = 256,
  UNITS = 132, // multiprocessors of a GPU that is not known
  // Words of 8 bytes at the beginning of the pool, for each section: barriers `ready` (of the
  // stages of two streams, then of the slots), as many `done`, `tiles`, `items`.
  SLOTS_AT = 2 * STAGES,
  BARRIERS = SLOTS_AT + 2,
  SECTION_WORDS = 16,
  WORDS_BYTES = 1 << 10,
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

// Starts the copies of the tiles of a slot, or of a stage; the phase also waits for their bytes.
static void copies(cuda_attend *e, lm_buf *b, const cuda_attend_side *sides, int n,
                   const char *stage, const char *phase) {
  bool rows = !stage;
  long long bytes = 0;
  for (int i = 0; i < n; i++)
    bytes += 2 * tile_positions(e, rows) * sides[i].channels->size;
  lm_buf_printf(b, "lm_phase_expect(ready, %s, %lld);\n", phase, bytes);
  for (int i = 0; i < n; i++) {
    const cuda_attend_side *s = &sides[i];
    lm_type t = e->f.op->in[s->k]->type;
    int at = position_dim(e, t);
    long long width = (long long)s->channels->size;
    const char *to =
        rows ? cuda_attend_rows_at(e, s->k, width)
             : lm_arena_printf(e->g.arena, "b%u + %s * %lld", s->k, stage, e->cols * width);
    map_need(e, s);
    lm_buf_printf(b, "LM_GROUP_FETCH(%s, %d, %lld, m%u, %s, %s, %s, ready, %s)\n", to,
                  tile_positions(e, rows), width, s->k,
                  number_among(e, t, at + 1, t.rank - s->channels->n), rows ? "row0" : "col0",
                  number_among(e, t, 0, at), phase);
  }
}

// ---- the rings: of the stages of each stream, and of slots

static const char *const stage_names[] = {"stage", "v"};
static const char *const parity_names[] = {"parity", "parity_v"};

// The barriers of a stream's stages come after the barriers of the stream before.
static const char *phase_of(cuda_attend *e, int stream) {
  return stream ? lm_arena_printf(e->g.arena, "%d + %s", stream * STAGES, stage_names[stream])
                : stage_names[0];
}
static const char *next_of(cuda_attend *e, int stream) {
  return lm_arena_printf(e->g.arena, "if (++%s == %d) {\n%s = 0;\n%s ^= 1;\n}\n",
                         stage_names[stream], STAGES, stage_names[stream], parity_names[stream]);
}

static const char *slot_of(const cuda_attend *e) {
  return e->slots > 1 ? "slot" : "0";
}
static const char *slot_phase(cuda_attend *e) {
  return lm_arena_printf(e->g.arena, e->slots > 1 ? "%d + slot" : "%d", SLOTS_AT);
}
static const char *slot_next(const cuda_attend *e) {
  return e->slots > 1 ? "if (++slot == 2) {\nslot = 0;\nslot_parity ^= 1;\n}\n"
                      : "slot_parity ^= 1;\n";
}

// The variables of a section. parity: of the first phases that the role waits for.
static void section_begin(cuda_attend *e, lm_buf *b, const cuda_attend_work *w, int parity) {
  int at = e->n_sections * SECTION_WORDS;
  lm_buf_printf(b,
                "{\nuint64_t *const ready = phases + %d, *const done = phases + %d;\n"
                "int32_t *const tiles = (int32_t *)(phases + %d), *const items = (int32_t "
                "*)(phases + %d);\n",
                at, at + BARRIERS, at + 2 * BARRIERS, at + 2 * BARRIERS + 1);
  lm_buf_add(b, e->declare.p, e->declare.n);
  for (int i = 0; i < w->n_streams; i++)
    lm_buf_printf(b, "int32_t %s = 0;\nuint32_t %s = %d;\n", stage_names[i], parity_names[i],
                  parity);
  lm_buf_printf(b, "%suint32_t slot_parity = %d;\n", e->slots > 1 ? "int32_t slot = 0;\n" : "",
                parity);
}

// ---- the producer

// Registers of a thread; the three warpgroups share 504. Addresses for additional work take some.
static int producer_registers(bool per_tile) {
  return per_tile ? 40 : 24;
}
static int consumer_registers(bool per_tile) {
  return per_tile ? 232 : 240;
}

static void stream_fill(cuda_attend *e, lm_buf *b, const cuda_attend_work *w, int stream) {
  const char *phase = phase_of(e, stream);
  int from = stream * w->n_col / w->n_streams;
  int to = (stream + 1) * w->n_col / w->n_streams;
  lm_buf_printf(b, "lm_phase_wait(done, %s, %s);\nif (me == 0) {\n", phase, parity_names[stream]);
  if (!stream)
    lm_buf_puts(b, "lm_put(tiles, stage, (int32_t)col0 * 2 + full);\n");
  copies(e, b, w->col + from, to - from, stage_names[stream], phase);
  if (*w->per_tile)
    lm_buf_printf(b, "}\n%slm_warp_sync(~0u);\nif (me == 0) {\n", w->per_tile);
  lm_buf_printf(b, "lm_phase_arrive(ready, %s);\n}\n%s", phase, next_of(e, stream));
}

// The item of the next slot, and the copies of its rows, if any.
static void slot_fill(cuda_attend *e, lm_buf *b, const char *rows) {
  lm_buf_printf(b,
                "lm_phase_wait(done, %s, slot_parity);\nif (me == 0) {\nlm_put(items, %s, "
                "item);\n%slm_phase_arrive(ready, %s);\n}\n%s",
                slot_phase(e), slot_of(e), rows, slot_phase(e), slot_next(e));
}

// The next item is taken as late as its copies need it, so that blocks end at the same time: when
// the last tile is being copied or, if there are loops, when they end.
static void producer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  static const char take[] = "next = lm_item_take(&taken, n_items);\n";
  lm_buf rows = {0};
  copies(e, &rows, w->row, w->n_row, NULL, slot_phase(e));
  section_begin(e, b, w, 1);
  lm_buf_printf(b,
                "for (int32_t next; item < %lld; item = next) {\nlm_at at = item - %lld;\n%sif "
                "(row0 >= %s) {\n%scontinue;\n}\n",
                (long long)(e->items + w->n), (long long)e->items, w->decode,
                cuda_attend_extent(e, e->values.row), take);
  slot_fill(e, b, rows.p);
  lm_buf_printf(b, "%sfor (lm_at col0 = 0; col0 < %s; col0 += %d) {\n", w->loops,
                cuda_attend_extent(e, e->values.col), e->cols);
  cuda_attend_map_check(e, b);
  for (int i = 0; i < w->n_streams; i++)
    stream_fill(e, b, w, i);
  lm_buf_printf(b,
                "}\n%slm_phase_wait(done, stage, parity);\nif (me == 0) {\nlm_put(tiles, stage, "
                "-1);\nlm_phase_arrive(ready, stage);\n}\n%s",
                w->n_loops ? "" : take, next_of(e, 0));
  for (int i = 0; i < w->n_loops; i++)
    lm_buf_puts(b, "}\n");
  lm_buf_printf(b, "%s}\n", w->n_loops ? take : "");
  slot_fill(e, b, "");
  lm_buf_puts(b, "}\n");
  lm_buf_free(&rows);
}

// ---- the consumers

// Releases a stage or a slot: all lanes have read it.
static const char *release_text(cuda_attend *e, const char *phase) {
  return lm_arena_printf(
      e->g.arena, "lm_warp_sync(~0u);\nif (lm_thread() %% 32 == 0) lm_phase_arrive(done, %s);\n",
      phase);
}
static const char *slot_release(cuda_attend *e) {
  return lm_arena_printf(e->g.arena, "%s%s", release_text(e, slot_phase(e)), slot_next(e));
}

static const char *const TILE =
    "const lm_at col0 = tile / 2;\nconst bool full = tile % 2;\n(void)full;\n";

static void item_begin(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  lm_buf_printf(b,
                "for (;;) {\nlm_phase_wait(ready, %s, slot_parity);\nconst int32_t item = "
                "lm_get(items, %s);\nif (item >= %lld) break;\nlm_at at = item - %lld;\n%s",
                slot_phase(e), slot_of(e), (long long)(e->items + w->n), (long long)e->items,
                w->decode);
}

// A stage without a tile ends one iteration of the loops.
static void consumer(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  const char *done = lm_arena_printf(e->g.arena, "%s%s", release_text(e, "stage"), next_of(e, 0));
  section_begin(e, b, w, 0);
  item_begin(e, b, w);
  lm_buf_printf(b, "%s%s%s%s%s", w->first, w->held, w->holds_all ? slot_release(e) : "", w->loops,
                w->rows);
  lm_buf_printf(b,
                "for (;;) {\nlm_phase_wait(ready, stage, parity);\nconst int32_t tile = "
                "lm_warp_uniform(lm_get(tiles, stage));\nif (tile < 0) break;\n%s",
                TILE);
  lm_buf_printf(b, "%s%s}\n%s", w->tile, done, done);
  for (int i = 0; i < w->n_loops; i++)
    lm_buf_puts(b, "}\n");
  lm_buf_printf(b, "%s%s}\n}\n", w->holds_all ? "" : slot_release(e), w->last);
}

// ---- sections

void cuda_attend_warpgroups_pools(cuda_attend *e, const cuda_attend_work *w) {
  e->slots = w->slots;
  e->pool = WORDS_BYTES;
  for (int i = 0; i < w->n_row; i++)
    cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->row[i].k,
                     w->slots * ROWS * w->row[i].channels->size);
  for (int i = 0; i < w->n_col; i++)
    cuda_attend_pool(e, "uint16_t", 2, "b", (int)w->col[i].k,
                     STAGES * e->cols * w->col[i].channels->size);
}

// Orders what threads have written to shared memory before the boxes of the next section.
static const char *const SECTION = "lm_proxy_fence();\nlm_roles_barrier();\n";

void cuda_attend_warpgroups_add(cuda_attend *e, const cuda_attend_work *w, const lm_buf *text) {
  LM_ASSERT(e->max_pool <= MAX_POOL);
  LM_ASSERT((e->n_sections + 1) * SECTION_WORDS * 8 <= WORDS_BYTES);
  if (e->n_sections) {
    lm_buf_puts(&e->producer, SECTION);
    lm_buf_puts(&e->consumer, SECTION);
  }
  producer(e, &e->producer, w);
  if (text)
    lm_buf_add(&e->consumer, text->p, text->n);
  else
    consumer(e, &e->consumer, w);
  e->n_sections++;
  e->items += w->n;
}

int64_t cuda_attend_warpgroups_put(cuda_attend *e, lm_buf *b, bool per_tile) {
  int words = e->n_sections * SECTION_WORDS;
  int64_t units = e->target->units ? e->target->units : UNITS;
  e->threads = CONSUMERS + GROUP;
  lm_buf_printf(b,
                "LM_QUEUE(taken);\nLM_POOL(uint64_t, phases, 0, %d);\nconst int32_t n_items = "
                "%lld;\nif (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\n"
                "lm_phase_make(phases, i / %d * %d + i %% %d, 1);\n"
                "lm_phase_make(phases, i / %d * %d + i %% %d + %d, %d);\n}\n"
                "lm_proxy_fence();\n}\nlm_barrier();\n",
                words, (long long)e->items, e->n_sections * BARRIERS, BARRIERS, SECTION_WORDS,
                BARRIERS, BARRIERS, SECTION_WORDS, BARRIERS, BARRIERS, CONSUMERS / CUDA_WARP);
  lm_buf_printf(b,
                "if (lm_thread() >= %d) {\nlm_registers_fewer(%d);\nif (lm_thread() < %d) "
                "{\nconst int32_t me = lm_thread() - %d;\nint32_t item = (int32_t)block;\n",
                CONSUMERS, producer_registers(per_tile), CONSUMERS + CUDA_WARP, CONSUMERS);
  lm_buf_add(b, e->producer.p, e->producer.n);
  lm_buf_printf(b,
                "}\n} else {\nlm_registers_more(%d);\n"
                "const int32_t group = lm_warp_uniform(lm_thread() / %d);\n(void)group;\n",
                consumer_registers(per_tile), GROUP);
  lm_buf_add(b, e->consumer.p, e->consumer.n);
  lm_buf_puts(b, "}\n");
  return e->items < units ? e->items : units;
}

// Threads hold the tiles of the first n operands of the block's rows, from which cuda_attend_dot
// then multiplies. From registers the first operand takes no bandwidth of shared memory, which
// limits GEMMs of two shared operands with 64 columns, and its descriptors need no instructions.
void cuda_attend_rows_hold(cuda_attend *e, lm_buf *b, const cuda_attend_work *w, int n) {
  for (uint32_t i = 0; i < e->f.op->n_in; i++)
    e->held[i] = false;
  for (int i = 0; i < n; i++) {
    uint32_t k = w->row[i].k;
    long long width = w->row[i].channels->size;
    e->held[k] = true;
    lm_buf_printf(b, "uint32_t f%u[%lld][4];\nLM_GROUP_HOLD(f%u, %s, %d, %lld)\n", k, width / 16, k,
                  cuda_attend_rows_at(e, k, width), e->rows, width);
  }
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
  lm_buf_printf(b, "lm_phase_wait(ready, %s, parity_v);\n", phase_of(e, 1));
  lm_buf_printf(b, "LM_GROUP_WEIGHTED(o, %lld, w, %d, b%u + v * %lld)\n", width, e->cols,
                LM_ATTEND_V, e->cols * width);
}

// The end of o += w v.
static const char *values_end(cuda_attend *e) {
  return lm_arena_printf(e->g.arena, "lm_wgmma_wait(0);\nlm_wgmma_settle(o, %lld);\n%s%s",
                         (long long)e->f.v_channels.size / 8, release_text(e, phase_of(e, 1)),
                         next_of(e, 1));
}

// o += w v of a tile is in flight while the scores of the next tile are multiplied and weighted.
// The scores are issued first, since they are waited for first. The warpgroups alternate in issuing
// GEMMs (named barriers), also from item to item, so that the exponentials of one group overlap
// with the GEMMs of the other.
static void item_forward(cuda_attend *e, lm_buf *b, const cuda_attend_work *w) {
  long long width = e->f.v_channels.size;
  const char *scores = captured(e, scores_issue);
  const char *values = captured(e, values_issue);
  const char *settled = lm_arena_printf(e->g.arena, "lm_wgmma_settle(p0, %d);\n", e->cols / 8);
  const char *pack = lm_arena_printf(e->g.arena, "LM_GROUP_PACK(w, x, %d)\n", e->cols);
  const char *yields = "lm_pingpong_arrive(1 - group);\n";
  item_begin(e, b, w);
  lm_buf_printf(b,
                "%suint32_t w[%d][4];\nlm_phase_wait(ready, stage, parity);\nint32_t tile = "
                "lm_warp_uniform(lm_get(tiles, stage));\nif (tile >= 0) {\n{\n"
                "lm_pingpong_wait(group);\n",
                w->rows, e->cols / 16);
  forward_tile(e, b, scores,
               lm_arena_printf(e->g.arena, "%slm_wgmma_wait(0);\n%s", yields, settled));
  lm_buf_printf(b, "(void)change;\n%s}\nfor (;;) {\n%s", pack, next_of(e, 0));
  lm_buf_puts(b, "lm_phase_wait(ready, stage, parity);\n"
                 "tile = lm_warp_uniform(lm_get(tiles, stage));\n"
                 "if (tile < 0) break;\nlm_pingpong_wait(group);\n");
  forward_tile(e, b, scores,
               lm_arena_printf(e->g.arena, "%s%slm_wgmma_wait(1);\n%s", values, yields, settled));
  lm_buf_printf(b, "lm_order_after(sum[0] + sum[1]);\n%s", values_end(e));
  cuda_attend_rescale(b, width);
  lm_buf_printf(b, "%s}\n%s%s}\n%s%s%s%s}\n", pack, values, values_end(e), release_text(e, "stage"),
                next_of(e, 0), slot_release(e), w->last);
}

int64_t cuda_attend_warpgroups_forward(cuda_attend *e, lm_buf *b) {
  const lm_attend_dot *p = e->f.dots;
  lm_buf decode = {0}, rows = {0}, last = {0}, text = {0}, tile = {0};
  cuda_attend_section_begin(e, false);
  cuda_attend_work w = {.loops = "",
                        .per_tile = "",
                        .slots = 2,
                        .row = {{p->row, &p->over}},
                        .n_row = 1,
                        .col = {{p->col, &p->over}, {LM_ATTEND_V, &e->f.v_channels}},
                        .n_col = 2,
                        .n_streams = 2};
  cuda_attend_warpgroups_pools(e, &w);
  // called only for its declarations of arrays by row
  cuda_attend_softmax(e, &tile);
  w.n = cuda_attend_rows_begin(e, &decode, e->f.parallel.axis, e->f.parallel.n, e->f.parallel.size);
  lm_buf_add(&rows, e->point.p ? e->point.p : "", e->point.n);
  cuda_attend_rows(e, &rows);
  cuda_attend_sums_begin(&rows, e->f.v_channels.size);
  cuda_attend_results(e, &last);
  w.decode = decode.p;
  w.rows = rows.p;
  w.last = last.p;
  section_begin(e, &text, &w, 0);
  lm_buf_puts(&text, "if (group == 1) lm_pingpong_arrive(0);\n");
  item_forward(e, &text, &w);
  lm_buf_puts(&text, "if (group == 0) lm_pingpong_wait(0);\n}\n");
  cuda_attend_warpgroups_add(e, &w, &text);
  lm_buf *used[] = {&decode, &rows, &last, &text, &tile};
  for (size_t i = 0; i < LM_COUNT(used); i++)
    lm_buf_free(used[i]);
  return cuda_attend_warpgroups_put(e, b, false);
}
