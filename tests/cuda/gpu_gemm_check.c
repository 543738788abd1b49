// gpu_gemm_check.c - GEMMs with random types, sizes and strides on a GPU against sums by hand, bit
// for bit.
//
// Operands are multiples of 1/8 up to 2, so every sum is exact in f32 and with TF32 operands, in
// any order; a bf16 result must be rounded once. Each GEMM runs three times, the second and third
// time as a graph.
//
// A third of them have an epilogue: a residual, sometimes in the memory of the result, a bias,
// gelu, whose operand may be stored. If the library has no algorithm, the runtime adds the bias to
// a rounded result, and gelu is rounded: then two roundings are accepted. A GEMM with a bias or a
// stored operand of gelu is computed once more with these aligned to exactly 16 bytes, for which
// the library's algorithm for the first may be invalid.
//
//   gpu_gemm_check [SEED [COUNT]]
#include "tests/cuda/gpu_run.h"

#include "runtime/base/dtype.h"

#include <math.h>

enum {
  AXES = 7,
  AT_ALIGN = 256
};
enum {
  A,
  B,
  C,
  RESIDUAL,
  BIAS,
  BEFORE,
  TENSORS
};

typedef struct dice {
  uint64_t state;
} dice;
static int64_t below(dice *r, int64_t n) {
  r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
  return (int64_t)((r->state >> 33) % (uint64_t)n);
}

typedef struct tensor {
  int64_t offset, elements, stride[AXES];
  lm_dtype type;
} tensor;
typedef struct gemm {
  tensor t[TENSORS];
  int64_t size[AXES]; // m, n, k, two batch axes, two further reduction axes
  bool in[3][AXES];
  int row; // the axis of C's unit stride
  lm_plan_gemm gemm;
  lm_plan_step step;
  lm_plan_buf bufs[TENSORS];
} gemm;

static void tensor_layout(dice *r, tensor *t, int64_t *bytes) {
  t->offset = (*bytes + AT_ALIGN - 1) / AT_ALIGN * AT_ALIGN +
              lm_dtype_bytes(t->type) * (below(r, 4) ? 0 : 1);
  *bytes = t->offset + t->elements * lm_dtype_bytes(t->type);
}

// Row-major in a random order of the tensor's axes, one of its two matrix axes innermost; sometimes
// padded.
static void tensor_make(dice *r, gemm *p, int which, bool gaps, int64_t *bytes) {
  static const int matrix[3][2] = {{0, 2}, {2, 1}, {0, 1}};
  tensor *t = &p->t[which];
  int order[AXES], n = 0, last = matrix[which][below(r, 2)];
  for (int a = 0; a < AXES; a++)
    if (p->in[which][a] && a != last)
      order[n++] = a;
  for (int i = n - 1; i > 0; i--) {
    int j = (int)below(r, i + 1);
    int keep = order[i];
    order[i] = order[j];
    order[j] = keep;
  }
  order[n++] = last;
  if (which == C)
    p->row = last;
  t->elements = 1;
  while (n--) {
    t->stride[order[n]] = t->elements;
    t->elements *= p->size[order[n]] + (gaps && order[n] == last ? 3 * below(r, 2) : 0);
  }
  tensor_layout(r, t, bytes);
}

static void axis_add(gemm *p, int a, bool sum) {
  lm_plan_gemm *g = &p->gemm;
  if (p->size[a] == 1)
    return;
  g->batch[g->n_batch].size.fixed = p->size[a];
  g->batch[g->n_batch].a = p->t[0].stride[a];
  g->batch[g->n_batch].b = p->t[1].stride[a];
  g->batch[g->n_batch].c = p->t[2].stride[a];
  g->batch[g->n_batch++].sum = sum;
}

// Sizes that one call computes, at least two elements along each side of C; gelu of whole vectors
// in bf16.
static void epilogue_draw(dice *r, gemm *p) {
  lm_plan_gemm *g = &p->gemm;
  for (int a = 3; a < AXES; a++)
    p->size[a] = 1;
  g->gelu = p->t[C].type == LM_BF16 && below(r, 2);
  g->residual = below(r, 2);
  g->bias = below(r, 2) || (!g->gelu && !g->residual);
  for (int a = 0; a < 2; a++)
    p->size[a] = g->gelu ? 8 * (1 + p->size[a] / 8) : 1 + p->size[a];
}

static void epilogue_layout(dice *r, gemm *p, int64_t *bytes) {
  const tensor *c = &p->t[C];
  for (int i = RESIDUAL; i < TENSORS; i++) {
    p->t[i] = *c;
    if (i == RESIDUAL && below(r, 3) == 0)
      continue;
    if (i == BIAS)
      p->t[i].elements = p->size[p->row];
    tensor_layout(r, &p->t[i], bytes);
  }
}

static lm_plan_buf buf_of(const tensor *t) {
  return (lm_plan_buf){.arena = LM_ARENA_WORK,
                       .live = -1,
                       .offset = t->offset,
                       .bytes = t->elements * lm_dtype_bytes(t->type)};
}

static void step_make(gemm *p, bool keeps) {
  const lm_plan_gemm *g = &p->gemm;
  const bool is[TENSORS] = {true, true, true, g->residual, g->bias, keeps};
  static const int order[TENSORS] = {A, B, RESIDUAL, BIAS, C, BEFORE};
  p->step =
      (lm_plan_step){.kind = LM_STEP_GEMM, .gemm = &p->gemm, .bufs = p->bufs, .label = "a GEMM"};
  for (int i = 0; i < TENSORS; i++) {
    if (!is[order[i]])
      continue;
    p->bufs[p->step.n_bufs++] = buf_of(&p->t[order[i]]);
    *(order[i] == C || order[i] == BEFORE ? &p->step.n_write : &p->step.n_read) += 1;
  }
}

static void shape_make(dice *r, gemm *p, int64_t most, int64_t *bytes) {
  static const lm_dtype types[][2] = {
      {LM_BF16, LM_BF16}, {LM_BF16, LM_F32}, {LM_F32, LM_F32}, {LM_F32, LM_BF16}};
  int types_of = (int)below(r, LM_COUNT(types));
  int shared = (int)below(r, 3); // shared: 1, 2: only A or B has the first batch axis
  for (int a = 0; a < AXES; a++)
    p->size[a] = a < 3 ? 1 + below(r, below(r, 4) ? most : 2) : below(r, 3) ? 1 : 2 + below(r, 2);
  const bool in[3][AXES] = {
      {1, 0, 1, shared != 2, 1, 1, 1}, {0, 1, 1, shared != 1, 1, 1, 1}, {1, 1, 0, 1, 1, 0, 0}};
  memcpy(p->in, in, sizeof in);
  for (int i = 0; i < 3; i++)
    p->t[i].type = types[types_of][i == C];
  bool epilogue = types_of < 3 && below(r, 3) == 0;
  if (epilogue)
    epilogue_draw(r, p);
  for (int i = 0; i < 3; i++)
    tensor_make(r, p, i, !epilogue || i != C, bytes);
  lm_plan_gemm *g = &p->gemm;
  *g = (lm_plan_gemm){.m = {.fixed = p->size[0]},
                      .n = {.fixed = p->size[1]},
                      .k = {.fixed = p->size[2]},
                      .a_m = p->t[A].stride[0],
                      .a_k = p->t[A].stride[2],
                      .b_k = p->t[B].stride[2],
                      .b_n = p->t[B].stride[1],
                      .c_m = p->t[C].stride[0],
                      .c_n = p->t[C].stride[1],
                      .accumulate = !epilogue && below(r, 2),
                      .residual = g->residual,
                      .bias = g->bias,
                      .gelu = g->gelu,
                      .dtype_ab = (uint8_t)types[types_of][0],
                      .dtype_c = (uint8_t)types[types_of][1]};
  for (int a = 3; a < AXES; a++)
    axis_add(p, a, a > 4);
  if (epilogue)
    epilogue_layout(r, p, bytes);
  step_make(p, g->gelu && below(r, 2));
}

static bool is_kept(const gemm *p) {
  return p->step.n_write > 1;
}

// Returns false if every alignment that the first GEMM relies on holds for any address.
static bool less_aligned(const gemm *p, gemm *out, int64_t *bytes) {
  enum {
    ALIGNMENT = 16
  };
  if (!p->gemm.bias && !is_kept(p))
    return false;
  *out = *p;
  for (int i = BIAS; i < TENSORS; i++) {
    tensor *t = &out->t[i];
    t->offset = (*bytes + AT_ALIGN - 1) / AT_ALIGN * AT_ALIGN + ALIGNMENT;
    *bytes = t->offset + t->elements * lm_dtype_bytes(t->type);
  }
  step_make(out, is_kept(p));
  return true;
}

static float get(const char *base, const tensor *t, int64_t i) {
  const char *at = base + t->offset;
  return t->type == LM_BF16 ? lm_bf16_to_f32(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

static void set(char *base, const tensor *t, int64_t i, double x) {
  char *at = base + t->offset;
  if (t->type == LM_BF16)
    ((uint16_t *)at)[i] = lm_bf16_from_f32((float)x);
  else
    ((float *)at)[i] = (float)x;
}

static void fill(dice *r, char *base, const gemm *p) {
  for (int i = 0; i < TENSORS; i++)
    for (int64_t k = 0; k < p->t[i].elements; k++)
      set(base, &p->t[i], k, (double)(below(r, 33) - 16) / 8);
}

static int64_t offset(const tensor *t, const int64_t *at) {
  int64_t i = 0;
  for (int a = 0; a < AXES; a++)
    i += t->stride[a] * at[a];
  return i;
}

static bool next(const gemm *p, int64_t *at, const bool *axes) {
  for (int a = 0; a < AXES; a++) {
    if (!axes[a])
      continue;
    if (++at[a] < p->size[a])
      return true;
    at[a] = 0;
  }
  return false;
}

// slack: for each element of C the error that two roundings may cause, else 0.
static void expect(const gemm *p, char *base, double *slack) {
  static const bool sums[AXES] = {0, 0, 1, 0, 0, 1, 1};
  int64_t at[AXES] = {0};
  do {
    int64_t to = offset(&p->t[2], at);
    double sum = p->gemm.accumulate ? get(base, &p->t[2], to) : 0;
    do
      sum += (double)get(base, &p->t[0], offset(&p->t[0], at)) *
             get(base, &p->t[1], offset(&p->t[1], at));
    while (next(p, at, sums));
    if (p->gemm.residual)
      sum += get(base, &p->t[RESIDUAL], to);
    double first = fabs(sum);
    if (p->gemm.bias)
      sum += get(base, &p->t[BIAS], at[p->row]);
    slack[to] = p->t[C].type == LM_BF16 && (p->gemm.bias || p->gemm.gelu)
                    ? 0x1p-7 * (first + fabs(sum))
                    : 0;
    if (is_kept(p))
      set(base, &p->t[BEFORE], to, sum);
    set(base, &p->t[C], to,
        p->gemm.gelu ? sum / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (sum + 0.044715 * sum * sum * sum)))
                     : sum);
  } while (next(p, at, p->in[2]));
}

// Replaces the expected values by the device's where they are within the slack.
static void roundings_pass(const tensor *t, const double *slack, char *want, const char *got) {
  for (int64_t i = 0; i < t->elements; i++)
    if (fabs((double)get(want, t, i) - get(got, t, i)) <= slack[i])
      set(want, t, i, get(got, t, i));
}

static void gemm_check(dice *r, lm_exec *e, const lm_plan_func *f, const gemm *p, int64_t bytes) {
  char *want = lm_alloc((size_t)bytes);
  char *got = lm_alloc((size_t)bytes);
  double *slack = lm_calloc((size_t)p->t[C].elements, sizeof *slack);
  for (int time = 0; time < RUN_TIMES; time++) {
    CHECK_OK(lm_exec_read(e, LM_ARENA_WORK, 0, bytes, got));
    fill(r, got, p);
    memcpy(want, got, (size_t)bytes);
    expect(p, want, slack);
    CHECK_OK(lm_exec_write(e, LM_ARENA_WORK, 0, bytes, got));
    CHECK_OK(lm_exec_call(e, f, NULL));
    CHECK_OK(lm_exec_read(e, LM_ARENA_WORK, 0, bytes, got));
    for (int i = 0; i < p->step.n_write; i++)
      roundings_pass(&p->t[i ? BEFORE : C], slack, want, got);
    if (!memcmp(want, got, (size_t)bytes))
      continue;
    fprintf(
        stderr,
        "run %d of a GEMM of %s to %s is wrong: m %lld n %lld k %lld, %d further axes%s%s%s%s\n",
        time + 1, lm_dtype_name(p->t[0].type), lm_dtype_name(p->t[2].type), (long long)p->size[0],
        (long long)p->size[1], (long long)p->size[2], p->gemm.n_batch,
        p->gemm.accumulate ? ", adds" : "", p->gemm.residual ? ", residual" : "",
        p->gemm.bias ? ", bias" : "", p->gemm.gelu ? ", gelu" : "");
    exit(1);
  }
  lm_free(want);
  lm_free(got);
  lm_free(slack);
}

typedef struct checks {
  gemm *v;
  int n;
  lm_plan plan;
} checks;

static void check_add(checks *all, int64_t bytes) {
  gemm *p = &all->v[all->n];
  lm_plan *plan = &all->plan;
  plan->funcs[all->n++] =
      (lm_plan_func){.name = "gemm", .steps = &p->step, .n_steps = 1, .work_bytes = bytes};
  plan->n_funcs = all->n;
  if (bytes > plan->arena_bytes[LM_ARENA_WORK])
    plan->arena_bytes[LM_ARENA_WORK] = bytes;
}

static checks checks_make(dice *r, int count, lm_arena *a) {
  checks all = {.v = LM_NEW_N(a, gemm, 2 * count)};
  all.plan =
      (lm_plan){.prelude = lm_cuda_prelude_text(a), .funcs = LM_NEW_N(a, lm_plan_func, 2 * count)};
  for (int i = 0; i < count; i++) {
    int64_t bytes = 0;
    gemm *p = &all.v[all.n];
    shape_make(r, p, i % 8 ? 20 : 70, &bytes);
    check_add(&all, bytes);
    if (less_aligned(p, p + 1, &bytes))
      check_add(&all, bytes);
  }
  return all;
}

static int with_epilogue(const checks *all) {
  int n = 0;
  for (int i = 0; i < all->n; i++)
    n += all->v[i].gemm.residual || all->v[i].gemm.bias || all->v[i].gemm.gelu;
  return n;
}

int main(int n_args, char **args) {
  dice r = {n_args > 1 ? strtoull(args[1], NULL, 10) : 1};
  int count = n_args > 2 ? atoi(args[2]) : 200;
  lm_arena *a = lm_arena_create();
  checks all = checks_make(&r, count, a);
  lm_exec *e;
  CHECK_OK(RUN_CREATE(&all.plan, NULL, &e));
  for (int i = 0; i < all.n; i++)
    gemm_check(&r, e, &all.plan.funcs[i], &all.v[i], all.plan.arena_bytes[LM_ARENA_WORK]);
  printf("%d GEMMs on %s, %d of them with an epilogue, bit for bit\n", all.n, gpu()->name,
         with_epilogue(&all));
  lm_exec_destroy(e);
  lm_arena_destroy(a);
}
