// gemm.c - which GEMMs generated code computes, and the function for each.
//
// The work is done by tile_rows_gemm.h of the prelude, with one function for all GEMMs of a type:
// sizes and strides are arguments (runtime/plan/plan.h).
#include "codegen/cpu/cpu.h"

#include <stdio.h>

enum {
  MIN_SIZE = 16,
  MIN_K = 32,
  MIN_TRANSPOSED_K = 512,
  MAX_AMORTIZED = 1024,
  MAX_K_STRIDE = 16384,
  WIDE = 16, // floats of a vector of AVX-512
  WIDE_BLOCK_K = 256,
  WIDE_LONG_K = 1024,
  PAIRS_LONG = 4096
};

// `stride` separates neighbouring rows (of A) or columns (of B), `k` neighbouring elements along
// k. `panel` is the number of columns in a panel, if the operand is prepacked.
typedef struct operand {
  bool bf16;
  int64_t stride, k;
  int panel;
} operand;
// C has rows of unit stride. any_rows: lm_plan_gemm_any_rows.
typedef struct gemm_shape {
  int64_t m, n, k;
  operand a, b;
  bool any_rows;
} gemm_shape;

static int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static bool has_unit(const operand *x) {
  return x->panel || x->stride == 1 || x->k == 1;
}

static bool is_known(int t) {
  return t == LM_F32 || t == LM_BF16;
}

// A size that is known only at run time is treated as the largest possible one.
static int64_t size_of(const lm_plan_extent *e) {
  return e->n_dyn ? INT64_MAX : e->fixed;
}

// Returns false if an operand has no unit stride or the types are unsupported (f16 is widened for
// the library). If C has unit stride along m, its transpose is computed by exchanging A and B,
// except for few rows or a run-time number of them (lm_plan_gemm_any_rows). Only for these may the
// number of columns or k be known only at run time, such as the length of a KV cache.
static bool shape_make(const lm_plan_gemm *g, gemm_shape *out) {
  bool bf16 = g->dtype_ab == LM_BF16;
  bool any_rows = lm_plan_gemm_any_rows(g);
  bool transposed = g->c_n != 1;
  operand x = {bf16, g->a_m, g->a_k, 0}, y = {bf16, g->b_n, g->b_k, g->b_columns};
  int64_t m = size_of(&g->m);
  int64_t n = size_of(&g->n);
  *out = (gemm_shape){transposed ? n : m, transposed ? m : n, size_of(&g->k),
                      transposed ? y : x, transposed ? x : y, any_rows};
  bool run_time = g->n.n_dyn || g->k.n_dyn;
  if ((run_time && !any_rows) || !is_known(g->dtype_ab) || !is_known(g->dtype_c) ||
      ((g->b_columns || any_rows) && transposed))
    return false;
  int64_t least_row = g->n.n_dyn ? 2 : out->n;
  bool rows = m == 1 || (transposed ? g->c_m == 1 && g->c_n >= out->n : g->c_m >= least_row);
  int64_t least = any_rows ? out->n : min64(out->m, out->n);
  return rows && has_unit(&out->a) && has_unit(&out->b) && least >= MIN_SIZE && out->k >= MIN_K;
}

// With AVX-512, if A has unit stride along k. In f32 the library keeps the sums of two to three
// blocks of k in registers, where generated code adds each block to C, which takes 2 to 5 % longer;
// with AVX512-BF16 it is up to 14 % faster unless a side of B is long.
static bool library_is_faster(const lm_target *t, const gemm_shape *p) {
  bool pairs = t->math[LM_BF16].native && t->matrix == LM_MATRIX_NONE;
  if (p->a.bf16)
    return pairs && p->n < PAIRS_LONG && p->k < PAIRS_LONG;
  return p->k > WIDE_BLOCK_K && p->k < WIDE_LONG_K;
}

// The library cannot read prepacked panels, and it sums in an order that depends on the number of
// rows. The other limits come from measurements with AVX2; they are right with AVX-512 too.
// Packing an element takes as long as 16 multiply-adds, 32 if its stride is large, and it is used
// once for each column (row) of a tile. The library packs too: it is slowest if A is transposed, as
// for the gradient of a weight (provided that k is long enough to amortise the access to C and the
// elements along k are not a page apart each), and fastest if B has rows of unit stride.
bool lm_cpu_gemm_is_profitable(const lm_target *t, const lm_plan_gemm *g) {
  gemm_shape p;
  if (!shape_make(g, &p))
    return false;
  if (p.b.panel || p.any_rows || g->groups.count || t->choices.codes_gemms)
    return true;
  double panels =
      16.0 / (double)min64(p.n, MAX_AMORTIZED) + 32.0 / (double)min64(p.m, MAX_AMORTIZED);
  if (p.a.k != 1)
    return p.k >= MIN_TRANSPOSED_K && p.a.k <= MAX_K_STRIDE && panels <= 0.25;
  if (t->vector == WIDE && library_is_faster(t, &p))
    return false;
  return panels <= (p.b.k == 1 ? 0.1 : 0.09);
}

// As in tile.h, tile_panel.h, tile_amx.h and tile_bfmmla.h of the prelude; the generated code
// asserts it.
void lm_cpu_panels(int vector, lm_matrix_unit unit, lm_target_panel *out) {
  int columns = 2 * vector;
  if (vector) {
    out[LM_F32] = (lm_target_panel){
        .columns = columns, .group = 1, .n = columns, .k = 1, .use = LM_PANEL_IN_DECODING};
    out[LM_BF16] = (lm_target_panel){
        .columns = columns, .group = 2, .n = columns, .k = 2, .use = LM_PANEL_IN_DECODING};
  }
  if (unit == LM_MATRIX_AMX)
    out[LM_BF16] = (lm_target_panel){
        .columns = 16,
        .group = 2,
        .n = 32,
        .k = 32,
        .use = LM_PANEL_ALWAYS,
    };
  if (unit == LM_MATRIX_BFMMLA)
    out[LM_BF16] = (lm_target_panel){
        .columns = 8,
        .group = 4,
        .n = 8,
        .k = 4,
        .use = LM_PANEL_IN_DECODING,
    };
}

// All GEMMs of a type share one function, whatever their sizes and strides; any_rows: one that is
// also fast for few rows, but takes twice as long to compile. The width of panels is asserted.
static void put_function(const gemm_shape *p, bool any_rows, lm_buf *out) {
  bool bf16 = p->a.bf16;
  const char *any = any_rows ? "any_" : "";
  lm_buf_puts(out, "(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n");
  if (p->b.panel)
    lm_buf_printf(out, "  _Static_assert(LM_PANEL_%s == %d, \"panels of another width\");\n",
                  bf16 ? "BF16" : "F32", p->b.panel);
  lm_buf_printf(out, "  lm_gemm_%s%s(buf, var, lo, hi);\n}\n", any, bf16 ? "bf16" : "f32");
}

bool lm_cpu_gemm_emit(const lm_plan_options *o, const lm_plan_gemm *g, bool any_rows,
                      lm_arena *arena, lm_kernel_code *out) {
  (void)o;
  gemm_shape p;
  lm_buf text = {0};
  if (!shape_make(g, &p))
    return false;
  put_function(&p, any_rows || p.any_rows, &text);
  *out = (lm_kernel_code){
      .name = lm_arena_printf(arena, "p%016llx", (unsigned long long)lm_hash(text.p, text.n, 0))};
  out->source = lm_arena_printf(arena, "void %s%s", out->name, text.p);
  lm_buf_free(&text);
  return true;
}
