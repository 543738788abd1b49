// gpu_gemm_check.c - products in random types, sizes and strides on a GPU against sums by hand, bit for bit.
//
// Operands are multiples of 1/8 up to 2, so every sum is a number of f32 and of TF32's operands, in whatever order it is taken;
// of a result in bf16 it is checked that it was rounded once. Each product runs three times, the last ones as a graph.
//
//   gpu_gemm_check [SEED [COUNT]]
#include "tests/cuda/gpu_run.h"

#include "runtime/base/dtype.h"

enum { AXES = 7, AT_ALIGN = 256 };

typedef struct dice { uint64_t state; } dice;
static int64_t below(dice *r, int64_t n) {
  r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
  return (int64_t)((r->state >> 33) % (uint64_t)n);
}

typedef struct tensor { int64_t offset, elements, stride[AXES]; lm_dtype type; } tensor;
typedef struct product {
  tensor t[3];                         // A, B, C
  int64_t size[AXES];                  // m, n, k, two batch axes, two further sum axes
  bool in[3][AXES];
  lm_plan_gemm gemm;
  lm_plan_step step;
  lm_plan_buf bufs[3];
} product;

// Row-major in a random order of the tensor's axes, one of its two matrix axes innermost; sometimes with gaps.
static void tensor_make(dice *r, product *p, int which, int64_t *bytes) {
  static const int matrix[3][2] = {{0, 2}, {2, 1}, {0, 1}};
  tensor *t = &p->t[which];
  int order[AXES], n = 0, last = matrix[which][below(r, 2)];
  for (int a = 0; a < AXES; a++)
    if (p->in[which][a] && a != last) order[n++] = a;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)below(r, i + 1), keep = order[i];
    order[i] = order[j], order[j] = keep;
  }
  order[n++] = last;
  t->elements = 1;
  while (n--) {
    t->stride[order[n]] = t->elements;
    t->elements *= p->size[order[n]] + (order[n] == last ? 3 * below(r, 2) : 0);
  }
  t->offset = (*bytes + AT_ALIGN - 1) / AT_ALIGN * AT_ALIGN + lm_dtype_bytes(t->type) * (below(r, 4) ? 0 : 1);
  *bytes = t->offset + t->elements * lm_dtype_bytes(t->type);
}

static void axis_add(product *p, int a, bool sum) {
  lm_plan_gemm *g = &p->gemm;
  if (p->size[a] == 1) return;
  g->batch[g->n_batch].size.fixed = p->size[a];
  g->batch[g->n_batch].a = p->t[0].stride[a], g->batch[g->n_batch].b = p->t[1].stride[a], g->batch[g->n_batch].c = p->t[2].stride[a];
  g->batch[g->n_batch++].sum = sum;
}

static void product_make(dice *r, product *p, int64_t most, int64_t *bytes) {
  static const lm_dtype types[][2] = {{LM_BF16, LM_BF16}, {LM_BF16, LM_F32}, {LM_F32, LM_F32}, {LM_F32, LM_BF16}};
  int types_of = (int)below(r, LM_COUNT(types)), shared = (int)below(r, 3);   // shared: 1, 2: only A or B has the first batch axis
  for (int a = 0; a < AXES; a++) p->size[a] = a < 3 ? 1 + below(r, below(r, 4) ? most : 2) : below(r, 3) ? 1 : 2 + below(r, 2);
  const bool in[3][AXES] = {{1, 0, 1, shared != 2, 1, 1, 1}, {0, 1, 1, shared != 1, 1, 1, 1}, {1, 1, 0, 1, 1, 0, 0}};
  memcpy(p->in, in, sizeof in);
  for (int i = 0; i < 3; i++) {
    p->t[i].type = types[types_of][i == 2];
    tensor_make(r, p, i, bytes);
    p->bufs[i] = (lm_plan_buf){.arena = LM_ARENA_WORK, .live = -1, .offset = p->t[i].offset, .bytes = p->t[i].elements * lm_dtype_bytes(p->t[i].type)};
  }
  p->gemm = (lm_plan_gemm){.m = {.fixed = p->size[0]}, .n = {.fixed = p->size[1]}, .k = {.fixed = p->size[2]}, .a_m = p->t[0].stride[0], .a_k = p->t[0].stride[2],
                           .b_k = p->t[1].stride[2], .b_n = p->t[1].stride[1], .c_m = p->t[2].stride[0], .c_n = p->t[2].stride[1], .accumulate = below(r, 2),
                           .dtype_ab = (uint8_t)types[types_of][0], .dtype_c = (uint8_t)types[types_of][1]};
  for (int a = 3; a < AXES; a++) axis_add(p, a, a > 4);
  p->step = (lm_plan_step){.kind = LM_STEP_GEMM, .gemm = &p->gemm, .bufs = p->bufs, .n_bufs = 3, .n_read = 2, .n_write = 1, .label = "a product"};
}

static float get(const char *base, const tensor *t, int64_t i) {
  const char *at = base + t->offset;
  return t->type == LM_BF16 ? lm_bf16_to_f32(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

static void set(char *base, const tensor *t, int64_t i, double x) {
  char *at = base + t->offset;
  if (t->type == LM_BF16) ((uint16_t *)at)[i] = lm_bf16_from_f32((float)x);
  else ((float *)at)[i] = (float)x;
}

static void fill(dice *r, char *base, const product *p) {
  for (int i = 0; i < 3; i++)
    for (int64_t k = 0; k < p->t[i].elements; k++) set(base, &p->t[i], k, (double)(below(r, 33) - 16) / 8);
}

static int64_t place(const tensor *t, const int64_t *at) {
  int64_t i = 0;
  for (int a = 0; a < AXES; a++) i += t->stride[a] * at[a];
  return i;
}

static bool next(const product *p, int64_t *at, const bool *axes) {
  for (int a = 0; a < AXES; a++) {
    if (!axes[a]) continue;
    if (++at[a] < p->size[a]) return true;
    at[a] = 0;
  }
  return false;
}

static void expect(const product *p, char *base) {
  static const bool sums[AXES] = {0, 0, 1, 0, 0, 1, 1};
  int64_t at[AXES] = {0};
  do {
    int64_t to = place(&p->t[2], at);
    double sum = p->gemm.accumulate ? get(base, &p->t[2], to) : 0;
    do sum += (double)get(base, &p->t[0], place(&p->t[0], at)) * get(base, &p->t[1], place(&p->t[1], at));
    while (next(p, at, sums));
    set(base, &p->t[2], to, sum);
  } while (next(p, at, p->in[2]));
}

static void product_check(dice *r, lm_exec *e, const lm_plan_func *f, const product *p, int64_t bytes) {
  char *want = lm_alloc((size_t)bytes);
  for (int time = 0; time < RUN_TIMES; time++) {
    char *base = lm_exec_arena(e, LM_ARENA_WORK);
    fill(r, base, p);
    memcpy(want, base, (size_t)bytes);
    expect(p, want);
    CHECK_OK(lm_exec_call(e, f, NULL));
    if (!memcmp(want, lm_exec_arena_peek(e, LM_ARENA_WORK), (size_t)bytes)) continue;
    fprintf(stderr, "run %d of a product of %s to %s is wrong: m %lld n %lld k %lld, %d further axes%s\n", time + 1, lm_dtype_name(p->t[0].type), lm_dtype_name(p->t[2].type),
            (long long)p->size[0], (long long)p->size[1], (long long)p->size[2], p->gemm.n_batch, p->gemm.accumulate ? ", adds" : "");
    exit(1);
  }
  lm_free(want);
}

int main(int n_args, char **args) {
  dice r = {n_args > 1 ? strtoull(args[1], NULL, 10) : 1};
  int count = n_args > 2 ? atoi(args[2]) : 200;
  lm_arena *a = lm_arena_create();
  product *products = LM_NEW_N(a, product, count);
  lm_plan plan = {.prelude = lm_cuda_prelude_text(a), .funcs = LM_NEW_N(a, lm_plan_func, count), .n_funcs = count};
  for (int i = 0; i < count; i++) {
    int64_t bytes = 0;
    product_make(&r, &products[i], i % 8 ? 20 : 70, &bytes);
    plan.funcs[i] = (lm_plan_func){.name = "product", .steps = &products[i].step, .n_steps = 1, .work_bytes = bytes};
    if (bytes > plan.arena_bytes[LM_ARENA_WORK]) plan.arena_bytes[LM_ARENA_WORK] = bytes;
  }
  lm_exec *e;
  CHECK_OK(RUN_CREATE(&plan, NULL, &e));
  for (int i = 0; i < count; i++) product_check(&r, e, &plan.funcs[i], &products[i], plan.arena_bytes[LM_ARENA_WORK]);
  lm_exec_destroy(e);
  lm_arena_destroy(a);
  printf("%d products on %s, bit for bit\n", count, gpu()->name);
}
