// gemm_bounds_test.c - generated GEMMs read and write nothing behind their operands, and nothing
// between the rows of C: matrices of one element more and one less than the tiles of every
// processor, in memory that ends where the matrix ends (guarded.h); the results against a loop in
// double. Also for AMX, BFMMLA and pairs of bf16, emulated.
// Build: plain
#include "tests/codegen/cache.h"

#include <math.h>

#include "codegen/cpu/cpu.h"
#include "runtime/cpu/detect.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/kernels.h"
#include "tests/codegen/guarded.h"
#include "tests/codegen/rng.h"

enum {
  LAYOUTS = 8, // a, b transposed; half of the types of C
  DRAWN = 6,   // sizes of each layout and type
  GAP = 3,     // elements between rows
  MARK = 0x55
};

typedef struct matrix {
  lm_dtype dtype;
  int64_t rows, columns, row, column; // strides in elements
  int64_t bytes;
  char *p;
} matrix;

static matrix matrix_make(lm_dtype dtype, int64_t rows, int64_t columns, bool transposed) {
  int64_t row = transposed ? 1 : columns + GAP, column = transposed ? rows + GAP : 1;
  int64_t elements = (rows - 1) * row + (columns - 1) * column + 1;
  matrix x = {dtype, rows, columns, row, column, elements * lm_dtype_bytes(dtype), NULL};
  x.p = guarded_make(x.bytes);
  memset(x.p, MARK, (size_t)x.bytes);
  return x;
}

static char *at(const matrix *x, int64_t i, int64_t j) {
  return x->p + (i * x->row + j * x->column) * lm_dtype_bytes(x->dtype);
}

static double get(const matrix *x, int64_t i, int64_t j) {
  float v = 0;
  memcpy((char *)&v + (x->dtype == LM_BF16 ? 2 : 0), at(x, i, j), x->dtype == LM_BF16 ? 2 : 4);
  return v;
}

// Eighths: exact in bf16, and multiplied and added exactly in f32.
static void matrix_fill(rng *r, const matrix *x) {
  for (int64_t i = 0; i < x->rows; i++)
    for (int64_t j = 0; j < x->columns; j++) {
      float v = (float)(draw(r, 33) - 16) / 8;
      memcpy(at(x, i, j), (char *)&v + (x->dtype == LM_BF16 ? 2 : 0), x->dtype == LM_BF16 ? 2 : 4);
    }
}

static void results_check(const matrix *a, const matrix *b, const matrix *c) {
  double allowed = c->dtype == LM_BF16 ? 1.0 / 256 : 0;
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t j = 0; j < c->columns; j++) {
      double sum = 0;
      for (int64_t k = 0; k < a->columns; k++)
        sum += get(a, i, k) * get(b, k, j);
      CHECK(fabs(get(c, i, j) - sum) <= allowed * fabs(sum));
    }
  for (int64_t i = 0; i + 1 < c->rows; i++)
    for (char *p = at(c, i, c->columns - 1) + lm_dtype_bytes(c->dtype); p < at(c, i + 1, 0); p++)
      CHECK(*p == MARK);
}

static lm_plan_extent fixed(int64_t n) {
  return (lm_plan_extent){.fixed = n};
}

static lm_plan_gemm gemm_of(const matrix *a, const matrix *b, const matrix *c) {
  return (lm_plan_gemm){.m = fixed(c->rows),
                        .n = fixed(c->columns),
                        .k = fixed(a->columns),
                        .a_m = a->row,
                        .a_k = a->column,
                        .b_k = b->row,
                        .b_n = b->column,
                        .c_m = c->row,
                        .c_n = 1,
                        .dtype_ab = a->dtype,
                        .dtype_c = c->dtype};
}

// The index plus 1 of the kernel in the plan that computes GEMMs like g. The plan gets one kernel
// for each type and each value of any_rows.
static int code_of(lm_arena *arena, lm_plan *plan, const lm_plan_gemm *g, bool any_rows) {
  lm_kernel_code code = {0};
  int i = 0;
  CHECK(lm_cpu_gemm_emit(NULL, g, any_rows, arena, &code));
  while (i < plan->n_kernels && strcmp(plan->kernels[i].name, code.name))
    i++;
  if (i == plan->n_kernels)
    plan->kernels[plan->n_kernels++] = (lm_plan_kernel){.name = code.name, .source = code.source};
  return i + 1;
}

static void multiply(const lm_plan_gemm *g, const lm_kernels *kernels, const matrix *a,
                     const matrix *b, const matrix *c) {
  lm_gemm_tiling tiling = {.tile = {.code = true}};
  CHECK(lm_gemm_key_find(g, &tiling.key));
  lm_gemm_tilings tilings = {&tiling, 1, 1};
  lm_cpu_gemm_options o = {.threads = 1, .tilings = &tilings, .code = true, .kernels = kernels->fn};
  lm_cpu_gemms *gemms = lm_cpu_gemms_create(&o);
  lm_cpu_gemm_prepare(gemms, g);
  CHECK(lm_cpu_gemm_tile(gemms, g).code);
  lm_cpu_gemm(gemms, g, NULL, a->p, b->p, c->p);
  lm_cpu_gemms_destroy(gemms);
}

// `code`: of each type of the operands, and then of few rows.
static void size_run(rng *r, const lm_kernels *kernels, int code[2][2], int layout, bool bf16) {
  static const int64_t rows[] = {1, 2, 3, 9, 12, 13, 15, 16, 17, 28, 29, 31, 33, 43, 169};
  static const int64_t columns[] = {16, 17, 23, 31, 32, 33, 47, 65};
  static const int64_t depths[] = {33, 34, 47, 64, 65, 257};
  int64_t m = rows[draw(r, LM_COUNT(rows))], n = columns[draw(r, LM_COUNT(columns))];
  int64_t k = depths[draw(r, LM_COUNT(depths))];
  lm_dtype type = bf16 ? LM_BF16 : LM_F32;
  matrix a = matrix_make(type, m, k, layout & 1), b = matrix_make(type, k, n, layout & 2);
  matrix c = matrix_make(layout & 4 ? type : LM_F32, m, n, false);
  lm_plan_gemm g = gemm_of(&a, &b, &c);
  g.code = code[bf16][m <= LM_GEMM_FEW_ROWS];
  matrix_fill(r, &a);
  matrix_fill(r, &b);
  multiply(&g, kernels, &a, &b, &c);
  results_check(&a, &b, &c);
  guarded_free(a.p, a.bytes);
  guarded_free(b.p, b.bytes);
  guarded_free(c.p, c.bytes);
}

static void prelude_run(lm_arena *arena, const char *prelude, bool f32) {
  lm_plan plan = {.prelude = prelude, .kernels = LM_NEW_N(arena, lm_plan_kernel, 4)};
  int code[2][2];
  for (int bf16 = !f32; bf16 < 2; bf16++)
    for (int few = 0; few < 2; few++) {
      matrix x = {bf16 ? LM_BF16 : LM_F32, 64, 64, 64, 1, 0, NULL};
      lm_plan_gemm g = gemm_of(&x, &x, &x);
      code[bf16][few] = code_of(arena, &plan, &g, few);
    }
  lm_kernels kernels;
  CHECK_OK(lm_kernels_load(&plan, &(lm_exec_options){0}, 2, &kernels));
  rng r = {5};
  for (int bf16 = !f32; bf16 < 2; bf16++)
    for (int i = 0; i < LAYOUTS * (f32 ? DRAWN : DRAWN / 2); i++)
      size_run(&r, &kernels, code, i % LAYOUTS, bf16);
  lm_kernels_unload(&kernels);
}

int main(void) {
  cache_begin();
  lm_arena *arena = lm_arena_create();
  const char *prelude = lm_cpu_prelude_text(arena);
  prelude_run(arena, prelude, true);
  prelude_run(arena, lm_arena_printf(arena, "#define LM_AMX_EMULATED\n%s", prelude), false);
  prelude_run(arena, lm_arena_printf(arena, "#define LM_BFMMLA_EMULATED\n%s", prelude), false);
  prelude_run(arena, lm_arena_printf(arena, "#define LM_PAIRS_EMULATED\n%s", prelude), false);
  lm_arena_destroy(arena);
  return 0;
}
