// moments.c - see moments.h.
#include "dsl/lower/moments.h"
#include <math.h>
#include <string.h>

enum {
  SMALL = 4096 // elements of a parameter below which bitsandbytes, too, keeps its states in f32
};

lm_moment lm_moment_of(const lm_recipe *r, const lm_lowered_state *s, int64_t elements,
                       bool never_negative) {
  lm_moment plain = {.dtype = LM_F32};
  const lm_recipe_precision *p = &r->precision;
  bool is_coded = p->moments_block != 0;
  if (s->is_param || s->has_own_axes || (is_coded && elements < SMALL))
    return plain;
  switch (p->moments) {
  case LM_RECIPE_MOMENTS_F32: return plain;
  case LM_RECIPE_MOMENTS_BF16: return (lm_moment){.dtype = LM_BF16};
  case LM_RECIPE_MOMENTS_DYN8:
    return (lm_moment){
        .dtype = never_negative ? LM_UDYN8 : LM_DYN8,
        .block = p->moments_block,
    };
  case LM_RECIPE_MOMENTS_E4M3:
    return (lm_moment){
        .dtype = LM_E4M3,
        .block = p->moments_block,
        .is_root = never_negative,
    };
  }
  return plain;
}

// ---- blocks

static int64_t aligned(int64_t n, int64_t block) {
  return (n + block - 1) / block * block;
}

lm_type lm_moment_blocks(lm_elab *e, lm_type own, int64_t block) {
  int64_t n = aligned(lm_type_elements(e->m, own), block) / block;
  lm_type t = own;
  lm_axis axes[2];
  axes[0] = lm_axis_shared(e->m, LM_SYM(e->c, "block"), n, t);
  t.axis[t.rank++] = axes[0];
  axes[1] = lm_axis_shared(e->m, LM_SYM(e->c, "element"), block, t);
  return lm_type_make(LM_F32, axes, 2);
}

el_axes lm_moment_axes(lm_elab *e, lm_type blocks, bool of_elements) {
  el_axes axes = {0};
  for (int k = 0; k < blocks.rank; k++) {
    const lm_axis_info *a = &e->m->axes[blocks.axis[k]];
    el_axis *x = el_axis_new(e, a->name, lm_size_number(e->a, a->size), 0);
    x->ir = blocks.axis[k];
    x->element = of_elements;
    el_axes_push(e, &axes, x);
  }
  return axes;
}

static lm_value *move(lm_elab *e, lm_opcode code, lm_value *v, const lm_axis *from, int n_from,
                      const lm_axis *to, int n_to) {
  lm_attr a = {
      .n_axes = (uint8_t)n_from,
      .n_to = (uint8_t)n_to,
  };
  memcpy(a.axes, from, sizeof *from * (size_t)n_from);
  memcpy(a.to, to, sizeof *to * (size_t)n_to);
  if (code != LM_OP_VIEW) { // the first elements of the longer axis
    a.n_imm = 2;
    a.imm[1] = 1;
  }
  return lm_emit(&e->b, code, &v, 1, &a, NULL);
}

static lm_axis line_axis(lm_elab *e, int64_t n) {
  return lm_axis_shared(e->m, LM_SYM(e->c, "line"), n, (lm_type){0});
}

lm_value *lm_moment_divide(lm_elab *e, lm_value *v, lm_type blocks) {
  int64_t n = lm_type_elements(e->m, v->type), all = lm_type_elements(e->m, blocks);
  lm_type t = v->type;
  if (n == all)
    return move(e, LM_OP_VIEW, v, t.axis, t.rank, blocks.axis, blocks.rank);
  lm_axis own = line_axis(e, n), line = line_axis(e, all);
  v = move(e, LM_OP_VIEW, v, t.axis, t.rank, &own, 1);
  v = move(e, LM_OP_PAD, v, &own, 1, &line, 1);
  return move(e, LM_OP_VIEW, v, &line, 1, blocks.axis, blocks.rank);
}

lm_value *lm_moment_join(lm_elab *e, lm_value *v, lm_type own) {
  int64_t n = lm_type_elements(e->m, own), all = lm_type_elements(e->m, v->type);
  lm_type t = v->type;
  if (n == all)
    return move(e, LM_OP_VIEW, v, t.axis, t.rank, own.axis, own.rank);
  lm_axis part = line_axis(e, n), line = line_axis(e, all);
  v = move(e, LM_OP_VIEW, v, t.axis, t.rank, &line, 1);
  v = move(e, LM_OP_SLICE, v, &line, 1, &part, 1);
  return move(e, LM_OP_VIEW, v, &part, 1, own.axis, own.rank);
}

// ---- codes

static lm_value *number(lm_elab *e, double v) {
  return lm_emit_const(&e->b, lm_type_make(LM_F32, NULL, 0), v);
}

lm_value *lm_moment_decode(lm_elab *e, const lm_moment *m, lm_value *codes, lm_value *scale) {
  lm_value *x = lm_emit2(&e->b, LM_OP_MUL, lm_emit_cast(&e->b, codes, LM_F32), scale);
  return m->is_root ? lm_emit2(&e->b, LM_OP_MUL, x, x) : x;
}

// |x|, and infinity where x is no number, so that the scale shows it: a code cannot.
static lm_value *magnitude(lm_elab *e, lm_value *x, bool never_negative) {
  lm_builder *b = &e->b;
  lm_value *size = x;
  if (!never_negative) {
    lm_value *negated = lm_emit1(b, LM_OP_NEG, x);
    size = lm_emit_select(b, lm_emit2(b, LM_OP_LT, x, number(e, 0)), negated, x);
  }
  lm_value *infinity = number(e, INFINITY);
  return lm_emit_select(b, lm_emit2(b, LM_OP_EQ, x, x), size, infinity);
}

void lm_moment_encode(lm_elab *e, const lm_moment *m, lm_value *x, lm_value *good, lm_value *old,
                      lm_value **out_codes, lm_value **out_scale) {
  static const double GREATEST_E4M3 = 448;
  lm_builder *b = &e->b;
  if (m->is_root)
    x = lm_emit1(b, LM_OP_SQRT, x);
  lm_value *size = magnitude(e, x, m->is_root || m->dtype == LM_UDYN8);
  lm_value *scale = lm_emit_reduce(b, LM_OP_MAX, size, &x->type.axis[1], 1);
  if (m->dtype == LM_E4M3)
    scale = lm_emit2(b, LM_OP_MUL, scale, number(e, 1 / GREATEST_E4M3));
  scale = lm_emit_select(b, good, scale, old);
  lm_value *some = lm_emit2(b, LM_OP_GT, scale, number(e, 0));
  lm_value *by = lm_emit_select(b, some, scale, number(e, 1));
  *out_codes = lm_emit_cast(b, lm_emit2(b, LM_OP_DIV, x, by), m->dtype);
  *out_scale = scale;
}
