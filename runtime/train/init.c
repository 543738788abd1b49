// init.c - see init.h.
#include "runtime/train/init.h"

#include <math.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "runtime/base/pages.h"
#include "runtime/base/parallel.h"
#include "runtime/base/philox.h"
#include "runtime/base/processors.h"
#include "runtime/base/team.h"

static void constant_fill(float *out, int64_t n, float value) {
  for (int64_t i = 0; i < n; i++)
    out[i] = value;
}

// ---- random values, BLOCKS Philox blocks at a time, in loops that the compiler vectorizes

enum {
  BLOCKS = 64
};
#define INLINE static inline __attribute__((always_inline)) // into functions of any instructions
typedef struct words {
  uint32_t v[4][BLOCKS];
} words; // [word of a block][block]
typedef struct values {
  float v[4][BLOCKS];
} values;

// Draws BLOCKS Philox blocks, in the instructions of the function that it is inlined into.
typedef void drawer(lm_philox_key2 key, uint64_t first, words *out);

INLINE void words_draw(lm_philox_key2 key, uint64_t first, words *out) {
#pragma omp simd
  for (int i = 0; i < BLOCKS; i++) {
    lm_philox4 x = lm_philox_block(key, first + (uint64_t)i);
    for (int k = 0; k < 4; k++)
      out->v[k][i] = x.v[k];
  }
}

#if defined(__x86_64__) && !defined(__AVX__)
#define LEVELS 1
#define TARGET_V3 __attribute__((target("arch=x86-64-v3")))
#ifdef __clang__ // which has no such attribute
#define TARGET_V4 __attribute__((target("arch=x86-64-v4")))
#else
#define TARGET_V4 __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#endif

// The same words of four blocks, each in the low half of a lane; the high halves are arbitrary, as
// multiplications read low halves alone.
typedef uint64_t lanes __attribute__((vector_size(32)));
typedef struct quad {
  lanes v[4];
} quad;

TARGET_V3 INLINE lanes multiply(lanes a, lanes b) {
  return (lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

TARGET_V3 INLINE quad quad_round(quad c, lanes k0, lanes k1) {
  lanes p0 = multiply(c.v[0], (lanes){} + LM_PHILOX_FACTOR_0);
  lanes p1 = multiply(c.v[2], (lanes){} + LM_PHILOX_FACTOR_1);
  return (quad){{p1 >> 32 ^ c.v[1] ^ k0, p1, p0 >> 32 ^ c.v[3] ^ k1, p0}};
}

// The counters of blocks first, first + 2, first + 4 and first + 6.
TARGET_V3 INLINE quad quad_first(uint64_t first) {
  lanes block = (lanes){0, 2, 4, 6} + first;
  return (quad){{block, block >> 32}};
}

TARGET_V3 INLINE void quads_store(const quad *even, const quad *odd, int at, words *out) {
#pragma GCC unroll 4
  for (int k = 0; k < 4; k++) {
    __m256i high = (__m256i)(odd->v[k] << 32);
    __m256i both = _mm256_blend_epi32((__m256i)even->v[k], high, 0xaa);
    _mm256_storeu_si256((__m256i *)&out->v[k][at], both);
  }
}

TARGET_V3 INLINE void words_draw_v3(lm_philox_key2 key, uint64_t first, words *out) {
  for (int at = 0; at < BLOCKS; at += 8) {
    quad even = quad_first(first + (uint64_t)at);
    quad odd = quad_first(first + (uint64_t)at + 1);
#pragma GCC unroll 10
    for (uint32_t round = 0; round < 10; round++) {
      lanes k0 = (lanes){} + (key.v[0] + round * LM_PHILOX_STEP_0);
      lanes k1 = (lanes){} + (key.v[1] + round * LM_PHILOX_STEP_1);
      even = quad_round(even, k0, k1);
      odd = quad_round(odd, k0, k1);
    }
    quads_store(&even, &odd, at, out);
  }
}
#endif

// ln u within 1 ulp for normal u in (0, 1): u = 2^k m with m in [sqrt 1/2, sqrt 2), and the
// polynomial of Cephes' logf for ln m.
INLINE float log_of(float u) {
  uint32_t bits, m_bits;
  float m;
  memcpy(&bits, &u, sizeof bits);
  bits -= 0x3f3504f3u;
  m_bits = (bits & 0x7fffffu) + 0x3f3504f3u;
  memcpy(&m, &m_bits, sizeof m);
  float k = (float)((int32_t)bits >> 23);
  float f = m - 1.0f;
  float z = f * f;
  float p = 7.0376836292e-2f * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  return k * 0.693359375f + (f + (k * -2.12194440e-4f + f * z * p - 0.5f * z));
}

// sin and cos of 2πv within 1 ulp. Subtracting the nearest multiple of a quarter is exact.
INLINE void sin_cos(float v, float *out_sin, float *out_cos) {
  int quarter = (int)(4 * v + 0.5f);
  float x = 6.28318531f * (v - 0.25f * (float)quarter);
  float z = x * x;
  float s = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * x + x;
  float c =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
      0.5f * z + 1.0f;
  float sin = quarter & 1 ? c : s;
  float cos = quarter & 1 ? s : c;
  *out_sin = quarter & 2 ? -sin : sin;
  *out_cos = (quarter + 1) & 2 ? -cos : cos;
}

INLINE void normal_make(const words *x, lm_init init, values *out) {
  float std = (float)init.a;
  for (int k = 0; k < 4; k += 2) {
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++) {
      float r = std * sqrtf(-2 * log_of(lm_philox_unit(x->v[k][i]))), sin, cos;
      sin_cos(lm_philox_unit(x->v[k + 1][i]), &sin, &cos);
      out->v[k][i] = r * cos;
      out->v[k + 1][i] = r * sin;
    }
  }
}

INLINE void uniform_make(const words *x, lm_init init, values *out) {
  for (int k = 0; k < 4; k++)
    for (int i = 0; i < BLOCKS; i++)
      out->v[k][i] = (float)(init.a + (init.b - init.a) * lm_philox_unit(x->v[k][i]));
}

enum {
  CHUNK = 4 * BLOCKS,
  CHUNKS_OF_THREAD = 1 << 10 // minimum number of chunks per thread: about 1 ms
};

// Elements first … last - 1 of a chunk; the compiler vectorizes the loop over a whole chunk.
INLINE void chunk_store(const values *made, int64_t first, int64_t last, float *out) {
  if (last - first < CHUNK) {
    for (int64_t i = first; i < last; i++)
      out[i] = made->v[i % 4][i / 4];
    return;
  }
#pragma omp simd
  for (int i = 0; i < BLOCKS; i++) {
    out[4 * i] = made->v[0][i];
    out[4 * i + 1] = made->v[1][i];
    out[4 * i + 2] = made->v[2][i];
    out[4 * i + 3] = made->v[3][i];
  }
}

typedef struct filling {
  lm_init init;
  lm_philox_key2 key;
  float *out; // of element `first`
  int64_t first, end;
} filling;

INLINE void chunks_make(const filling *f, int64_t first, int64_t last, drawer *draw) {
  for (int64_t from = first * CHUNK; from < last * CHUNK; from += CHUNK) {
    words drawn;
    values made;
    int64_t begin = from < f->first ? f->first : from;
    int64_t end = from + CHUNK < f->end ? from + CHUNK : f->end;
    draw(f->key, (uint64_t)from / 4, &drawn);
    if (f->init.kind == LM_INIT_NORMAL)
      normal_make(&drawn, f->init, &made);
    else
      uniform_make(&drawn, f->init, &made);
    chunk_store(&made, begin - from, end - from, f->out + (from - f->first));
  }
}

static void chunks_fill(const filling *f, int64_t first, int64_t last) {
  chunks_make(f, first, last, words_draw);
}

// The same operations in wider vectors, without contraction: the values are equal.
#ifdef LEVELS
TARGET_V3 static void chunks_fill_v3(const filling *f, int64_t first, int64_t last) {
  chunks_make(f, first, last, words_draw_v3);
}

TARGET_V4 static void chunks_fill_v4(const filling *f, int64_t first, int64_t last) {
  chunks_make(f, first, last, words_draw_v3);
}
#endif

typedef void filler(const filling *f, int64_t first, int64_t last);

static filler *filler_find(void) {
#ifdef LEVELS
  if (lm_x86_64_level() >= 4)
    return chunks_fill_v4;
  if (lm_x86_64_level() >= 3)
    return chunks_fill_v3;
#endif
  return chunks_fill;
}

typedef struct chunks {
  filling f;
  filler *fill;
  int64_t first; // chunk
} chunks;

static void chunks_of(void *user, int64_t first, int64_t last) {
  chunks *c = user;
  c->fill(&c->f, c->first + first, c->first + last);
}

static void random_fill(lm_init init, lm_philox_key2 key, int64_t first, int64_t n, float *out) {
  chunks c = {{init, key, out, first, first + n}, filler_find(), first / CHUNK};
  int64_t last = (first + n + CHUNK - 1) / CHUNK;
  lm_parallel_ranges(last - c.first, CHUNKS_OF_THREAD, chunks_of, &c);
}

void lm_init_fill(lm_init init, uint64_t seed, const char *path, int64_t first, int64_t n,
                  float *out) {
  switch (init.kind) {
  case LM_INIT_ZEROS: constant_fill(out, n, 0); break;
  case LM_INIT_ONES: constant_fill(out, n, 1); break;
  case LM_INIT_CONST: constant_fill(out, n, (float)init.a); break;
  case LM_INIT_NORMAL:
  case LM_INIT_UNIFORM:
    random_fill(init, lm_philox_key(seed, lm_hash(path, strlen(path), 0)), first, n, out);
    break;
  }
}

// ---- all parameters, PARTS parts of them at a time: the threads fill a buffer, which stays in
// their caches, and the caller copies it to where the parameters are

enum {
  PART = 1 << 15, // elements
  PARTS = 32
};
typedef struct part {
  const lm_plan_param *p;
  int64_t first, n;
} part;
typedef struct parts {
  lm_exec *e;
  const lm_plan *plan;
  uint64_t seed;
  lm_team *team;
  float *buffer; // [PARTS * PART]
  int n;
  part v[PARTS];
} parts;

static void parts_fill(void *user, int me) {
  const parts *all = user;
  for (int i = me; i < all->n; i += lm_team_size(all->team)) {
    const part *x = &all->v[i];
    lm_init init = {x->p->init, x->p->init_a, x->p->init_b};
    lm_init_fill(init, all->seed, x->p->path, x->first, x->n, all->buffer + i * PART);
  }
}

// A copy visits all pieces of its parameter, so neighbouring parts are copied at once.
static lm_status parts_set(parts *all) {
  lm_team_run(all->team, parts_fill, all);
  for (int i = 0, next; i < all->n; i = next) {
    part x = all->v[i];
    for (next = i + 1; next < all->n && all->v[next].p == x.p; next++)
      x.n += all->v[next].n;
    LM_TRY(lm_tensor_set(all->e, all->plan, (lm_plan_tensor){x.p, LM_ROLE_PARAM}, x.first, x.n,
                         all->buffer + i * PART));
  }
  all->n = 0;
  return NULL;
}

static lm_status param_init(parts *all, const lm_plan_param *p) {
  for (int64_t at = 0; at < p->elements; at += PART) {
    int64_t left = p->elements - at;
    all->v[all->n++] = (part){p, at, left < PART ? left : PART};
    if (all->n == PARTS)
      LM_TRY(parts_set(all));
  }
  return NULL;
}

static int threads_of(const lm_plan *plan) {
  int64_t elements = 0;
  for (int i = 0; i < plan->n_params; i++)
    elements += plan->params[i].elements;
  int64_t useful = 1 + elements / (CHUNK * CHUNKS_OF_THREAD);
  int64_t all = lm_threads(0);
  return (int)(useful < all ? useful : all);
}

lm_status lm_init_params(lm_exec *e, const lm_plan *plan, uint64_t seed) {
  parts all = {
      .e = e,
      .plan = plan,
      .seed = seed,
  };
  lm_pages pages;
  if (!lm_pages_make(sizeof(float) * PARTS * PART, &pages))
    lm_out_of_memory(sizeof(float) * PARTS * PART);
  all.team = lm_team_create(threads_of(plan));
  all.buffer = (float *)(void *)pages.start;
  lm_status s = NULL;
  for (int i = 0; !s && i < plan->n_params; i++)
    s = param_init(&all, &plan->params[i]);
  if (!s)
    s = parts_set(&all);
  lm_pages_free(&pages);
  lm_team_destroy(all.team);
  return s;
}
