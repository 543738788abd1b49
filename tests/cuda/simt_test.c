// simt_test.c - tests of the shim: kernels with one mistake each, which must be reported, and the
// same kernels without it, which must pass under every schedule.
#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
#include "contract/floats.h"
#include "codegen/common/prelude/math.h"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/team.cuh"
#include "codegen/cuda/prelude/vector.cuh"
#include "codegen/cuda/prelude/group.cuh"

#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

typedef struct arguments {
  bool mistake;
  float *out;
  const float *in;
} arguments;

// Each thread reads the element that its neighbour wrote.
static void neighbours(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  int32_t n = lm_threads();
  LM_SHARED(float, row, 96);
  lm_put(row, i, a->in[i]);
  if (!a->mistake)
    lm_barrier();
  a->out[lm_block() * n + i] = lm_get(row, (i + 1) % n);
}

// The writes of a round wait for the reads of the previous round.
static void rounds(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  int32_t n = lm_threads();
  LM_SHARED(float, row, 96);
  float sum = 0;
  for (int32_t k = 0; k < 3; k++) {
    lm_put(row, i, a->in[(i + k) % n]);
    lm_barrier();
    sum += lm_get(row, (i + k) % n);
    if (!a->mistake)
      lm_barrier();
  }
  a->out[lm_block() * n + i] = sum;
}

// Within a warp, a warp barrier is sufficient.
static void warp_neighbours(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  int32_t warp = i / 32 * 32;
  uint32_t mask = a->mistake ? lm_team_mask(16) : ~0u;
  LM_SHARED(float, row, 96);
  lm_put(row, i, a->in[i]);
  lm_warp_sync(mask);
  a->out[lm_block() * lm_threads() + i] = lm_get(row, warp + (i + 16) % 32);
}

static void bounds(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  LM_SHARED(float, row, 96);
  LM_SHARED(float, other, 96);
  lm_put(other, i, 1.0f);
  lm_put(row, i + (a->mistake && i == 95), a->in[i]);
  a->out[lm_block() * lm_threads() + i] = lm_get(row, i) + lm_get(other, i);
}

static void unwritten(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  LM_SHARED(float, row, 96);
  if (!(a->mistake && i == 5))
    lm_put(row, i, a->in[i]);
  a->out[lm_block() * lm_threads() + i] = lm_get(row, i);
}

// Some threads never reach a barrier, because they wait for others in a shuffle.
static void absent(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  float x = a->in[i];
  if (a->mistake && i == 7)
    return;
  x += lm_shuffle_xor_f32(~0u, x, 1);
  a->out[lm_block() * lm_threads() + i] = x;
}

static void stranger(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  a->out[lm_block() * lm_threads() + i] =
      lm_shuffle_xor_f32(lm_team_mask(8), a->in[i], a->mistake ? 8 : 4);
}

static void odd_vector(void *args) {
  const arguments *a = args;
  float x[4] = {0};
  if (lm_thread() < 8)
    lm_load4_f32(x, a->in + 4 * lm_thread() + a->mistake);
  a->out[lm_block() * lm_threads() + lm_thread()] = x[0] + x[3];
}

static void sums(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  LM_SHARED(double, room, 32);
  float all = lm_block_sum_f32(a->in[i], room);
  float most = lm_block_max_f32(a->in[i], room);
  float team = lm_team_sum_f32(a->in[i], lm_team_mask(4), 4);
  a->out[lm_block() * lm_threads() + i] = all + 3 * most + 7 * team;
}

// The first warp writes rounds of two stages that the others read; `mistake`: the readers do not
// arrive.
static void phases(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  uint32_t parity = i < 32;
  float sum = 0;
  LM_SHARED(float, row, 64);
  LM_SHARED(uint64_t, ready, 2);
  LM_SHARED(uint64_t, done, 2);
  for (int32_t k = 0; i == 0 && k < 2; k++) {
    lm_phase_make(ready, k, 32);
    lm_phase_make(done, k, 64);
  }
  lm_barrier();
  for (int32_t k = 0; k < 6; k++) {
    int32_t at = k % 2;
    if (i < 32) {
      if (!a->mistake)
        lm_phase_wait(done, at, parity);
      lm_put(row, at * 32 + i, a->in[i + k]);
      lm_phase_arrive(ready, at);
    } else {
      lm_phase_wait(ready, at, parity);
      sum += lm_get(row, at * 32 + i % 32);
      lm_phase_arrive(done, at);
    }
    parity ^= at == 1;
  }
  a->out[lm_block() * lm_threads() + i] = sum;
}

// Threads add in any order, but to zeros, and read complete sums.
static void adds(void *args) {
  const arguments *a = args;
  LM_SHARED(uint32_t, total, 2);
  if (lm_thread() < 2)
    lm_put(total, lm_thread(), 0u);
  lm_barrier();
  lm_shared_add(total, lm_thread() % 2, (uint32_t)lm_thread());
  if (!a->mistake)
    lm_barrier();
  a->out[lm_block() * lm_threads() + lm_thread()] = (float)lm_get(total, 1);
}
static void adds_early(void *args) {
  const arguments *a = args;
  LM_SHARED(uint32_t, total, 1);
  if (lm_thread() == 0)
    lm_put(total, 0, 0u);
  if (!a->mistake)
    lm_barrier();
  lm_shared_add(total, 0, 1u);
  lm_barrier();
  a->out[lm_block() * lm_threads() + lm_thread()] = (float)lm_get(total, 0);
}
static void adds_late(void *args) {
  const arguments *a = args;
  LM_SHARED(uint32_t, total, 1);
  if (lm_thread() == 0)
    lm_put(total, 0, 0u);
  lm_barrier();
  lm_shared_add(total, 0, 1u);
  if (!a->mistake)
    lm_barrier();
  if (lm_thread() == 0)
    lm_put(total, 0, 7u);
  lm_barrier();
  a->out[lm_block() * lm_threads() + lm_thread()] = (float)lm_get(total, 0);
}
static void adds_unwritten(void *args) {
  const arguments *a = args;
  LM_SHARED(uint32_t, total, 1);
  if (!a->mistake && lm_thread() == 0)
    lm_put(total, 0, 0u);
  lm_barrier();
  a->out[lm_block() * lm_threads() + lm_thread()] = (float)(lm_shared_add(total, 0, 1u) < 96);
}

// A thread that waits for the wrong phase waits forever.
static void forever(void *args) {
  const arguments *a = args;
  LM_SHARED(uint64_t, ready, 1);
  if (lm_thread() == 0)
    lm_phase_make(ready, 0, lm_threads());
  lm_barrier();
  lm_phase_arrive(ready, 0);
  if (a->mistake)
    lm_phase_arrive(ready, 0);
  lm_phase_wait(ready, 0, 0);
  a->out[lm_block() * lm_threads() + lm_thread()] = 1;
}

enum {
  THREADS = 96,
  BLOCKS = 3
};
typedef struct simt_case {
  const char *name;
  void (*call)(void *args);
  const char *found;
} simt_case;
static const simt_case cases[] = {
    {"neighbours", neighbours, "no barrier since"},
    {"rounds", rounds, "no barrier since"},
    {"warp_neighbours", warp_neighbours, "no barrier since"},
    {"bounds", bounds, "writes row at byte 384 of 384"},
    {"unwritten", unwritten, "which no thread wrote"},
    {"absent", absent, "never come"},
    {"stranger", stranger, "does not take part"},
    {"odd_vector", odd_vector, "misaligned address"},
    {"phases", phases, "line"},
    {"adds", adds, "added to with no barrier since"},
    {"adds_early", adds_early, "adds to total at byte 0, which"},
    {"adds_late", adds_late, "with no barrier since"},
    {"adds_unwritten", adds_unwritten, "adds to total at byte 0, which no thread wrote"},
};

static void run(const simt_case *c, bool mistake, simt_schedule schedule, const float *in,
                float *out) {
  simt_schedule_set(schedule);
  simt_run(c->call, &(arguments){mistake, out, in}, BLOCKS, THREADS);
}

static void test_case(const simt_case *c, const float *in) {
  float out[SIMT_SCHEDULES][BLOCKS * THREADS];
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    run(c, false, (simt_schedule)s, in, out[s]);
    char *found = simt_report_take();
    if (found)
      fprintf(stderr, "%s: %s", c->name, found);
    CHECK(!found && !memcmp(out[0], out[s], sizeof out[0]));
    if (!c->found)
      continue;
    run(c, true, (simt_schedule)s, in, out[s]);
    found = simt_report_take();
    if (!found || !strstr(found, c->found))
      fprintf(stderr, "%s, schedule %d: %s\n", c->name, s, found ? found : "nothing was found");
    CHECK(found && strstr(found, c->found));
    lm_free(found);
    run(c, false, (simt_schedule)s, in, out[s]);
  }
}

// ---- GEMMs of warpgroups

enum {
  GROUP_ROWS = 128,
  WIDE = 128,
  COLUMNS = 64
};
typedef struct group_arguments {
  bool unfenced, early, astray;
  const uint16_t *a, *b;
  float *scores, *out;
} group_arguments;

static void tile_fill(uint16_t *tile, const uint16_t *from, int rows, int width) {
  for (int32_t i = lm_thread(); i < rows * width; i += lm_threads())
    lm_put(tile, lm_swizzled(rows, i / width, i % width / 8 * 8) + i % 8, from[i]);
}

// scores = a b', out = scores b, for two groups of 64 rows.
static void wgmmas(void *args) {
  const group_arguments *g = args;
  LM_POOL_DECLARE();
  LM_POOL(uint16_t, a, 0, GROUP_ROWS * WIDE);
  LM_POOL(uint16_t, b, GROUP_ROWS * WIDE * 2, COLUMNS * WIDE);
  float s[COLUMNS / 8][4] = {{0}}, o[WIDE / 8][4] = {{0}};
  tile_fill(a, g->a, GROUP_ROWS, WIDE);
  tile_fill(b, g->b, COLUMNS, WIDE);
  if (!g->unfenced)
    lm_proxy_fence();
  if (!g->early)
    lm_barrier();
  LM_GROUP_DOT(s, 64, a + (g->astray ? 8 * 64 * 2 + 64 : 0), lm_thread() / 128 * 64, GROUP_ROWS, b,
               WIDE)
  lm_wgmma_wait(0);
  uint32_t packed[COLUMNS / 16][4];
  LM_GROUP_PACK(packed, s, COLUMNS)
  LM_GROUP_WEIGHTED(o, 128, packed, COLUMNS, b)
  lm_wgmma_wait(0);
  int32_t row = lm_thread() / 32 * 16 + lm_thread() % 32 / 4;
  int32_t col = lm_thread() % 4 * 2;
  for (int32_t i = 0; i < COLUMNS / 8 * 4; i++)
    g->scores[(row + i % 4 / 2 * 8) * COLUMNS + i / 4 * 8 + col + i % 2] = s[i / 4][i % 4];
  for (int32_t i = 0; i < WIDE / 8 * 4; i++)
    g->out[(row + i % 4 / 2 * 8) * WIDE + i / 4 * 8 + col + i % 2] = o[i / 4][i % 4];
}

static void wgmmas_expect(const group_arguments *g) {
  for (int i = 0; i < GROUP_ROWS; i++)
    for (int j = 0; j < COLUMNS; j++) {
      float want = 0;
      for (int k = 0; k < WIDE; k++)
        want += lm_bf16_load(g->a[i * WIDE + k]) * lm_bf16_load(g->b[j * WIDE + k]);
      CHECK(g->scores[i * COLUMNS + j] == want); // small integers: exact
    }
  for (int i = 0; i < GROUP_ROWS; i++)
    for (int k = 0; k < WIDE; k++) {
      float want = 0;
      for (int j = 0; j < COLUMNS; j++)
        want += lm_bf16_load(lm_bf16_round(g->scores[i * COLUMNS + j])) *
                lm_bf16_load(g->b[j * WIDE + k]);
      CHECK(g->out[i * WIDE + k] == want);
    }
}

static void wgmmas_find(group_arguments g, const char *what) {
  simt_run(wgmmas, &g, 1, 256);
  char *found = simt_report_take();
  if (!found || !strstr(found, what))
    fprintf(stderr, "wgmma: %s, not %s\n", found ? found : "nothing", what);
  CHECK(found && strstr(found, what));
  lm_free(found);
}

static void test_wgmmas(void) {
  static uint16_t a[GROUP_ROWS * WIDE], b[COLUMNS * WIDE];
  static float scores[GROUP_ROWS * COLUMNS], out[GROUP_ROWS * WIDE];
  for (int i = 0; i < GROUP_ROWS * WIDE; i++)
    a[i] = lm_bf16_round((float)(i * 7 % 11 == 0));
  for (int i = 0; i < COLUMNS * WIDE; i++)
    b[i] = lm_bf16_round((float)(i * 5 % 13 % 4) - 1);
  group_arguments g = {.a = a, .b = b, .scores = scores, .out = out};
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    simt_schedule_set((simt_schedule)s);
    memset(out, 0, sizeof out);
    simt_run(wgmmas, &g, 1, 256);
    char *found = simt_report_take();
    if (found)
      fprintf(stderr, "%s", found);
    CHECK(!found);
    wgmmas_expect(&g);
  }
  group_arguments unfenced = g, early = g, astray = g;
  unfenced.unfenced = early.early = astray.astray = true;
  wgmmas_find(unfenced, "with no fence since");
  wgmmas_find(early, "no barrier since");
  wgmmas_find(astray, "begins within a pattern");
}

// An address beyond its field, and a leading offset.
static void test_wide_fields(void) {
  static const uint64_t too_large[] = {(1 << 18) >> 4, (uint64_t)(1 << 18) >> 4 << 16};
  for (size_t i = 0; i < LM_COUNT(too_large); i++) {
    simt_matrix_offset(too_large[i], 0, 0, false, 0);
    char *found = simt_report_take();
    CHECK(found && strstr(found, "a field that is too large"));
    lm_free(found);
  }
}

// Offsets by hand from the figures of PTX: 16-byte units of a line, exchanged by the line's number.
static void test_descriptors(void) {
  enum {
    NONE,
    BY_128,
    BY_64,
    BY_32
  };
  static const struct {
    uint64_t swizzle;
    int line, k;
    bool transposed;
    int64_t offset;
  } offsets[] = {
      {BY_128, 1, 0, false, 128 + 16},
      {BY_128, 3, 40, false, 3 * 128 + 6 * 16},
      {BY_128, 9, 2, false, 1024 + 128 + 16 + 4},
      {BY_64, 1, 0, false, 64},
      {BY_64, 2, 8, false, 128},
      {BY_64, 7, 0, false, 7 * 64 + 48},
      {BY_32, 4, 0, false, 128 + 16},
      {BY_32, 3, 9, false, 96 + 16 + 2},
      {NONE, 1, 0, false, 16},
      {NONE, 0, 8, false, 2048},
      {NONE, 8, 0, false, 1024},
      {BY_128, 0, 1, true, 128 + 16},
      {BY_128, 8, 8, true, 1024 + 16},
      {BY_128, 65, 0, true, 2048 + 2},
      {BY_64, 0, 2, true, 128 + 16},
      {NONE, 1, 1, true, 16 + 2},
  };
  for (size_t i = 0; i < LM_COUNT(offsets); i++) {
    uint64_t at =
        (uint64_t)(2048 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | offsets[i].swizzle << 62;
    int64_t offset =
        simt_matrix_offset(at, offsets[i].line, offsets[i].k, offsets[i].transposed, 0);
    if (offset != offsets[i].offset)
      fprintf(stderr, "offset %zu: %lld, not %lld\n", i, (long long)offset,
              (long long)offsets[i].offset);
    CHECK(offset == offsets[i].offset);
  }
  char *found = simt_report_take();
  if (found)
    fprintf(stderr, "%s", found);
  CHECK(!found);
}

// ---- boxes of TMA

enum {
  OWN = 128,
  HEADS = 3,
  POSITIONS = 70,
  BATCH = 2,
  BOX_THREADS = 32
};
typedef struct box_arguments {
  const lm_map *map;
  int position;
  bool unfenced, unawaited;
  int expect;
  uint16_t *out;
} box_arguments;

// One thread requests a tile of 64 positions of head 1 of batch 1; all threads read it at its
// expected offsets.
static void boxes(void *args) {
  const box_arguments *a = args;
  LM_POOL(uint16_t, tile, 0, 64 * OWN);
  LM_POOL(uint64_t, ready, 64 * OWN * 2, 1);
  if (lm_thread() == 0) {
    lm_phase_make(ready, 0, 1);
    if (!a->unfenced)
      lm_proxy_fence();
    lm_phase_expect(ready, 0, a->expect);
    LM_GROUP_FETCH(tile, 64, OWN, *a->map, 1, a->position, 1, ready, 0)
    lm_phase_arrive(ready, 0);
  }
  lm_barrier();
  if (!a->unawaited)
    lm_phase_wait(ready, 0, 0);
  for (int32_t i = lm_thread(); i < 64 * OWN; i += lm_threads())
    a->out[i] = lm_get(tile, lm_swizzled(64, i / OWN, i % OWN / 8 * 8) + i % 8);
}

static const char *box_map(lm_map *out, const uint16_t *from, int swizzle, int width,
                           unsigned long long stride) {
  return simt_map_make(out, 9, 4, from, (unsigned long long[]){OWN, HEADS, POSITIONS, BATCH},
                       (unsigned long long[]){2 * OWN, stride, stride * POSITIONS},
                       (unsigned[]){(unsigned)width, 1, 64, 1}, (unsigned[]){1, 1, 1, 1}, 0,
                       swizzle);
}

static void boxes_find(box_arguments a, const char *what) {
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    simt_schedule_set((simt_schedule)s);
    simt_run(boxes, &a, 1, BOX_THREADS);
    char *found = simt_report_take();
    if (!found || !strstr(found, what))
      fprintf(stderr, "boxes: %s, not %s\n", found ? found : "nothing", what);
    CHECK(found && strstr(found, what));
    lm_free(found);
  }
}

static void boxes_run(box_arguments a, const uint16_t *from, bool same) {
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    int differ = 0;
    simt_schedule_set((simt_schedule)s);
    simt_run(boxes, &a, 1, BOX_THREADS);
    CHECK(!simt_report_take());
    for (int i = 0; i < 64 * OWN; i++) {
      int position = a.position + i / OWN;
      differ += a.out[i] != (position >= 0 && position < POSITIONS
                                 ? from[((POSITIONS + position) * HEADS + 1) * OWN + i % OWN]
                                 : 0);
    }
    CHECK(same == !differ);
  }
}

static void test_boxes(void) {
  static _Alignas(16) uint16_t from[BATCH * POSITIONS * HEADS * OWN];
  static uint16_t out[64 * OWN];
  enum {
    STRIDE = 2 * OWN * HEADS
  };
  lm_map map, unswizzled;
  for (size_t i = 0; i < LM_COUNT(from); i++)
    from[i] = (uint16_t)(i * 40503u >> 3);
  CHECK(!box_map(&map, from, 3, 64, STRIDE) && !box_map(&unswizzled, from, 0, 64, STRIDE));
  box_arguments a = {.map = &map, .expect = 2 * 64 * OWN, .out = out}, beyond = a, before = a,
                plain = a, unfenced = a, unawaited = a, less = a, more = a;
  boxes_run(a, from, true);
  beyond.position = 40;
  boxes_run(beyond, from, true); // elements beyond the tensor are zeros
  before.position = -7;
  boxes_run(before, from, true);
  plain.map = &unswizzled;
  boxes_run(plain, from, false);
  unfenced.unfenced = unawaited.unawaited = true;
  less.expect -= 16;
  more.expect += 16;
  boxes_find(unfenced, "made with no fence since");
  boxes_find(less, "more bytes than the phase expects");
  boxes_find(more, "a phase that never ends");
  boxes_find(unawaited, "cop"); // in flight, or with no wait since
  CHECK(box_map(&map, from + 1, 3, 64, STRIDE) && box_map(&map, from, 3, 128, STRIDE) &&
        box_map(&map, from, 3, 64, STRIDE + 8) && box_map(&map, from, 3, 4, STRIDE));
}

int main(void) {
  _Alignas(16) float in[THREADS + 8];
  for (int i = 0; i < THREADS + 8; i++)
    in[i] = (float)(i * 37 % 101) / 64;
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    test_case(&cases[i], in);
  test_case(&(simt_case){"sums", sums, NULL}, in);
  test_case(&(simt_case){"forever", forever, "a phase that never ends"}, in);
  test_wgmmas();
  test_descriptors();
  test_wide_fields();
  test_boxes();
}
