// cublaslt.c - the fake cuBLASLt: GEMMs by loops, after the checks that the library makes; see
// fake.h.
#include "tests/cuda/fake/fake.h"

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/floats.h"
#include "runtime/cuda/gemm.h"

enum {
  INVALID = 7,
  INTERNAL = 14,
  NOT_SUPPORTED = 15,
  VEC32 = 2, // modes of scales
  VEC128 = 4,
  BLK128 = 5,
  SCALES_ROWS = 128, // of a tile of scales
  SCALES_COLUMNS = 4
};

typedef struct desc {
  int compute, scale;
  int32_t transposed[2];
  uint32_t epilogue, spare;
  int32_t scale_mode[2];
  int8_t fast, unused[7]; // whether sums may be in narrower accumulators; here they are not
  int64_t aux_ld;
  unsigned long long bias, aux, scale_of[2];
} desc;
typedef struct layout {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t count;
  int64_t stride;
} layout;
typedef struct preference {
  uint64_t workspace;
  uint32_t reduction, align[4];
} preference;

static struct {
  fake_memory_fn *memory;
  fake_touch_fn *touch;
  fake_enqueue_fn *enqueue;
  fake_recording_fn *recording;
  int capability; // 90: 9.0
  bool untiled;   // a planted fault: scales of blocks are read row by row, without padding
} driver;

static int capability_of(void *library) {
  int (*get)(int *value, int attribute, int device);
  int major = 0, minor = 0;
  *(void **)&get = dlsym(library, "cuDeviceGetAttribute");
  return get && !get(&major, 75, 0) && !get(&minor, 76, 0) ? 10 * major + minor : 0;
}

FAKE_API int cublasLtCreate(void **out) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library)
    return 1;
  *(void **)&driver.memory = dlsym(library, "fake_memory");
  *(void **)&driver.touch = dlsym(library, "fake_order_touch");
  *(void **)&driver.enqueue = dlsym(library, "fake_enqueue");
  *(void **)&driver.recording = dlsym(library, "fake_recording");
  driver.capability = capability_of(library);
  const char *how = getenv("FAKE_CUDA");
  driver.untiled = how && strstr(how, "untiled");
  *out = &driver;
  return driver.memory && driver.touch && driver.enqueue && driver.recording ? 0 : 1;
}

FAKE_API int cublasLtDestroy(void *handle) {
  return 0;
}
FAKE_API size_t cublasLtGetVersion(void) {
  return 130000;
}
FAKE_API const char *cublasLtGetStatusString(int status) {
  return status == INVALID         ? "an invalid value"
         : status == NOT_SUPPORTED ? "not supported"
                                   : "an error";
}

static int copy_in(void *out, size_t size, const void *value, size_t bytes) {
  if (bytes != size)
    return INVALID;
  memcpy(out, value, size);
  return 0;
}

#define MADE(T, ...)                                                                               \
  do {                                                                                             \
    T *x_ = malloc(sizeof *x_);                                                                    \
    *x_ = (T)__VA_ARGS__;                                                                          \
    *out = x_;                                                                                     \
    return 0;                                                                                      \
  } while (0)
FAKE_API int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
  MADE(desc, {.compute = compute, .scale = scale, .epilogue = LM_LT_EPILOGUE_NONE});
}
FAKE_API int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols,
                                        int64_t ld) {
  MADE(layout, {type, rows, cols, ld, 1, 0});
}
FAKE_API int cublasLtMatmulPreferenceCreate(void **out) {
  MADE(preference, {.align = {256, 256, 256, 256}});
}
FAKE_API int cublasLtMatmulDescDestroy(void *x) {
  free(x);
  return 0;
}
FAKE_API int cublasLtMatrixLayoutDestroy(void *x) {
  free(x);
  return 0;
}
FAKE_API int cublasLtMatmulPreferenceDestroy(void *x) {
  free(x);
  return 0;
}

FAKE_API int cublasLtMatmulDescSetAttribute(void *x, int attribute, const void *value,
                                            size_t bytes) {
  desc *d = x;
  switch (attribute) {
  case LM_LT_DESC_TRANSA:
  case LM_LT_DESC_TRANSB:
    return copy_in(&d->transposed[attribute == LM_LT_DESC_TRANSB], sizeof *d->transposed, value,
                   bytes);
  case LM_LT_DESC_FAST_ACCUM: return copy_in(&d->fast, sizeof d->fast, value, bytes);
  case LM_LT_DESC_EPILOGUE: return copy_in(&d->epilogue, sizeof d->epilogue, value, bytes);
  case LM_LT_DESC_AUX_LD: return copy_in(&d->aux_ld, sizeof d->aux_ld, value, bytes);
  case LM_LT_DESC_BIAS: return copy_in(&d->bias, sizeof d->bias, value, bytes);
  case LM_LT_DESC_AUX: return copy_in(&d->aux, sizeof d->aux, value, bytes);
  case LM_LT_DESC_SCALE_A:
  case LM_LT_DESC_SCALE_B:
    return copy_in(&d->scale_of[attribute == LM_LT_DESC_SCALE_B], sizeof *d->scale_of, value,
                   bytes);
  case LM_LT_DESC_SCALE_MODE_A:
  case LM_LT_DESC_SCALE_MODE_B:
    return copy_in(&d->scale_mode[attribute == LM_LT_DESC_SCALE_MODE_B], sizeof *d->scale_mode,
                   value, bytes);
  default: return INVALID;
  }
}

FAKE_API int cublasLtMatrixLayoutSetAttribute(void *x, int attribute, const void *value,
                                              size_t bytes) {
  layout *l = x;
  if (attribute == LM_LT_LAYOUT_BATCH_COUNT)
    return copy_in(&l->count, sizeof l->count, value, bytes);
  if (attribute == LM_LT_LAYOUT_BATCH_STRIDE)
    return copy_in(&l->stride, sizeof l->stride, value, bytes);
  return INVALID;
}

FAKE_API int cublasLtMatmulPreferenceSetAttribute(void *x, int attribute, const void *value,
                                                  size_t bytes) {
  preference *p = x;
  if (attribute == LM_LT_PREF_WORKSPACE)
    return copy_in(&p->workspace, sizeof p->workspace, value, bytes);
  if (attribute == LM_LT_PREF_REDUCTION)
    return copy_in(&p->reduction, sizeof p->reduction, value, bytes);
  if (attribute < LM_LT_PREF_ALIGN_A || attribute > LM_LT_PREF_ALIGN_D)
    return INVALID;
  return copy_in(&p->align[attribute - LM_LT_PREF_ALIGN_A], sizeof *p->align, value, bytes);
}

// ---- compatibility checks

static bool is_half(int type) {
  return type == LM_CUBLASLT_BF16 || type == LM_CUBLASLT_F16;
}

static bool is_code(int type) {
  return type == LM_CUBLASLT_E4M3 || type == LM_CUBLASLT_E5M2;
}

static int bytes_of(int type) {
  return type == LM_CUBLASLT_F64 ? 8 : is_half(type) ? 2 : is_code(type) ? 1 : 4;
}

static int64_t k_of(const desc *d, const layout *a) {
  return (int64_t)(d->transposed[0] ? a->rows : a->cols);
}

// Elements along k that have a scale.
static int block_of(int mode) {
  return mode == VEC32 ? 32 : 128;
}

// True if the library has these modes of scales ("Scaling Mode Support Overview"): from compute
// capability 10.0 on a scale for each 32 elements along k, of both operands, of which k is a
// multiple here; of 9.0 alone, scales for 128 elements along k, or for 128 x 128, but not of both
// operands.
static bool modes_fit(const desc *d, int64_t k) {
  int a = d->scale_mode[0], b = d->scale_mode[1];
  bool of_a = a == VEC128 || a == BLK128, of_b = b == VEC128 || b == BLK128;
  if (a == VEC32 && b == VEC32)
    return driver.capability >= 100 && k % block_of(a) == 0;
  if (of_a && of_b)
    return driver.capability == 90 && !(a == BLK128 && b == BLK128);
  return !a && !b;
}

// True if cublasLtMatmul accepts a GEMM of 8-bit floats, by its documentation ("FP8 kernels"). The
// GPU has tensor cores for them. At most one operand is e5m2. The result is f16, bf16 or f32, and
// sums are f32. Before compute capability 10.0, A is transposed and B is not. Sizes are multiples
// of 16, and columns begin at multiples of 16 bytes.
static bool codes_fit(const desc *d, const layout *a, const layout *b, const layout *c) {
  const layout *all[] = {a, b, c};
  bool wide = a->type == LM_CUBLASLT_E5M2 && b->type == LM_CUBLASLT_E5M2;
  bool by_k = d->transposed[0] && !d->transposed[1];
  bool fit = is_code(a->type) && is_code(b->type) && !wide && driver.capability >= 89 &&
             (by_k || driver.capability >= 100) && (is_half(c->type) || c->type == LM_CUBLASLT_F32);
  fit = fit && modes_fit(d, k_of(d, a));
  for (int i = 0; i < 3; i++)
    fit = fit && all[i]->rows % 16 == 0 && all[i]->cols % 16 == 0 &&
          all[i]->ld * bytes_of(all[i]->type) % 16 == 0;
  return fit;
}

static bool has_codes(const layout *a, const layout *b) {
  return is_code(a->type) || is_code(b->type);
}

static bool layouts_fit(const desc *d, const layout *a, const layout *b, const layout *c) {
  uint64_t m = d->transposed[0] ? a->cols : a->rows;
  uint64_t k = d->transposed[0] ? a->rows : a->cols;
  uint64_t k2 = d->transposed[1] ? b->cols : b->rows;
  uint64_t n = d->transposed[1] ? b->rows : b->cols;
  bool types =
      has_codes(a, b) || (a->type == b->type &&
                          (a->type == c->type || (is_half(a->type) && c->type == LM_CUBLASLT_F32)));
  bool rounds = d->compute == LM_LT_COMPUTE_TF32 && a->type == LM_CUBLASLT_F32;
  bool numbers = (rounds || d->compute == (a->type == LM_CUBLASLT_F64 ? LM_LT_COMPUTE_64F
                                                                      : LM_LT_COMPUTE_32F)) &&
                 d->scale == (a->type == LM_CUBLASLT_F64 ? LM_CUBLASLT_F64 : LM_CUBLASLT_F32);
  bool lds = (uint64_t)a->ld >= a->rows && (uint64_t)b->ld >= b->rows &&
             (uint64_t)c->ld >= c->rows && a->ld > 0 && b->ld > 0 && c->ld > 0;
  return types && numbers && lds && m == c->rows && n == c->cols && k == k2 && m && n && k &&
         a->count == c->count && b->count == c->count && c->count > 0;
}

// A bias is added to each column. gelu is the tanh form; with an auxiliary matrix, whose columns
// are a multiple of 8 elements apart, it stores its operand there. f64 has neither, and each needs
// its address.
static bool epilogue_fits(const desc *d, const layout *c) {
  bool bias = d->epilogue & LM_LT_EPILOGUE_BIAS;
  bool gelu = d->epilogue & LM_LT_EPILOGUE_GELU;
  bool aux = d->epilogue & LM_LT_EPILOGUE_AUX;
  if (d->epilogue == LM_LT_EPILOGUE_NONE)
    return true;
  if (d->epilogue & ~(uint32_t)(LM_LT_EPILOGUE_BIAS | LM_LT_EPILOGUE_GELU | LM_LT_EPILOGUE_AUX) ||
      !(bias || gelu) || (aux && !gelu))
    return false;
  if (c->type == LM_CUBLASLT_F64 || (bias && (!d->bias || d->bias % 16)))
    return false;
  return !aux ||
         (d->aux && d->aux % 16 == 0 && d->aux_ld % 8 == 0 && (uint64_t)d->aux_ld >= c->rows);
}

// Unless FAKE_CUDA contains "plain", the library supports every epilogue, and unless it contains
// "refuse", all matrices of bf16.
static bool refuses(const desc *d, const layout *a) {
  const char *how = getenv("FAKE_CUDA");
  bool plain = how && strstr(how, "plain");
  bool refuse = how && strstr(how, "refuse");
  return (plain && d->epilogue != LM_LT_EPILOGUE_NONE) || (refuse && a->type == LM_CUBLASLT_BF16);
}

// The alignment that the library assumes of a pointer in the descriptor, from its value when an
// algorithm is chosen (cublasLt.h on CUBLASLT_MATMUL_DESC_BIAS_POINTER): at most 256 bytes, the
// default alignment of a preference, since no algorithm needs more.
static uint64_t alignment_of(unsigned long long at) {
  const uint64_t most = 256;
  uint64_t all = at | most;
  return all & -all;
}

// The alignments of bias and auxiliary matrix, one in each half.
static uint64_t descriptor_alignment(const desc *d) {
  return alignment_of(d->bias) | alignment_of(d->aux) << 32;
}

static bool descriptor_aligned(const desc *d, uint64_t promised) {
  uint32_t bias = (uint32_t)promised;
  uint32_t aux = (uint32_t)(promised >> 32);
  return bias && aux && d->bias % bias == 0 && d->aux % aux == 0;
}

// Scales of blocks must be given, and begin at multiples of 16 bytes.
static bool scales_aligned(const desc *d) {
  bool fit = true;
  for (int i = 0; i < 2; i++)
    fit = fit && (d->scale_mode[i] ? d->scale_of[i] && d->scale_of[i] % 16 == 0
                                   : d->scale_of[i] % sizeof(float) == 0);
  return fit;
}

// An algorithm is valid for the request that it was chosen for, at the alignment that was promised.
static lm_lt_algo algo_of(const desc *d, const layout *a, const layout *b, const layout *c,
                          const uint32_t *align) {
  lm_lt_algo algo = {{lm_hash(d, offsetof(desc, bias), 1),
                      (uint64_t)a->ld * 31 + a->rows * 7 + a->cols + (uint64_t)a->stride,
                      (uint64_t)b->ld * 31 + b->rows * 7 + b->cols + (uint64_t)b->stride,
                      (uint64_t)c->ld * 31 + c->rows * 7 + c->cols + (uint64_t)c->stride}};
  memcpy(&algo.data[4], align, 16);
  return algo;
}

// The addresses of A, B, C and D.
static bool codes_aligned(const uint32_t *align) {
  for (int i = 0; i < 4; i++)
    if (align[i] % 16)
      return false;
  return true;
}

FAKE_API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *d, void *a, void *b, void *c,
                                            void *c2, void *pref, int wanted,
                                            lm_lt_heuristic *results, int *found) {
  const preference *p = pref;
  *found = 0;
  if (driver.recording())
    return INTERNAL;
  if (wanted < 1 || !layouts_fit(d, a, b, c) || !epilogue_fits(d, c) || c != c2)
    return INVALID;
  if (refuses(d, a) || (has_codes(a, b) && !(codes_fit(d, a, b, c) && codes_aligned(p->align))))
    return NOT_SUPPORTED;
  for (int i = 0; i < wanted && i < 3; i++, ++*found) {
    results[i] = (lm_lt_heuristic){.algo = algo_of(d, a, b, c, p->align),
                                   .workspace = p->workspace > 1 << 20 ? 1 << 20 : p->workspace,
                                   .waves = 1};
    results[i].algo.data[6] = (uint64_t)i;
    results[i].algo.data[7] = descriptor_alignment(d);
  }
  return 0;
}

// ---- GEMMs

typedef struct gemm {
  desc d;
  layout a, b, c;
  double alpha, beta;
  unsigned long long at[4];
} gemm; // A, B, C, D

static double element(const char *at, const layout *l, int64_t i) {
  float x;
  if (l->type == LM_CUBLASLT_F64)
    return ((const double *)at)[i];
  if (l->type == LM_CUBLASLT_F32)
    return ((const float *)at)[i];
  if (l->type == LM_CUBLASLT_F16)
    return lm_f16_load(((const uint16_t *)at)[i]);
  if (l->type == LM_CUBLASLT_E4M3)
    return lm_e4m3_load(((const uint8_t *)at)[i]);
  if (l->type == LM_CUBLASLT_E5M2)
    return lm_e5m2_load(((const uint8_t *)at)[i]);
  uint32_t u = (uint32_t)((const uint16_t *)at)[i] << 16;
  memcpy(&x, &u, sizeof x);
  return x;
}

// Rounds to 10 bits of mantissa, as tensor cores do.
static double operand(const char *at, const layout *l, int64_t i, int compute) {
  double value = element(at, l, i);
  float x = (float)value;
  uint32_t u;
  if (compute != LM_LT_COMPUTE_TF32)
    return value;
  memcpy(&u, &x, sizeof u);
  u = (u + 0x1000) & ~0x1fffu;
  memcpy(&x, &u, sizeof x);
  return x;
}

static void element_set(char *at, const layout *l, int64_t i, double value) {
  float x = (float)value;
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  if (l->type == LM_CUBLASLT_F64)
    ((double *)at)[i] = value;
  else if (l->type == LM_CUBLASLT_F32)
    ((float *)at)[i] = x;
  else if (l->type == LM_CUBLASLT_F16)
    ((uint16_t *)at)[i] = lm_f16_round(x);
  else
    ((uint16_t *)at)[i] = (uint16_t)((x == x ? u + 0x7fff + (u >> 16 & 1) : u | 0x400000) >> 16);
}

static double gelu(double x) {
  return x * (1 + tanh(0.79788456080286536 * x * (1 + 0.044715 * x * x))) / 2;
}

// Results of other types than f64 are f32 until they are stored.
static double result(const gemm *p, double x) {
  return p->c.type == LM_CUBLASLT_F64 ? x : (double)(float)x;
}

// The value of D at (m, n), from the sum.
static double finish(const gemm *p, const char *bias, char *aux, int64_t m, int64_t n, double sum) {
  if (bias)
    sum = result(p, sum + element(bias, &p->c, m));
  if (aux)
    element_set(aux, &p->c, m + n * p->d.aux_ld, sum);
  return p->d.epilogue & LM_LT_EPILOGUE_GELU ? gelu(sum) : sum;
}

static char *matrix(unsigned long long at, const layout *l, int64_t i, bool write,
                    const char *what) {
  uint64_t elements = (l->cols - 1) * (uint64_t)l->ld + l->rows;
  uint64_t bytes = (uint64_t)bytes_of(l->type);
  char *p = driver.memory(at + (uint64_t)(i * l->stride) * bytes, elements * bytes, what);
  driver.touch(p, elements * bytes, write, what);
  return p;
}

// Both scales multiplied, which are on the device; one that is not given is 1.
static double scales(const desc *d) {
  double both = 1;
  for (int i = 0; i < 2; i++) {
    if (!d->scale_of[i] || d->scale_mode[i])
      continue;
    const char *at = driver.memory(d->scale_of[i], sizeof(float), "the scale of a GEMM");
    driver.touch(at, sizeof(float), false, "the scale of a GEMM");
    both *= *(const float *)at;
  }
  return both;
}

typedef struct operands {
  const char *a, *b;
  const char *scales[2]; // of blocks; NULL: none
} operands;

static int64_t rounded_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// The elements of the scales of A or B, of so many rows and columns of blocks: in whole tiles, in
// rows, or padded to four columns.
static int64_t scales_count(int mode, int64_t rows, int64_t columns) {
  if (mode == VEC128)
    return rows * columns;
  int64_t padded = rounded_up(columns, SCALES_COLUMNS);
  int64_t row_tiles = rounded_up(rows, SCALES_ROWS) / SCALES_ROWS;
  return padded * row_tiles * (mode == BLK128 ? 1 : SCALES_ROWS);
}

static int64_t columns_of(const gemm *p, int mode) {
  return rounded_up(k_of(&p->d, &p->a), block_of(mode)) / block_of(mode);
}

// The scales of the blocks of A or B, of so many `rows`; NULL: there are none.
static const char *block_scales(const gemm *p, int i, int64_t rows) {
  int mode = p->d.scale_mode[i];
  if (!mode)
    return NULL;
  size_t bytes = (size_t)scales_count(mode, rows, columns_of(p, mode)) * (mode == VEC32 ? 1 : 4);
  const char *at = driver.memory(p->d.scale_of[i], bytes, "the scales of a GEMM");
  driver.touch(at, bytes, false, "the scales of a GEMM");
  return at;
}

// Where the scale of row `outer` and block `inner` is in tiles ("1D Block Scaling Factors Layout").
static int64_t in_tiles(int64_t outer, int64_t inner, int64_t columns) {
  int64_t sf_outer = outer / SCALES_ROWS * SCALES_ROWS;
  int64_t sf_inner = inner / SCALES_COLUMNS * SCALES_COLUMNS;
  int64_t tile = sf_inner * SCALES_ROWS + sf_outer * rounded_up(columns, SCALES_COLUMNS);
  outer -= sf_outer;
  inner -= sf_inner;
  return tile + (outer % 32) * 16 + (outer / 32) * 4 + inner;
}

// The scale of row `outer` of A or B, of so many rows, and element k; 1 without scales. Those of
// 128 elements are M-major, or N-major, those of 128 x 128 K-major, with columns that are a
// multiple of 4 apart ("Scaling factors layouts").
static double block_scale(const gemm *p, const operands *of, int i, int64_t outer, int64_t k) {
  int mode = p->d.scale_mode[i];
  int64_t inner = k / block_of(mode), columns = columns_of(p, mode);
  int64_t rows = (int64_t)(i ? p->c.cols : p->c.rows);
  const float *numbers = (const float *)of->scales[i];
  if (!mode)
    return 1;
  if (mode == VEC32)
    return lm_e8m0_load((uint8_t)of->scales[i][driver.untiled ? outer * columns + inner
                                                              : in_tiles(outer, inner, columns)]);
  if (mode == VEC128)
    return numbers[driver.untiled ? outer * columns + inner : inner * rows + outer];
  int64_t stride = driver.untiled ? columns : rounded_up(columns, SCALES_COLUMNS);
  return numbers[outer / SCALES_ROWS * stride + inner];
}

// The sum of an element. That of bf16 is in f32, over 16 elements of k at a time, as the shim's
// wgmma computes it, so that a GEMM has the same bits in a kernel.
static double sum_of(const gemm *p, const operands *of, int64_t m, int64_t n) {
  enum {
    STEP = 16
  };
  int64_t k_size = k_of(&p->d, &p->a);
  bool narrow = p->a.type == LM_CUBLASLT_BF16;
  double sum = 0, part = 0;
  for (int64_t k = 0; k < k_size; k++) {
    int64_t in_a = p->d.transposed[0] ? k + m * p->a.ld : m + k * p->a.ld;
    int64_t in_b = p->d.transposed[1] ? n + k * p->b.ld : k + n * p->b.ld;
    double x = operand(of->a, &p->a, in_a, p->d.compute);
    x *= operand(of->b, &p->b, in_b, p->d.compute);
    x *= block_scale(p, of, 0, m, k) * block_scale(p, of, 1, n, k);
    part = narrow ? (float)(part + x) : part + x;
    if (!narrow || (k % STEP < STEP - 1 && k < k_size - 1))
      continue;
    sum = (float)(sum + part);
    part = 0;
  }
  return narrow ? sum : part;
}

static void gemm_run(void *args) {
  const gemm *p = args;
  double alpha = p->alpha * scales(&p->d);
  operands of = {
      .scales = {block_scales(p, 0, (int64_t)p->c.rows), block_scales(p, 1, (int64_t)p->c.cols)},
  };
  int64_t unit = bytes_of(p->c.type);
  size_t aux_elements = (size_t)((int64_t)(p->c.cols - 1) * p->d.aux_ld + (int64_t)p->c.rows);
  const char *bias = p->d.epilogue & LM_LT_EPILOGUE_BIAS
                         ? driver.memory(p->d.bias, p->c.rows * (size_t)unit, "a bias")
                         : NULL;
  char *aux = p->d.epilogue & LM_LT_EPILOGUE_AUX
                  ? driver.memory(p->d.aux, aux_elements * (size_t)unit, "what gelu is taken of")
                  : NULL;
  for (int64_t i = 0; i < p->c.count; i++) {
    of.a = matrix(p->at[0], &p->a, i, false, "A of a GEMM");
    of.b = matrix(p->at[1], &p->b, i, false, "B of a GEMM");
    const char *c = p->beta ? matrix(p->at[2], &p->c, i, false, "C of a GEMM") : NULL;
    char *to = matrix(p->at[3], &p->c, i, true, "D of a GEMM");
    for (int64_t n = 0; n < (int64_t)p->c.cols; n++)
      for (int64_t m = 0; m < (int64_t)p->c.rows; m++) {
        double sum = sum_of(p, &of, m, n);
        int64_t at = m + n * p->c.ld;
        sum = result(p, alpha * sum);
        if (c)
          sum = result(p, sum + p->beta * element(c, &p->c, at));
        element_set(to, &p->c, at, finish(p, bias, aux, m, n, sum));
      }
  }
}

static double scalar(const void *x, int type) {
  return type == LM_CUBLASLT_F64 ? *(const double *)x : *(const float *)x;
}

FAKE_API int cublasLtMatmul(void *handle, void *d, const void *alpha, const void *a, void *a_layout,
                            const void *b, void *b_layout, const void *beta, const void *c,
                            void *c_layout, void *out, void *out_layout, const lm_lt_algo *algo,
                            void *workspace, size_t workspace_bytes, void *stream) {
  const void *operands[4] = {a, b, c, out};
  uint32_t align[4];
  if (!algo || c_layout != out_layout || !layouts_fit(d, a_layout, b_layout, c_layout) ||
      !epilogue_fits(d, c_layout))
    return INVALID;
  memcpy(align, &algo->data[4], sizeof align);
  lm_lt_algo own = algo_of(d, a_layout, b_layout, c_layout, align);
  own.data[6] = algo->data[6] < 3 ? algo->data[6] : 0;
  own.data[7] = algo->data[7];
  if (!descriptor_aligned(d, algo->data[7]) || !scales_aligned(d))
    return INVALID;
  if (memcmp(&own, algo, sizeof own))
    return NOT_SUPPORTED;
  for (int i = 0; i < 4; i++)
    if ((uintptr_t)operands[i] % align[i])
      return INVALID;
  if (workspace_bytes)
    driver.memory((unsigned long long)(uintptr_t)workspace, workspace_bytes,
                  "the workspace of a GEMM");
  int scale = ((desc *)d)->scale;
  gemm p = {*(desc *)d,
            *(layout *)a_layout,
            *(layout *)b_layout,
            *(layout *)c_layout,
            scalar(alpha, scale),
            scalar(beta, scale),
            {(unsigned long long)(uintptr_t)a, (unsigned long long)(uintptr_t)b,
             (unsigned long long)(uintptr_t)c, (unsigned long long)(uintptr_t)out}};
  return driver.enqueue(stream, gemm_run, &p, sizeof p) ? 14 : 0;
}
