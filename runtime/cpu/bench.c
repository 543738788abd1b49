// bench.c - measures the machine's peaks: the GEMMs of a model's linear layers, and multiply-adds
// in registers.
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "runtime/base/processors.h"
#include "runtime/base/team.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"

char *lm_cpu_zeros_make(int64_t elements) {
  enum {
    PAGE = 2 << 20
  };
  char *p = lm_calloc((size_t)elements, sizeof(float));
  uintptr_t first = ((uintptr_t)p + PAGE - 1) / PAGE * PAGE;
  uintptr_t end = ((uintptr_t)p + (size_t)elements * sizeof(float)) / PAGE * PAGE;
  if (first < end)
    madvise((void *)first, end - first, MADV_HUGEPAGE); // advice: refusal costs only speed
  return p;
}

char *lm_cpu_matrix_make(int64_t elements, lm_dtype dtype) {
  char *p = lm_cpu_zeros_make(elements);
  uint64_t state = (uint64_t)elements;
  for (int64_t i = 0; i < elements; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    float x = (float)(int32_t)(state >> 32) * 0x1p-31f;
    uint32_t bits = lm_dtype_bits(dtype, x);
    if (lm_dtype_is_half(dtype))
      memcpy(p + 2 * i, &bits, 2);
    else
      memcpy(p + 4 * i, &x, 4);
  }
  return p;
}

static lm_plan_extent fixed(int64_t n) {
  return (lm_plan_extent){.fixed = n};
}

static double best_time(lm_cpu_gemms *all, lm_plan_gemm g, lm_dtype ab, lm_dtype cc, const char *a,
                        const char *b, char *c, int repeats) {
  lm_shortest best = {0};
  g.dtype_ab = (uint8_t)ab;
  g.dtype_c = (uint8_t)cc;
  lm_cpu_gemm_prepare(all, &g);
  for (int i = 0; i < repeats && !lm_shortest_is_confirmed(&best); i++) {
    double start = lm_now();
    lm_cpu_gemm(all, &g, NULL, a, b, c);
    lm_shortest_add(&best, lm_now() - start);
  }
  return best.seconds;
}

lm_cpu_linear_gemms lm_cpu_linear_gemms_of(const lm_cpu_linear *p) {
  lm_cpu_linear_gemms g;
  g.forward = (lm_plan_gemm){.m = fixed(p->m),
                             .n = fixed(p->n),
                             .k = fixed(p->k),
                             .a_m = p->k,
                             .a_k = 1,
                             .b_k = p->n,
                             .b_n = 1,
                             .c_m = p->n,
                             .c_n = 1};
  g.data = (lm_plan_gemm){.m = fixed(p->m),
                          .n = fixed(p->k),
                          .k = fixed(p->n),
                          .a_m = p->n,
                          .a_k = 1,
                          .b_k = 1,
                          .b_n = p->n,
                          .c_m = p->k,
                          .c_n = 1};
  g.weight = (lm_plan_gemm){.m = fixed(p->k),
                            .n = fixed(p->n),
                            .k = fixed(p->m),
                            .a_m = 1,
                            .a_k = p->k,
                            .b_k = p->n,
                            .b_n = 1,
                            .c_m = p->n,
                            .c_n = 1,
                            .accumulate = true};
  return g;
}

static void projection_time(lm_cpu_gemms *all, const lm_cpu_linear *p, lm_dtype t, int repeats,
                            lm_cpu_gemm_times *total) {
  char *x = lm_cpu_matrix_make(p->m * p->k, t);
  char *w = lm_cpu_matrix_make(p->k * p->n, t);
  char *y = lm_cpu_matrix_make(p->m * p->n, t);
  char *sum = lm_cpu_zeros_make(p->k * p->n);
  lm_cpu_linear_gemms g = lm_cpu_linear_gemms_of(p);
  total->forward += p->count * best_time(all, g.forward, t, t, x, w, y, repeats);
  total->weight += p->count * best_time(all, g.weight, t, LM_F32, x, y, sum, repeats);
  total->data += p->count * best_time(all, g.data, t, t, y, w, x, repeats);
  lm_free(x);
  lm_free(w);
  lm_free(y);
  lm_free(sum);
}

lm_cpu_gemm_times lm_cpu_gemm_bench(const lm_cpu_linear *p, int n, lm_dtype dtype, int threads,
                                    int repeats) {
  lm_cpu_gemm_times total = {0};
  lm_cpu_gemms *all = lm_cpu_gemms_create(&(lm_cpu_gemm_options){.threads = threads});
  for (int i = 0; i < n; i++)
    projection_time(all, &p[i], dtype, repeats, &total);
  lm_cpu_gemms_destroy(all);
  return total;
}

// A function of independent chains of multiply-adds on vectors of N floats; the independence hides
// the latency, which on aarch64 is 4 cycles of up to 4 units.
enum {
#ifdef __aarch64__
  CHAINS = 24,
#else
  CHAINS = 12,
#endif
  ROUNDS = 1 << 18,
  PEAK_RUNS = 40 // at most, of about 0.5 ms each: each `lmc run` waits for them
};
#ifdef __clang__
#define FUSED
#define FUSE _Pragma("clang fp contract(fast)")
#else
#define FUSED optimize("fp-contract=fast"),
#define FUSE
#endif
#define CHAINS_OF(N, TARGET)                                                                       \
  __attribute__((                                                                                  \
      target(TARGET),                                                                              \
      FUSED no_sanitize("address", "undefined"))) static float chains_##N(float start) {           \
    FUSE typedef float lanes __attribute__((vector_size(N * 4)));                                  \
    lanes x[CHAINS], scale = {0}, add = {0};                                                       \
    scale += 0.999f + 1e-9f * start;                                                               \
    add += 0.1f * start;                                                                           \
    for (int i = 0; i < CHAINS; i++)                                                               \
      x[i] = scale * (float)i;                                                                     \
    for (int r = 0; r < ROUNDS; r++)                                                               \
      _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) x[i] = x[i] * scale + add;         \
    float sum = 0;                                                                                 \
    for (int i = 0; i < CHAINS; i++)                                                               \
      sum += x[i][0];                                                                              \
    return sum;                                                                                    \
  }
// The same by an instruction for bf16, whose operands are vectors of BYTES bytes, each in a
// REGISTER of the compiler's constraints.
#define CHAINS_OF_BF16(NAME, BYTES, TARGET, REGISTER, INSTRUCTION)                                 \
  __attribute__((target(TARGET), no_sanitize("address", "undefined"))) static float chains_##NAME( \
      float start) {                                                                               \
    typedef float lanes __attribute__((vector_size(BYTES)));                                       \
    lanes x[CHAINS], y = {0};                                                                      \
    y += 0.01f * start;                                                                            \
    _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) x[i] = y * (float)i;                 \
    for (int r = 0; r < ROUNDS; r++)                                                               \
      _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS;                                         \
                                    i++) __asm__(INSTRUCTION : "+" REGISTER(x[i]) : REGISTER(y));  \
    float sum = 0;                                                                                 \
    _Pragma("GCC unroll 24") for (int i = 0; i < CHAINS; i++) sum += x[i][0];                      \
    return sum;                                                                                    \
  }

// The widest chains that the processor has for operands of a type; multiply_adds: of one call.
typedef struct chains_kind {
  float (*run)(float);
  double multiply_adds;
} chains_kind;

// Of instructions that multiply `elements` each.
static chains_kind chains_of(float (*run)(float), int elements) {
  return (chains_kind){run, (double)CHAINS * ROUNDS * elements};
}

#ifdef __aarch64__
CHAINS_OF(4, "arch=armv8-a")

// The same for bf16: two rows of four by two columns of four.
CHAINS_OF_BF16(blocks, 16, "arch=armv8.2-a+bf16", "w", "bfmmla %0.4s, %1.8h, %1.8h")

static chains_kind chains_best(lm_dtype dtype) {
  bool blocks = dtype == LM_BF16 && lm_cpu_has_bf16();
  return blocks ? chains_of(chains_blocks, 16) : chains_of(chains_4, 4);
}
#else
CHAINS_OF(16, "avx512f")
CHAINS_OF(8, "avx2,fma")
CHAINS_OF(4, "sse2")

// The same by the dot product of pairs of bf16, in chains of 16 sums.
CHAINS_OF_BF16(pairs, 64, "avx512f", "v", "vdpbf16ps %1, %1, %0")

// The same by AMX: six tiles of 16 by 16 sums, whose instructions multiply 32 elements along k in
// 16 cycles.
enum {
  TILE_CHAINS = 6,
  TILE_ROUNDS = ROUNDS / 256,
  TILE_MULTIPLY_ADDS = 16 * 16 * 32
};
static float chains_tiles(float start) {
  struct {
    uint8_t palette, row, rest[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } layout = {.palette = 1};
  for (int i = 0; i < 8; i++) {
    layout.bytes[i] = 64;
    layout.rows[i] = 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(layout)); // clears the tiles
  for (int r = 0; r < TILE_ROUNDS; r++)
    __asm__ volatile("tdpbf16ps %tmm7, %tmm6, %tmm0\n\ttdpbf16ps %tmm7, %tmm6, %tmm1\n\t"
                     "tdpbf16ps %tmm7, %tmm6, %tmm2\n\ttdpbf16ps %tmm7, %tmm6, %tmm3\n\t"
                     "tdpbf16ps %tmm7, %tmm6, %tmm4\n\ttdpbf16ps %tmm7, %tmm6, %tmm5");
  __asm__ volatile("tilerelease");
  return start;
}

// True if generated code uses the matrix unit, and this processor has it: a test may say that it
// had one (tests/emulate).
static bool has_tiles(void) {
  enum {
    AMX_BF16 = 1 << 22
  };
  lm_cpu_info cpu;
  unsigned a, b, c, d = 0;
  lm_cpu_detect(&cpu);
  return lm_cpu_matrix_unit(&cpu) == LM_MATRIX_AMX && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
         d & AMX_BF16;
}

static chains_kind chains_best(lm_dtype dtype) {
  if (dtype == LM_BF16 && has_tiles())
    return (chains_kind){chains_tiles, (double)TILE_CHAINS * TILE_ROUNDS * TILE_MULTIPLY_ADDS};
  if (dtype == LM_BF16 && lm_cpu_has_bf16() && __builtin_cpu_supports("avx512bf16"))
    return chains_of(chains_pairs, 32);
  if (__builtin_cpu_supports("avx512f"))
    return chains_of(chains_16, 16);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return chains_of(chains_8, 8);
  return chains_of(chains_4, 4);
}
#endif

typedef struct chains {
  float (*run)(float);
  volatile float sink;
  double *seconds; // by thread
} chains;

static void chains_run(void *user, int me) {
  chains *c = user;
  double start = lm_thread_seconds();
  float v = c->run(1);
  if (v == 12345.0f)
    c->sink = v; // never; the result is used
  c->seconds[me] = lm_thread_seconds() - start;
}

static double longest(const double *seconds, int n) {
  double most = 0;
  for (int i = 0; i < n; i++)
    most = fmax(most, seconds[i]);
  return most;
}

// Threads do not wait for each other, so processor time is the time that each needs, whatever else
// the processors do.
static double register_peak(int threads, lm_dtype dtype) {
  lm_shortest best = {0};
  chains_kind kind = chains_best(dtype);
  lm_team *team = lm_team_create(threads);
  threads = lm_team_size(team);
  chains c = {
      .run = kind.run,
      .seconds = lm_calloc((size_t)threads, sizeof *c.seconds),
  };
  for (int i = 0; i < PEAK_RUNS && !lm_shortest_is_confirmed(&best); i++) {
    lm_team_run(team, chains_run, &c);
    lm_shortest_add(&best, longest(c.seconds, threads));
  }
  lm_team_destroy(team);
  lm_free(c.seconds);
  return 2 * threads * kind.multiply_adds / best.seconds;
}

// f16 is widened to f32.
double lm_cpu_peak(int threads, lm_dtype dtype) {
  if (dtype == LM_F16)
    dtype = LM_F32;
  if (threads <= 0)
    threads = lm_threads(0);
  return register_peak(threads, dtype);
}
