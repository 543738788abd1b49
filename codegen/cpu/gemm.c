// gemm.c - which products of matrices code of our own computes, and by which function.
//
// Its work is in tile_panel.h and tile_amx.h of the prelude, once for all products of a type: sizes
// and strides are what the function is given (runtime/plan/plan.h).
#include "codegen/cpu/cpu.h"

#include <stdio.h>

enum {
  LEAST = 16,
  LEAST_DEPTH = 32,
  LEAST_TURNED_DEPTH = 512,
  LONG = 1024,
  FAR = 16384
};

typedef struct operand {
  bool half;
  int64_t line, k;
  int panel;
} operand; // strides from a row or column to the next, in k; panel:
           // columns of one, if it lies in panels
typedef struct product {
  int64_t m, n, k;
  operand a, b;
} product; // with C in rows of unit stride

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static bool has_unit(const operand *x) {
  return x->panel || x->line == 1 || x->k == 1;
}

// False: sizes are known only at run time, a matrix has no unit stride, or types are others. Where
// C has unit stride along m, its transpose is computed: A is B, B is A.
static bool product_make(const lm_plan_gemm *g, product *out) {
  bool half = g->dtype_ab == LM_BF16;
  bool turned = g->c_n != 1;
  operand x = {half, g->a_m, g->a_k, 0}, y = {half, g->b_n, g->b_k, g->b_lines};
  *out = (product){turned ? g->n.fixed : g->m.fixed, turned ? g->m.fixed : g->n.fixed, g->k.fixed,
                   turned ? y : x, turned ? x : y};
  if (g->m.n_dyn || g->n.n_dyn || g->k.n_dyn || g->dtype_ab == LM_F64 || g->dtype_c == LM_F64 ||
      (g->b_lines && turned))
    return false;
  bool rows = turned ? g->c_m == 1 && g->c_n >= out->n : g->c_m >= out->n;
  return rows && has_unit(&out->a) && has_unit(&out->b) && least(out->m, out->n) >= LEAST &&
         out->k >= LEAST_DEPTH;
}

// What lies in panels is nothing for the library. Else by measurements with AVX2. Putting an
// element in a panel takes as long as 16 multiply-adds, 32 if it comes from far away, and it is
// used once for each column (row) of a tile. The library pays too: most where A is turned, as for a
// weight's gradient (if sums are long enough to be worth a visit of C, and places of k do not lie
// in a page each), least where B is in rows.
bool lm_cpu_gemm_is_profitable(const lm_plan_gemm *g) {
  product p;
  if (!product_make(g, &p))
    return false;
  if (p.b.panel)
    return true;
  double panels = 16.0 / (double)least(p.n, LONG) + 32.0 / (double)least(p.m, LONG);
  if (p.a.k != 1)
    return p.k >= LEAST_TURNED_DEPTH && p.a.k <= FAR && panels <= 0.25;
  return panels <= (p.b.k == 1 ? 0.1 : 0.09);
}

// tile.h, tile_panel.h and tile_amx.h of the prelude; the code asserts it.
void lm_cpu_panels(int vector, bool tiles, lm_plan_panel *out) {
  if (vector)
    out[LM_F32] = (lm_plan_panel){.lines = 2 * vector, .group = 1, .n = 2 * vector, .k = 1};
  if (tiles)
    out[LM_BF16] = (lm_plan_panel){.lines = 16, .group = 2, .n = 32, .k = 32, .usual = true};
}

// Products of a type share it, whatever their sizes and strides; of panels the width is asserted.
static void put_function(const product *p, lm_buf *out) {
  bool half = p->a.half;
  lm_buf_puts(out, "(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n");
  if (p->b.panel)
    lm_buf_printf(out, "  _Static_assert(LM_PANEL_%s == %d, \"panels of another width\");\n",
                  half ? "BF16" : "F32", p->b.panel);
  lm_buf_printf(out, "  lm_product_%s(buf, var, lo, hi);\n}\n", half ? "bf16" : "f32");
}

bool lm_cpu_gemm_emit(const lm_plan_gemm *g, lm_arena *arena, lm_kernel_code *out) {
  product p;
  lm_buf text = {0};
  if (!product_make(g, &p))
    return false;
  put_function(&p, &text);
  *out = (lm_kernel_code){
      .name = lm_arena_printf(arena, "p%016llx", (unsigned long long)lm_hash(text.p, text.n, 0))};
  out->source = lm_arena_printf(arena, "void %s%s", out->name, text.p);
  lm_buf_free(&text);
  return true;
}
