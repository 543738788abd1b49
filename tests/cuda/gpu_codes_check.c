// gpu_codes_check.c - GEMMs of e4m3 and e5m2 with scales on a GPU: against sums by hand, bit for
// bit, and requests that cuBLASLt must refuse, each of which differs from an accepted one by a
// mistake.
//
// Operands are multiples of 1/4 up to 2 and scales are powers of 2, so that every sum is exact.
//
//   gpu_codes_check              all of it
//   gpu_codes_check host-scale   a scale in the memory of the host: the fake ends the process
//   gpu_codes_check odd-scale    a scale at an odd address: the fake refuses
//
// On sm_100a the same with a scale for each 32 elements along k, in tiles of 128 rows x 4 blocks;
// on sm_90a with one for each 128 elements along k, or for 128 of 128 rows.
#include "tests/cuda/gpu_run.h"

#include "runtime/base/dtype.h"
#include "runtime/cuda/gemm.h"
#include "runtime/cuda/library.h"

// ---- through the runtime

enum {
  M = 144, // and N: more than the rows of a tile of scales
  N = 32,
  K = 160, // more than a tile's columns, and no multiple of them
  A_AT = 0,
  B_AT = A_AT + M * K,
  SCALES_AT = B_AT + N * K,
  SCALES_B_AT = SCALES_AT + 4 * 512, // two tiles of A by rows, by columns two
  C_AT = SCALES_B_AT + 2 * 512,
  BYTES = C_AT + M * N * 4
};
static const float SCALE_A = 0.125F, SCALE_B = 16;

typedef struct form {
  lm_dtype a, b, c;
  bool add;
  lm_scales scales[2];
} form;

// The scale of a row's block is 2^exponent.
static int exponent(lm_scales kind, int row, int block) {
  row /= kind == LM_SCALES_BLK128 ? 128 : 1;
  return (row + row / 32 + 2 * block) % 3 - 1;
}

// Where cuBLAS's documentation has it ("1D Block Scaling Factors Layout").
static int scale_at(int row, int block) {
  int columns = (K / 32 + 3) / 4 * 4; // of whole tiles
  int tile = (block / 4 * 4 + row / 128 * columns) * 128;
  row %= 128;
  return tile + row % 32 * 16 + row / 32 * 4 + block % 4;
}

// Of a row of A, or of B.
static double scale_of(lm_scales kind, int row, int k, float of_all) {
  int elements = lm_scales_of(kind).elements;
  return elements ? ldexp(1, exponent(kind, row, k / elements)) : of_all;
}

// Where that of a row's block is: M-major, or N-major, and K-major with columns of four each
// ("Scaling factors layouts").
static void scale_put(lm_scales kind, char *to, int row, int block, int rows) {
  float x = ldexpf(1, exponent(kind, row, block));
  if (kind == LM_SCALES_VEC32)
    to[scale_at(row, block)] = (char)(127 + exponent(kind, row, block));
  else
    ((float *)to)[kind == LM_SCALES_VEC128 ? block * rows + row : row / 128 * 4 + block] = x;
}

static void scales_fill(const form *f, char *out) {
  static const int at[] = {SCALES_AT, SCALES_B_AT}, rows[] = {M, N};
  const float of_all[] = {SCALE_A, SCALE_B};
  for (int i = 0; i < 2; i++) {
    lm_scales kind = f->scales[i];
    int elements = lm_scales_of(kind).elements;
    if (!elements)
      memcpy(out + at[i], &of_all[i], sizeof *of_all);
    for (int block = 0; elements && block * elements < K; block++)
      for (int row = 0; row < rows[i]; row++)
        scale_put(kind, out + at[i], row, block, rows[i]);
  }
}

static double quarter(int i, int k) {
  return (double)((i * 7 + k * 13) % 17 - 8) / 4;
}

static void operands_fill(const form *f, char *out) {
  for (int k = 0; k < K; k++) {
    for (int m = 0; m < M; m++)
      out[A_AT + m * K + k] = (char)lm_dtype_bits(f->a, (float)quarter(m, k));
    for (int n = 0; n < N; n++)
      out[B_AT + n * K + k] = (char)lm_dtype_bits(f->b, (float)quarter(n + 5, k + 3));
  }
  scales_fill(f, out);
}

static void element_put(const form *f, char *base, int i, float x) {
  if (f->c == LM_BF16)
    ((uint16_t *)(base + C_AT))[i] = lm_bf16_from_f32(x);
  else
    ((float *)(base + C_AT))[i] = x;
}

static void expected_fill(const form *f, char *out) {
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      double sum = 0;
      for (int k = 0; k < K; k++)
        sum += scale_of(f->scales[0], m, k, SCALE_A) * quarter(m, k) *
               scale_of(f->scales[1], n, k, SCALE_B) * quarter(n + 5, k + 3);
      element_put(f, out, m * N + n, (float)(sum + (f->add ? m - n : 0)));
    }
}

static lm_plan_buf buf_of(int64_t offset, int64_t bytes) {
  return (lm_plan_buf){.arena = LM_ARENA_WORK, .live = -1, .offset = offset, .bytes = bytes};
}

static void form_check(const form *f, lm_arena *arena) {
  lm_plan_gemm g = {.m = {.fixed = M},
                    .n = {.fixed = N},
                    .k = {.fixed = K},
                    .a_m = K,
                    .a_k = 1,
                    .b_k = 1,
                    .b_n = K,
                    .c_m = N,
                    .c_n = 1,
                    .accumulate = f->add,
                    .scaled = true,
                    .scales = {f->scales[0], f->scales[1]},
                    .dtype_ab = (uint8_t)f->a,
                    .dtype_b = (uint8_t)f->b,
                    .dtype_c = (uint8_t)f->c};
  lm_plan_buf bufs[] = {buf_of(A_AT, M * K), buf_of(B_AT, N * K), buf_of(SCALES_AT, 4),
                        buf_of(SCALES_B_AT, 4),
                        buf_of(C_AT, (int64_t)M * N * lm_dtype_bytes(f->c))};
  lm_plan_step step = {.kind = LM_STEP_GEMM,
                       .gemm = &g,
                       .bufs = bufs,
                       .n_bufs = LM_COUNT(bufs),
                       .n_read = LM_COUNT(bufs) - 1,
                       .n_write = 1,
                       .label = "a GEMM"};
  lm_plan_func func = {.name = "gemm", .steps = &step, .n_steps = 1, .work_bytes = BYTES};
  lm_plan plan = {.prelude = lm_cuda_prelude_text(arena), .funcs = &func, .n_funcs = 1};
  plan.arena_bytes[LM_ARENA_WORK] = BYTES;
  static char before[BYTES], want[BYTES], got[BYTES];
  lm_exec *e;
  CHECK_OK(RUN_CREATE(&plan, NULL, &e));
  operands_fill(f, before);
  for (int i = 0; i < M * N; i++)
    element_put(f, before, i, (float)(i / N - i % N));
  memcpy(want, before, sizeof want);
  expected_fill(f, want);
  for (int time = 0; time < RUN_TIMES; time++) {
    CHECK_OK(lm_exec_write(e, LM_ARENA_WORK, 0, BYTES, before));
    CHECK_OK(lm_exec_call(e, &func, NULL));
    CHECK_OK(lm_exec_read(e, LM_ARENA_WORK, 0, BYTES, got));
    CHECK(!memcmp(want, got, sizeof got));
  }
  lm_exec_destroy(e);
}

static bool has_scales(lm_scales kind) {
  const lm_target *t = &gpu()->target;
  return kind == LM_SCALES_NUMBER || (kind == LM_SCALES_VEC32 ? t->codes_mx : t->codes_blocks);
}

static void forms_check(void) {
  static const form forms[] = {
      {LM_E4M3, LM_E4M3, LM_BF16, false, {0}},
      {LM_E5M2, LM_E4M3, LM_BF16, false, {0}},
      {LM_E4M3, LM_E5M2, LM_F32, true, {0}},
      {LM_E4M3, LM_E4M3, LM_F32, false, {0}},
      {LM_E4M3, LM_E4M3, LM_BF16, false, {LM_SCALES_VEC32, LM_SCALES_VEC32}},
      {LM_E4M3, LM_E5M2, LM_F32, true, {LM_SCALES_VEC32, LM_SCALES_VEC32}},
      {LM_E4M3, LM_E4M3, LM_BF16, false, {LM_SCALES_VEC128, LM_SCALES_BLK128}},
      {LM_E5M2, LM_E4M3, LM_BF16, false, {LM_SCALES_BLK128, LM_SCALES_VEC128}},
      {LM_E4M3, LM_E5M2, LM_F32, true, {LM_SCALES_VEC128, LM_SCALES_VEC128}},
  };
  lm_arena *arena = lm_arena_create();
  for (size_t i = 0; i < LM_COUNT(forms); i++)
    if (has_scales(forms[i].scales[0]))
      form_check(&forms[i], arena);
  lm_arena_destroy(arena);
}

// ---- requests to the library itself

typedef struct request {
  const char *mistake;
  int32_t transposed[2];
  int types[3];
  uint64_t m, n, k;
  int64_t pad; // of the leading dimension of A
  int32_t scale_mode[2];
  uint32_t align;
} request;

typedef struct library {
  lm_cublaslt lt;
  void *handle;
} library;

static void library_open(library *l) {
  static const char *const names[] = {
#define SYM(result, name, parameters) #name,
#include "runtime/cuda/cublaslt_syms.def"
#undef SYM
  };
  gpu();
  CHECK_OK(lm_toolkit_open("cuBLASLt", "libcublasLt.so", gpu()->driver, &l->lt.library));
  CHECK_OK(lm_library_resolve(l->lt.library, "cuBLASLt", names, LM_COUNT(names), l->lt.functions));
  CHECK(!l->lt.cublasLtCreate(&l->handle));
}

typedef struct asked {
  void *desc, *layout[3], *preference;
  lm_lt_heuristic best;
} asked;

static void layout_make(const library *l, const request *r, int i, void **out) {
  const uint64_t sizes[3][2] = {{r->m, r->k}, {r->k, r->n}, {r->m, r->n}};
  bool turned = i < 2 && r->transposed[i];
  uint64_t rows = sizes[i][turned], cols = sizes[i][!turned];
  int64_t ld = (int64_t)rows + (i ? 0 : r->pad);
  CHECK(!l->lt.cublasLtMatrixLayoutCreate(out, r->types[i], rows, cols, ld));
}

// True if the library has an algorithm.
static bool ask(const library *l, const request *r, asked *out) {
  const uint64_t workspace = LM_CUDA_WORKSPACE;
  int n = 0;
  CHECK(!l->lt.cublasLtMatmulDescCreate(&out->desc, LM_LT_COMPUTE_32F, LM_CUBLASLT_F32));
  for (int i = 0; i < 2; i++)
    CHECK(!l->lt.cublasLtMatmulDescSetAttribute(out->desc, LM_LT_DESC_TRANSA + i, &r->transposed[i],
                                                sizeof *r->transposed));
  for (int i = 0; i < 2; i++)
    if (r->scale_mode[i])
      CHECK(!l->lt.cublasLtMatmulDescSetAttribute(out->desc, LM_LT_DESC_SCALE_MODE_A + i,
                                                  &r->scale_mode[i], sizeof *r->scale_mode));
  for (int i = 0; i < 3; i++)
    layout_make(l, r, i, &out->layout[i]);
  CHECK(!l->lt.cublasLtMatmulPreferenceCreate(&out->preference));
  CHECK(!l->lt.cublasLtMatmulPreferenceSetAttribute(out->preference, LM_LT_PREF_WORKSPACE,
                                                    &workspace, sizeof workspace));
  for (int i = 0; i < 4; i++)
    CHECK(!l->lt.cublasLtMatmulPreferenceSetAttribute(out->preference, LM_LT_PREF_ALIGN_A + i,
                                                      &r->align, sizeof r->align));
  int status = l->lt.cublasLtMatmulAlgoGetHeuristic(l->handle, out->desc, out->layout[0],
                                                    out->layout[1], out->layout[2], out->layout[2],
                                                    out->preference, 1, &out->best, &n);
  return !status && n && !out->best.state;
}

static void asked_free(const library *l, asked *x) {
  l->lt.cublasLtMatmulDescDestroy(x->desc);
  l->lt.cublasLtMatmulPreferenceDestroy(x->preference);
  for (int i = 0; i < 3; i++)
    l->lt.cublasLtMatrixLayoutDestroy(x->layout[i]);
}

static const request right = {.transposed = {1, 0},
                              .types = {LM_CUBLASLT_E4M3, LM_CUBLASLT_E5M2, LM_CUBLASLT_BF16},
                              .m = 64,
                              .n = 32,
                              .k = 96,
                              .align = 16};

static void mistakes_check(const library *l) {
  enum {
    MISTAKES = 9
  };
  request r[MISTAKES];
  asked x;
  for (int i = 0; i < MISTAKES; i++)
    r[i] = right;
  r[0].mistake = "A is not transposed";
  r[0].transposed[0] = 0;
  r[1].mistake = "B is transposed";
  r[1].transposed[1] = 1;
  r[2].mistake = "e5m2 with e5m2";
  r[2].types[0] = LM_CUBLASLT_E5M2;
  r[3].mistake = "m is 72";
  r[3].m = 72;
  r[4].mistake = "n is 40";
  r[4].n = 40;
  r[5].mistake = "k is 104";
  r[5].k = 104;
  r[6].mistake = "rows that are not 16 bytes apart";
  r[6].pad = 8;
  r[7].mistake = "addresses that are aligned to 8 bytes";
  r[7].align = 8;
  r[8].mistake = "codes with bf16";
  r[8].types[1] = LM_CUBLASLT_BF16;
  CHECK(ask(l, &right, &x));
  asked_free(l, &x);
  for (int i = gpu()->target.codes_by_k ? 0 : 2; i < MISTAKES; i++) {
    bool accepted = ask(l, &r[i], &x);
    if (accepted)
      fprintf(stderr, "the library accepts a GEMM of codes although %s\n", r[i].mistake);
    CHECK(!accepted);
    asked_free(l, &x);
  }
}

// Of scales of blocks: those of 32 elements on both operands, k in whole blocks, on sm_100a; those
// of 128, but not of 128 rows twice, on sm_90a.
static void block_mistakes_check(const library *l) {
  const struct {
    lm_scales a, b;
    uint64_t k;
    bool right;
  } of[] = {
      {LM_SCALES_VEC32, LM_SCALES_VEC32, 96, true},
      {LM_SCALES_VEC32, LM_SCALES_NUMBER, 96, false},
      {LM_SCALES_VEC32, LM_SCALES_VEC32, 112, false},
      {LM_SCALES_VEC128, LM_SCALES_VEC128, 112, true},
      {LM_SCALES_VEC128, LM_SCALES_BLK128, 112, true},
      {LM_SCALES_BLK128, LM_SCALES_VEC128, 112, true},
      {LM_SCALES_BLK128, LM_SCALES_BLK128, 112, false},
      {LM_SCALES_VEC128, LM_SCALES_NUMBER, 112, false},
  };
  for (size_t i = 0; i < LM_COUNT(of); i++) {
    request r = right;
    asked x;
    r.k = of[i].k;
    r.scale_mode[0] = lm_scales_of(of[i].a).cublaslt;
    r.scale_mode[1] = lm_scales_of(of[i].b).cublaslt;
    CHECK(ask(l, &r, &x) == (of[i].right && has_scales(of[i].a)));
    asked_free(l, &x);
  }
}

// Status of a call whose scale of A is in the memory of the host, or at an odd address.
static int scale_try(const library *l, const lm_cuda_driver *d, bool on_host) {
  const float one = 1, zero = 0;
  lm_cuda_address at;
  void *stream;
  asked x;
  CHECK(!d->cuStreamCreate(&stream, LM_CU_STREAM_NON_BLOCKING));
  CHECK(!d->cuMemAlloc_v2(&at, 1 << 20));
  CHECK(!d->cuMemsetD8Async(at, 0, 1 << 20, stream));
  CHECK(ask(l, &right, &x));
  uint64_t scale = on_host ? (uint64_t)(uintptr_t)&one : at + 1;
  CHECK(!l->lt.cublasLtMatmulDescSetAttribute(x.desc, LM_LT_DESC_SCALE_A, &scale, sizeof scale));
  void *a = (void *)(uintptr_t)at;
  int status = l->lt.cublasLtMatmul(l->handle, x.desc, &one, a, x.layout[0], a, x.layout[1], &zero,
                                    a, x.layout[2], a, x.layout[2], &x.best.algo, NULL, 0, stream);
  CHECK(!d->cuStreamSynchronize(stream));
  CHECK(!d->cuStreamDestroy_v2(stream));
  CHECK(!d->cuMemFree_v2(at));
  asked_free(l, &x);
  return status;
}

int main(int n_args, char **args) {
  static library l;
  static lm_cuda_driver driver;
  lm_cuda_device device;
  void *context;
  library_open(&l);
  CHECK_OK(lm_cuda_device_find(0, &driver, &device));
  CHECK(!driver.cuDevicePrimaryCtxRetain(&context, device.number));
  CHECK(!driver.cuCtxSetCurrent(context));
  if (!device.target.math[LM_E4M3].native) {
    printf("%s multiplies no codes\n", device.name);
    return 0;
  }
  if (n_args > 1)
    return scale_try(&l, &driver, !strcmp(args[1], "host-scale"));
  forms_check();
  CHECK(!driver.cuCtxSetCurrent(context));
  mistakes_check(&l);
  block_mistakes_check(&l);
  CHECK(!l.lt.cublasLtDestroy(l.handle));
  printf("GEMMs of codes on %s, bit for bit\n", device.name);
}
