// gemm_ring.c - the GEMM of a kernel for sm_90a: two consumer warpgroups multiply, a third, the
// producer, starts the copies of tiles by TMA.
//
//   thread 256       for each tile of the result and each 64 k: waits until a stage of the ring is
//                    free and starts the copies of 128 rows of A and 256 columns of B into it
//   to thread 255    64 rows for each group: waits for a stage, multiplies, arrives at `done`; at
//                    the end of k the statements `results`, on the sums in registers
//
// Blocks are as many as the GPU runs at a time, and each computes every n-th tile. The second group
// begins when the first one has multiplied all stages of the ring. It stays behind: while one group
// is in its epilogue, the other one multiplies the stages in the ring.
//
// Several GEMMs in one launch (joined.c) have equal k. A tile's number says of which one it is.
//
// Groups of rows (grouped.c) have sizes that only the device knows. Each thread walks over the
// counts (lm_group_seek), so a tile is of one group:
//
//   rows along m     the last tile of a group also multiplies rows of the next one, whose sums are
//                    not stored. Rows of no group, behind all others, are sums of no terms.
//   rows along k     the boxes of the last step of a group have rows of the next one, too. The
//                    producer's warp waits for these boxes, overwrites the rows with zeros and then
//                    arrives at `ready`. The ring holds three further steps meanwhile.
#include <string.h>

#include "codegen/cuda/gemm.h"

enum {
  DEPTH = 64,
  STAGES = 4,
  BOX = 64,
  GROUP = 128,
  CONSUMERS = 256,
  BAND = 16,    // tiles along m of which blocks that run together compute all columns
  UNITS = 132,  // multiprocessors of a GPU that is not known
  SYSTEM = 2048 // bytes of shared memory that a block cannot have, or declares
};
#define STAGE_MOST ((CUDA_GEMM_ROWS + CUDA_GEMM_COLUMNS) * DEPTH * 2)

static int stage_bytes(const cuda_gemm *x) {
  return (CUDA_GEMM_ROWS + x->width) * DEPTH * 2;
}

static int64_t pieces(int64_t n, int64_t size) {
  return (n + size - 1) / size;
}

static bool is_grouped(const cuda_gemm *x) {
  return x->g.groups.count > 0;
}
// True if the rows of a group are along k.
static bool sums(const cuda_gemm *x) {
  return is_grouped(x) && x->g.groups.sums;
}
// True if the rows of A are along k.
static bool a_by_rows(const cuda_gemm *x) {
  return sums(x) || x->n_joined;
}

// The stride of the lines of B, and whether those of its matrices are apart by less: experts
// between the axes of a matrix.
static int64_t line_of_b(const cuda_gemm *x) {
  return x->by_k ? x->g.b_n : x->g.b_k;
}
static bool groups_are_inner(const cuda_gemm *x) {
  return is_grouped(x) && !sums(x) && x->g.groups.b < line_of_b(x);
}

// ---- tiles

static int64_t tiles_of_one(const cuda_gemm *x, const lm_plan_gemm *g) {
  return pieces(g->m.fixed, CUDA_GEMM_ROWS) * pieces(g->n.fixed, x->width);
}

// With groups of rows along m: at most.
static int64_t tiles_of(const cuda_gemm *x) {
  const lm_plan_gemm *g = &x->g;
  int64_t down = pieces(g->m.fixed, CUDA_GEMM_ROWS), across = pieces(x->columns, x->panel), n = 0;
  for (int i = 0; i < x->n_joined; i++)
    n += tiles_of_one(x, &x->joined[i]);
  if (x->n_joined)
    return n;
  if (!is_grouped(x))
    return down * across;
  return sums(x) ? down * across * g->groups.count : (down + g->groups.count) * across;
}

// What differs between the GEMMs of a launch: the tiles along m and n, the maps, and the result
// with its pitch, rows and columns. `at` is the number of the tile in GEMM i if it is not of an
// earlier one.
static void put_joined(const cuda_gemm *x, int i, lm_buf *b) {
  const lm_plan_gemm *g = &x->joined[i];
  const char *type = i ? "" : "int32_t ";
  if (i)
    lm_buf_printf(b, "if (gemm == %d && at >= %lld) {\nat -= %lld;\n", i - 1,
                  (long long)tiles_of_one(x, g - 1), (long long)tiles_of_one(x, g - 1));
  lm_buf_printf(b, "%sgemm = %d;\n%sdown = %lld;\n%sacross = %lld;\n", type, i, type,
                (long long)pieces(g->m.fixed, CUDA_GEMM_ROWS), type,
                (long long)pieces(g->n.fixed, x->width));
  lm_buf_printf(b, "%srow_end = %lld;\n%scolumns = %lld;\n%spitch = %lld;\n", type,
                (long long)g->m.fixed, type, (long long)g->n.fixed, type, (long long)g->c_m);
  lm_buf_printf(b, "%sto = c%d;\n", i ? "" : "float *", i);
  for (int k = 0; k < 2; k++)
    lm_buf_printf(b, "%smap_%c = &m%d;\n", i ? "" : "const lm_map *", k ? 'b' : 'a', 2 * i + k);
  if (i)
    lm_buf_puts(b, "}\n");
}

// Of GEMMs in one launch the tiles of each follow those of the one before.
static void put_walk_joined(const cuda_gemm *x, lm_buf *b) {
  lm_buf_printf(b,
                "for (int32_t tile = (int32_t)block; tile < %lld; tile += (int32_t)grid) {\n"
                "int32_t at = tile;\n",
                (long long)tiles_of(x));
  for (int i = 0; i < x->n_joined; i++)
    put_joined(x, i, b);
}

// The loop over the tiles of a block, up to the number `at` of a tile among the `down` by n of its
// group, or of its GEMM.
static void put_walk(const cuda_gemm *x, lm_buf *b) {
  long long m = (long long)pieces(x->g.m.fixed, CUDA_GEMM_ROWS);
  long long n = (long long)pieces(x->columns, x->panel);
  if (x->n_joined) {
    put_walk_joined(x, b);
    return;
  }
  if (!is_grouped(x)) {
    lm_buf_printf(b,
                  "for (int32_t tile = (int32_t)block; tile < %lld; tile += (int32_t)grid) {\n"
                  "const int32_t down = %lld, at = tile;\n",
                  m * n, m);
    return;
  }
  lm_buf_printf(b,
                "lm_group_walk walk = {0};\nfor (int64_t tile = block; lm_group_seek(&walk, %s, "
                "%d, %lld, tile, %d, %lld); tile += grid) {\n",
                x->counts, x->g.groups.count, (long long)(sums(x) ? x->g.k : x->g.m).fixed,
                sums(x) ? 0 : CUDA_GEMM_ROWS, sums(x) ? m * n : n);
  if (sums(x))
    lm_buf_printf(b, "const int32_t down = %lld;\n", m);
  else
    lm_buf_printf(b, "const int32_t down = (int32_t)((walk.rows + %d) / %d);\n", CUDA_GEMM_ROWS - 1,
                  CUDA_GEMM_ROWS);
  lm_buf_puts(b, "const int32_t at = (int32_t)(tile - walk.before);\n");
}

// The rows of the tile end at row_end, its sums are over k from k0 to k_end - 1. A sum of no terms
// is a step over elements behind the last ones of k, which TMA fills with zeros, or that are cut.
static void put_ends(const cuda_gemm *x, lm_buf *b) {
  long long k = (long long)x->g.k.fixed;
  if (!is_grouped(x))
    lm_buf_printf(b, "const int32_t k0 = 0, k_end = %lld;\n", k);
  else if (sums(x))
    lm_buf_printf(b,
                  "const int32_t row_end = %lld, k0 = 0;\n"
                  "const int32_t k_end = (int32_t)walk.rows;\n",
                  (long long)x->g.m.fixed);
  else
    lm_buf_printf(b,
                  "const int32_t row_end = (int32_t)(walk.from + walk.rows);\n"
                  "const int32_t k0 = walk.group < %d ? 0 : %lld, k_end = k0 + (k0 ? 1 : %lld);\n",
                  x->g.groups.count, k, k);
}

// The loop over the steps of a tile, of which there is at least one.
static void put_steps(const cuda_gemm *x, lm_buf *b) {
  if (sums(x))
    lm_buf_printf(b, "for (int32_t k = k0; k == k0 || k < k_end; k += %d) {\n", DEPTH);
  else
    lm_buf_printf(b, "for (int32_t k = k0; k < k_end; k += %d) {\n", DEPTH);
}

// The loop over the tiles of a block: row0, and col0 of the first part.
static void put_tiles(const cuda_gemm *x, lm_buf *b) {
  put_walk(x, b);
  put_ends(x, b);
  if (!x->n_joined)
    lm_buf_printf(b, "const int32_t across = %lld;\n", (long long)pieces(x->columns, x->panel));
  lm_buf_printf(b,
                "const int32_t band = at / (across * %d) * %d, in_band = at %% (across * %d);\n"
                "const int32_t along = down - band < %d ? down - band : %d;\n",
                BAND, BAND, BAND, BAND, BAND);
  lm_buf_printf(b,
                "const int32_t row0 = %s(band + in_band %% along) * %d, col0 = in_band / along * "
                "%d;\n",
                is_grouped(x) && !sums(x) ? "(int32_t)walk.from + " : "", CUDA_GEMM_ROWS, x->panel);
}

// ---- the producer

static const char *const NEXT = "if (++stage == 4) {\nstage = 0;\nparity ^= 1;\n}\n";

// Starts the copies of a step. `phase`: "ready, stage", in which they are counted.
static void put_copies(const cuda_gemm *x, const char *phase, lm_buf *b) {
  const char *k = sums(x) ? "(int32_t)walk.from + k" : "k";
  const char *matrix = is_grouped(x) && !sums(x) ? "(int32_t)walk.group" : "0";
  const char *inner = groups_are_inner(x) ? matrix : "0";
  const char *batch = groups_are_inner(x) ? "0" : matrix;
  lm_buf_printf(b, "lm_phase_expect(%s, %d);\n", phase, stage_bytes(x));
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i += %d)\nlm_box_copy(tile_a, (stage * %d "
                "+ i) * %d, %s, %s, 0, %s, 0, %s);\n",
                CUDA_GEMM_ROWS, BOX, CUDA_GEMM_ROWS, DEPTH, x->n_joined ? "map_a" : "&m0",
                a_by_rows(x) ? "row0 + i" : "k", a_by_rows(x) ? k : "row0 + i", phase);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i += %d) {\nconst int32_t col = col0 + i "
                "%% %d + i / %d * %lld;\nlm_box_copy(tile_b, (stage * %d + i) * %d, %s, %s, %s, "
                "%s, %s, %s);\n}\n",
                x->width, BOX, x->panel, x->panel, (long long)x->columns, x->width, DEPTH,
                x->n_joined ? "map_b" : "&m1", x->by_k ? k : "col", inner, x->by_k ? "col" : k,
                batch, phase);
  lm_buf_printf(b, "lm_phase_arrive(%s);\n", phase);
}

// The last step of a group whose rows are along k, by all lanes of the warp.
static void put_cut(const cuda_gemm *x, lm_buf *b) {
  lm_buf_puts(b, "} else {\nif (lane == 0) {\nlm_phase_wait(done, stage, parity);\n");
  put_copies(x, "copied, 0", b);
  lm_buf_puts(b, "}\nlm_phase_wait(copied, 0, cut);\ncut ^= 1;\n");
  lm_buf_printf(b,
                "lm_group_cut(tile_a, stage * %d, %d, k_end - k, lane);\n"
                "lm_group_cut(tile_b, stage * %d, %d, k_end - k, lane);\n",
                CUDA_GEMM_ROWS * DEPTH, CUDA_GEMM_ROWS / BOX, x->width * DEPTH, x->width / BOX);
  lm_buf_puts(b, "lm_proxy_fence();\nlm_warp_sync(~0u);\nif (lane == 0) lm_phase_arrive(ready, "
                 "stage);\n}\n");
}

static void put_producer(const cuda_gemm *x, lm_buf *b) {
  lm_buf_printf(b, "lm_registers_fewer(%d);\n", is_grouped(x) ? 40 : 24);
  if (sums(x))
    lm_buf_printf(b,
                  "if (lm_thread() < %d) {\nconst int32_t lane = lm_thread() %% 32;\nuint32_t cut "
                  "= 0;\n",
                  CONSUMERS + CUDA_WARP);
  else
    lm_buf_printf(b, "if (lm_thread() == %d) {\n", CONSUMERS);
  lm_buf_puts(b, "int32_t stage = 0;\nuint32_t parity = 1;\n");
  put_tiles(x, b);
  put_steps(x, b);
  if (sums(x))
    lm_buf_printf(b, "if (k + %d <= k_end) {\nif (lane == 0) {\n", DEPTH);
  lm_buf_puts(b, "lm_phase_wait(done, stage, parity);\n");
  put_copies(x, "ready, stage", b);
  if (sums(x)) {
    lm_buf_puts(b, "}\n");
    put_cut(x, b);
  }
  lm_buf_printf(b, "%s}\n}\n}\n", NEXT);
}

// ---- the consumers

// Releases the stage of the step before, which the wait for its GEMM says that the warp has read.
static const char *const RELEASE = "if (lane == 0) lm_phase_arrive(done, (stage + 3) % 4);\n";

static void put_step(const cuda_gemm *x, lm_buf *b) {
  const char *form = a_by_rows(x) ? "both_transposed" : x->by_k ? "shared" : "shared_transposed";
  lm_buf_printf(b,
                "LM_GROUP_STEP(x, %d, %s, %d, %d, tile_a + (stage * %d + group * 64) * %d, tile_b "
                "+ stage * %d, k > k0)\n",
                x->width, form, a_by_rows(x) ? 2048 : 32, x->by_k ? 32 : 2048, CUDA_GEMM_ROWS,
                DEPTH, x->width * DEPTH);
}

// The first step of a tile overwrites the sums, but NVRTC up to 12.8 serializes GEMMs whose sums
// have no value before (C7515).
static void put_consumer(const cuda_gemm *x, const char *results, lm_buf *b) {
  lm_buf_printf(b,
                "lm_registers_more(%d);\n"
                "const int32_t group = lm_thread() / %d, lane = lm_thread() %% 32;\n"
                "float x[%d][4] = {{0}};\nint32_t stage = 0, steps = 0;\nuint32_t parity = 0;\n"
                "if (group == 1) lm_pingpong_wait(1);\n",
                is_grouped(x) ? 232 : 240, GROUP, x->width / 8);
  put_tiles(x, b);
  put_steps(x, b);
  lm_buf_puts(b, "lm_phase_wait(ready, stage, parity);\n");
  put_step(x, b);
  lm_buf_printf(b, "lm_wgmma_wait(1);\nif (k > k0) {\n%s}\n", RELEASE);
  lm_buf_printf(b, "if (group == 0 && ++steps == %d) lm_pingpong_arrive(1);\n%s}\n", STAGES, NEXT);
  lm_buf_printf(b, "lm_wgmma_wait(0);\nlm_wgmma_settle(x, %d);\n%s%s}\n", x->width / 8, RELEASE,
                results);
  lm_buf_printf(b, "if (group == 0 && steps < %d) lm_pingpong_arrive(1);\n", STAGES);
}

// ---- results in memory

// The loads of a row of the result are in flight together.
void cuda_ring_store(const cuda_gemm *x, const char *to, const char *pitch, const char *columns,
                     lm_buf *b) {
  const char *type = x->g.dtype_c == LM_BF16 ? "uint16_t" : "float";
  bool adds = x->g.accumulate;
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t r = 0; r < 2; r++) {\nconst int32_t row = row0 + "
                "lm_thread() / 32 * 16 + lane / 4 + 8 * r;\nif (row < row_end) {\n%s *const line = "
                "%s + (int64_t)row * %s + col0 + lane %% 4 * 2;\n",
                type, to, pitch);
  if (adds)
    lm_buf_printf(b,
                  "float y[%d][2] = {{0}};\nif (adds)\nLM_UNROLL\nfor (int32_t i = 0; i < %d; "
                  "i++)\nif (col0 + 8 * i < %s) lm_load2_f32(y[i], line + 8 * i);\n",
                  x->width / 8, x->width / 8, columns);
  lm_buf_printf(b,
                "LM_UNROLL\nfor (int32_t i = 0; i < %d; i++) {\nconst float z[2] = {x[i][2 * r]%s, "
                "x[i][2 * r + 1]%s};\nif (col0 + 8 * i < %s) lm_store2_%s(line + 8 * i, "
                "z);\n}\n}\n}\n",
                x->width / 8, adds ? " + y[i][0]" : "", adds ? " + y[i][1]" : "", columns,
                lm_dtype_name((lm_dtype)x->g.dtype_c));
}

// ---- the kernel

static void put_phases(const cuda_gemm *x, lm_buf *b) {
  int64_t at = STAGES * stage_bytes(x);
  lm_buf_printf(b,
                "LM_POOL_DECLARE();\nLM_POOL(uint16_t, tile_a, 0, %d);\nLM_POOL(uint16_t, tile_b, "
                "%d, %d);\n",
                STAGES * CUDA_GEMM_ROWS * DEPTH, STAGES * CUDA_GEMM_ROWS * DEPTH * 2,
                STAGES * x->width * DEPTH);
  lm_buf_printf(b, "LM_POOL(uint64_t, ready, %lld, %d);\nLM_POOL(uint64_t, done, %lld, %d);\n",
                (long long)at, STAGES, (long long)at + 8 * STAGES, STAGES);
  if (sums(x))
    lm_buf_printf(b, "LM_POOL(uint64_t, copied, %lld, 1);\n", (long long)at + 16 * STAGES);
  lm_buf_printf(b,
                "if (lm_thread() == 0) {\nfor (int32_t i = 0; i < %d; i++) {\nlm_phase_make(ready, "
                "i, 1);\nlm_phase_make(done, i, %d);\n}\n%slm_proxy_fence();\n}\nlm_barrier();\n",
                STAGES, CONSUMERS / CUDA_WARP, sums(x) ? "lm_phase_make(copied, 0, 1);\n" : "");
}

void cuda_ring_put(const cuda_gemm *x, const char *results, lm_buf *b) {
  put_phases(x, b);
  lm_buf_printf(b, "if (lm_thread() >= %d) {\n", CONSUMERS);
  put_producer(x, b);
  lm_buf_puts(b, "} else {\n");
  put_consumer(x, results, b);
  lm_buf_puts(b, "}\n");
}

bool cuda_ring_fits(const lm_target *t) {
  return t->warpgroups && t->shared >= STAGES * STAGE_MOST + SYSTEM;
}

int cuda_ring_threads(void) {
  return CONSUMERS + GROUP;
}

// Boxes of 64 lines of 64 elements of a matrix. stride: of the lines.
static lm_plan_map map_make(int buf, int64_t line, int64_t lines, int64_t stride) {
  lm_plan_map m = {.buf = buf};
  int64_t size[LM_PLAN_MAP_RANK] = {line, 1, lines, 1};
  for (int i = 0; i < LM_PLAN_MAP_RANK; i++) {
    m.dim[i].size.fixed = size[i];
    m.dim[i].stride = 2 * (i ? stride : 1);
    m.dim[i].box = i % 2 ? 1 : BOX;
  }
  return m;
}

// As many matrices, `apart` elements from one to the next. Strides must be in order.
static void map_repeat(lm_plan_map *m, int64_t n, int64_t apart, bool inner) {
  int i = inner ? 1 : 3;
  m->dim[i].size.fixed = n;
  m->dim[i].stride = 2 * apart;
}

static void maps_of(const cuda_gemm *x, lm_plan_map *maps) {
  const lm_plan_gemm *g = &x->g;
  int64_t k = g->k.fixed, n = g->n.fixed;
  maps[0] = sums(x) ? map_make(LM_DOT_X, g->m.fixed, k, g->a_k)
                    : map_make(LM_DOT_X, k, g->m.fixed, g->a_m);
  maps[1] =
      x->by_k ? map_make(LM_DOT_W, k, n, line_of_b(x)) : map_make(LM_DOT_W, n, k, line_of_b(x));
  if (is_grouped(x) && !sums(x))
    map_repeat(&maps[1], g->groups.count, g->groups.b, groups_are_inner(x));
}

static void maps_of_joined(const cuda_gemm *x, lm_plan_map *maps) {
  for (int i = 0; i < x->n_joined; i++) {
    const lm_plan_gemm *g = &x->joined[i];
    maps[2 * i] = map_make(2 * i, g->m.fixed, g->k.fixed, g->a_k);
    maps[2 * i + 1] = map_make(2 * i + 1, g->n.fixed, g->k.fixed, g->b_k);
  }
}

lm_plan_launch cuda_ring_launch(const cuda_gemm *x, const lm_target *t, lm_arena *arena) {
  int n_maps = x->n_joined ? 2 * x->n_joined : 2;
  lm_plan_map *maps = LM_NEW_N(arena, lm_plan_map, n_maps);
  int64_t units = t->units ? t->units : UNITS;
  (x->n_joined ? maps_of_joined : maps_of)(x, maps);
  return (lm_plan_launch){
      .per_block = 1,
      .blocks = tiles_of(x) < units ? tiles_of(x) : units,
      .shared = STAGES * stage_bytes(x) + 16 * STAGES + 8,
      .maps = maps,
      .n_maps = n_maps,
  };
}
