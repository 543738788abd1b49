// simt_test.c - the shim itself: kernels with one mistake each, which it must name, and the same without it, which it must
// let pass under every schedule.
#include "codegen/cpu/prelude/types.h"
#include "codegen/cpu/prelude/math.h"
#include "codegen/cuda/prelude/simt.h"
#include "codegen/cuda/prelude/team.cuh"
#include "codegen/cuda/prelude/vector.cuh"

#include "tests/cuda/simt.h"
#include "tests/runtime/check.h"

typedef struct arguments { bool mistake; float *out; const float *in; } arguments;

// Each thread reads what its neighbour wrote.
static void neighbours(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread(), n = lm_threads();
  LM_SHARED(float, row, 96);
  lm_put(row, i, a->in[i]);
  if (!a->mistake) lm_barrier();
  a->out[lm_block() * n + i] = lm_get(row, (i + 1) % n);
}

// The next round's write waits for the last round's reads.
static void rounds(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread(), n = lm_threads();
  LM_SHARED(float, row, 96);
  float sum = 0;
  for (int32_t k = 0; k < 3; k++) {
    lm_put(row, i, a->in[(i + k) % n]);
    lm_barrier();
    sum += lm_get(row, (i + k) % n);
    if (!a->mistake) lm_barrier();
  }
  a->out[lm_block() * n + i] = sum;
}

// Within a warp, a barrier of the warp is enough.
static void warp_neighbours(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread(), warp = i / 32 * 32;
  uint32_t mates = a->mistake ? lm_mates(16) : ~0u;
  LM_SHARED(float, row, 96);
  lm_put(row, i, a->in[i]);
  lm_warp_sync(mates);
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
  if (!(a->mistake && i == 5)) lm_put(row, i, a->in[i]);
  a->out[lm_block() * lm_threads() + i] = lm_get(row, i);
}

// A barrier that some threads never reach while they wait for others in a shuffle.
static void absent(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  float x = a->in[i];
  if (a->mistake && i == 7) return;
  x += lm_shuffle_xor_f32(~0u, x, 1);
  a->out[lm_block() * lm_threads() + i] = x;
}

static void stranger(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  a->out[lm_block() * lm_threads() + i] = lm_shuffle_xor_f32(lm_mates(8), a->in[i], a->mistake ? 8 : 4);
}

static void odd_vector(void *args) {
  const arguments *a = args;
  float x[4] = {0};
  if (lm_thread() < 8) lm_load4_f32(x, a->in + 4 * lm_thread() + a->mistake);
  a->out[lm_block() * lm_threads() + lm_thread()] = x[0] + x[3];
}

static void sums(void *args) {
  const arguments *a = args;
  int32_t i = lm_thread();
  LM_SHARED(double, room, 32);
  float all = lm_block_sum_f32(a->in[i], room);
  float most = lm_block_max_f32(a->in[i], room);
  float team = lm_team_sum_f32(a->in[i], lm_mates(4), 4);
  a->out[lm_block() * lm_threads() + i] = all + 3 * most + 7 * team;
}

enum { THREADS = 96, BLOCKS = 3 };
typedef struct simt_case { const char *name; void (*call)(void *args); const char *found; } simt_case;
static const simt_case cases[] = {
  {"neighbours", neighbours, "no barrier since"},      {"rounds", rounds, "no barrier since"},
  {"warp_neighbours", warp_neighbours, "no barrier since"}, {"bounds", bounds, "writes row at byte 384 of 384"},
  {"unwritten", unwritten, "which nothing wrote"},     {"absent", absent, "never come"},
  {"stranger", stranger, "takes no part"},             {"odd_vector", odd_vector, "odd address"},
};

static void run(const simt_case *c, bool mistake, simt_schedule schedule, const float *in, float *out) {
  simt_schedule_set(schedule);
  simt_run(c->call, &(arguments){mistake, out, in}, BLOCKS, THREADS);
}

static void test_case(const simt_case *c, const float *in) {
  float out[SIMT_SCHEDULES][BLOCKS * THREADS];
  for (int s = 0; s < SIMT_SCHEDULES; s++) {
    run(c, false, (simt_schedule)s, in, out[s]);
    char *found = simt_report_take();
    if (found) fprintf(stderr, "%s: %s", c->name, found);
    CHECK(!found && !memcmp(out[0], out[s], sizeof out[0]));
    if (!c->found) continue;
    run(c, true, (simt_schedule)s, in, out[s]);
    found = simt_report_take();
    if (!found || !strstr(found, c->found)) fprintf(stderr, "%s, schedule %d: %s\n", c->name, s, found ? found : "nothing was found");
    CHECK(found && strstr(found, c->found));
    lm_free(found);
    run(c, false, (simt_schedule)s, in, out[s]);
  }
}

int main(void) {
  _Alignas(16) float in[THREADS + 8];
  for (int i = 0; i < THREADS + 8; i++) in[i] = (float)(i * 37 % 101) / 64;
  for (size_t i = 0; i < LM_COUNT(cases); i++) test_case(&cases[i], in);
  test_case(&(simt_case){"sums", sums, NULL}, in);
}
