// fp8_emit.c - see fp8.h.
#include <math.h>
#include <string.h>

#include "compiler/ops/fp8.h"
#include "runtime/base/dtype.h"

// ---- magnitudes and scales

static lm_value *number(lm_builder *b, double v) {
  return lm_emit_const(b, lm_type_make(LM_F32, NULL, 0), v);
}

// In f32, of the number that memory has of x (fp8.h).
static lm_value *widened(lm_builder *b, lm_value *x) {
  if (lm_dtype_is_half((lm_dtype)x->type.dtype))
    x = lm_emit1(b, LM_OP_REDUCE_PRECISION, x);
  return lm_emit_cast(b, x, LM_F32);
}

lm_value *lm_emit_absolute(lm_builder *b, lm_value *x) {
  x = widened(b, x);
  lm_value *negative = lm_emit2(b, LM_OP_LT, x, number(b, 0));
  return lm_emit_select(b, negative, lm_emit1(b, LM_OP_NEG, x), x);
}

lm_mesh_set lm_mesh_axes(const lm_module *m, lm_mesh_set without) {
  return (lm_mesh_set)(((1U << m->mesh.n) - 1) & ~(unsigned)without);
}

lm_value *lm_emit_all_max(lm_builder *b, lm_value *v, lm_mesh_set over) {
  for (int k = 1; k <= b->m->mesh.n; k++) {
    lm_attr a = {.mesh = (uint8_t)k};
    if (over >> (k - 1) & 1)
      v = lm_emit(b, LM_OP_ALL_MAX, &v, 1, &a, NULL);
  }
  return v;
}

// Rows first, which kernels compute in parallel.
lm_value *lm_emit_magnitude(lm_builder *b, lm_value *x, lm_mesh_set over) {
  lm_value *v = lm_emit_absolute(b, x);
  if (v->type.rank > 1)
    v = lm_emit_reduce(b, LM_OP_MAX, v, &v->type.axis[v->type.rank - 1], 1);
  lm_type rest = v->type;
  v = lm_emit_reduce(b, LM_OP_MAX, v, rest.axis, rest.rank);
  return lm_emit_all_max(b, v, over);
}

lm_value *lm_emit_fp8_scale(lm_builder *b, lm_value *magnitude, lm_dtype format) {
  lm_value *least = number(b, 0x1p-100);
  lm_value *most = number(b, 0x1p100);
  lm_value *greatest = number(b, lm_dtype_round(format, INFINITY));
  lm_value *ratio = lm_emit2(b, LM_OP_DIV, greatest, magnitude);
  lm_value *s = lm_emit1(b, LM_OP_BINADE, ratio);
  lm_value *below = lm_emit2(b, LM_OP_LT, s, least);
  s = lm_emit_select(b, below, least, s);
  lm_value *above = lm_emit2(b, LM_OP_GT, s, most);
  s = lm_emit_select(b, above, most, s);
  lm_value *any = lm_emit2(b, LM_OP_GT, magnitude, number(b, 0));
  return lm_emit_select(b, any, s, number(b, 1));
}

lm_value *lm_emit_fp8_code(lm_builder *b, lm_value *x, lm_value *scale, lm_dtype format) {
  lm_value *v = lm_emit2(b, LM_OP_MUL, widened(b, x), scale);
  return lm_emit_cast(b, v, format);
}

lm_value *lm_emit_fp8_number(lm_builder *b, lm_value *code, lm_value *scale, lm_dtype t) {
  lm_value *v = lm_emit_cast(b, code, LM_F32);
  lm_value *back = lm_emit2(b, LM_OP_DIV, number(b, 1), scale);
  v = lm_emit2(b, LM_OP_MUL, v, back);
  return lm_emit_cast(b, v, t);
}

lm_value *lm_emit_fp8(lm_builder *b, lm_value *x, lm_value *scale, lm_dtype format) {
  lm_value *code = lm_emit_fp8_code(b, x, scale, format);
  return lm_emit_fp8_number(b, code, scale, (lm_dtype)x->type.dtype);
}

// ---- blocks

// How axes are split: into blocks and elements, or as one block into elements alone (`block` 0).
typedef struct split {
  lm_fp8_axes whole;
  lm_axis block, element; // element: the axis itself, if it is one and has one block
} split;

static bool is_split(const split *s) {
  return s->block || s->whole.n > 1;
}

// How axes of a value of type *t are split into blocks of `elements`; *t becomes the type of the
// result.
static split split_of(lm_module *m, lm_type *t, const lm_fp8_axes *along, int64_t elements) {
  int64_t size = lm_fp8_axes_size(m, along);
  split s = {*along, 0, along->v[0]};
  if (size > elements)
    s.block = lm_axis_shared(m, LM_SYM(m->ctx, "block"), size / elements, *t);
  if (!is_split(&s))
    return s;
  int64_t within = size > elements ? elements : size;
  s.element = lm_axis_shared(m, LM_SYM(m->ctx, "element"), within, *t);
  lm_type from = *t;
  t->rank = 0;
  for (int i = 0; i < from.rank; i++) {
    bool first = from.axis[i] == along->v[0];
    if (first && s.block)
      t->axis[t->rank++] = s.block;
    t->axis[t->rank++] = first ? s.element : from.axis[i];
    i += first ? along->n - 1 : 0;
  }
  return s;
}

// The view that splits axes.
static lm_attr split_attr(const split *s) {
  lm_attr a = {.n_axes = (uint8_t)s->whole.n, .to = {s->element}, .n_to = 1};
  memcpy(a.axes, s->whole.v, sizeof a.axes);
  if (s->block) {
    a.to[0] = s->block;
    a.to[1] = s->element;
    a.n_to = 2;
  }
  return a;
}

static lm_value *split_axes(lm_builder *b, lm_value *x, const split *s, int n) {
  for (int i = 0; i < n; i++) {
    lm_attr a = split_attr(&s[i]);
    x = is_split(&s[i]) ? lm_emit(b, LM_OP_VIEW, &x, 1, &a, NULL) : x;
  }
  return x;
}

static lm_value *join_axes(lm_builder *b, lm_value *x, const split *s, int n) {
  for (int i = n; i-- > 0;) {
    lm_attr from = split_attr(&s[i]);
    lm_attr a = {.n_axes = from.n_to, .n_to = from.n_axes};
    memcpy(a.axes, from.to, sizeof a.axes);
    memcpy(a.to, from.axes, sizeof a.to);
    x = is_split(&s[i]) ? lm_emit(b, LM_OP_VIEW, &x, 1, &a, NULL) : x;
  }
  return x;
}

static lm_value *magnitudes(lm_builder *b, lm_value *x, const split *s, int n) {
  lm_axis within[2];
  for (int i = 0; i < n; i++)
    within[i] = s[i].element;
  return lm_emit_reduce(b, LM_OP_MAX, lm_emit_absolute(b, x), within, n);
}

lm_value *lm_emit_fp8_blocks(lm_builder *b, lm_value *x, const lm_fp8_blocks *of, lm_dtype format) {
  split s[2] = {0};
  lm_type t = x->type;
  int n = of->n;
  for (int i = 0; i < n; i++)
    s[i] = split_of(b->m, &t, &of->along[i], of->size);
  x = split_axes(b, x, s, n);
  x = lm_emit_fp8(b, x, lm_emit_fp8_scale(b, magnitudes(b, x, s, n), format), format);
  return join_axes(b, x, s, n);
}

bool lm_fp8_blocks_fit_parts(const lm_module *m, const lm_op *gather, const lm_fp8_blocks *of) {
  lm_axis part = gather->attr.axes[0];
  lm_axis whole = gather->attr.to[0];
  for (int i = 0; i < of->n; i++) {
    const lm_fp8_axes *a = &of->along[i];
    bool has = false;
    for (int k = 0; k < a->n; k++)
      has |= a->v[k] == whole;
    if (!lm_fp8_axes_adjacent(gather->out[0]->type, a) || (has && a->n > 1))
      return false;
    if (has && lm_axis_size(m, whole) > of->size && lm_axis_size(m, part) % of->size)
      return false;
  }
  return true;
}

// The magnitudes of the whole blocks from those of the rank's, whose axis along which ranks have
// parts is `part` of `whole`.
static lm_value *magnitudes_gathered(lm_builder *b, const lm_op *gather, lm_value *own,
                                     lm_axis part, lm_axis whole) {
  lm_attr a = gather->attr;
  a.axes[0] = part;
  a.to[0] = whole;
  return lm_emit(b, gather->code, &own, 1, &a, NULL);
}

lm_value *lm_emit_fp8_blocks_gathered(lm_builder *b, const lm_op *gather, const lm_fp8_blocks *of,
                                      lm_dtype format) {
  lm_module *m = b->m;
  int n = of->n;
  lm_value *x = gather->in[0];
  lm_axis part = gather->attr.axes[0];
  lm_axis whole = gather->attr.to[0];
  split s[2] = {0}, own[2] = {0};
  lm_type t = gather->out[0]->type;
  lm_axis rest = part, rest_whole = whole; // of the magnitudes; 0: ranks have parts of each block
  for (int i = 0; i < n; i++) {
    own[i] = s[i] = split_of(m, &t, &of->along[i], of->size);
    if (of->along[i].v[0] != whole)
      continue;
    rest_whole = s[i].block;
    rest = rest_whole ? lm_axis_part(m, rest_whole, gather->attr.mesh) : 0;
    own[i] = (split){{{part}, 1}, rest, rest ? s[i].element : part};
  }
  x = split_axes(b, x, own, n);
  lm_value *of_own = magnitudes(b, x, own, n);
  if (!rest)
    of_own = lm_emit_all_max(b, of_own, (lm_mesh_set)(1U << (gather->attr.mesh - 1)));
  lm_value *of_all = rest ? magnitudes_gathered(b, gather, of_own, rest, rest_whole) : of_own;
  lm_value *code = lm_emit_fp8_code(b, x, lm_emit_fp8_scale(b, of_own, format), format);
  code = join_axes(b, code, own, n);
  code = lm_emit(b, gather->code, &code, 1, &gather->attr, NULL);
  code = split_axes(b, code, s, n);
  lm_dtype type = (lm_dtype)gather->out[0]->type.dtype;
  x = lm_emit_fp8_number(b, code, lm_emit_fp8_scale(b, of_all, format), type);
  return join_axes(b, x, s, n);
}

// ---- cotangents

lm_value *lm_emit_round_cotangent(lm_builder *b, lm_value *x, const lm_fp8_rounding *how) {
  bool narrow = how->format == LM_E4M3;
  bool blocks = how->along.n > 0;
  lm_attr a = {
      .n_axes = (uint8_t)how->along.n,
      .imm = {narrow ? 4 : 5, narrow ? 3 : 2, blocks ? how->size : how->others},
      .n_imm = blocks || how->others ? 3 : 2,
  };
  memcpy(a.axes, how->along.v, sizeof a.axes);
  lm_value *in[] = {x, how->scale};
  return lm_emit(b, LM_OP_ROUND_COTANGENT, in, how->scale ? 2 : 1, &a, NULL);
}

// ---- histories

lm_axis lm_fp8_history_axis(lm_module *m) {
  lm_type none = {0};
  return lm_axis_shared(m, LM_SYM(m->ctx, "past"), LM_FP8_HISTORY, none);
}

lm_value *lm_emit_history(lm_builder *b, const lm_attr *at, lm_value *const *index, uint32_t n) {
  return lm_emit(b, LM_OP_RECALL, index, n, at, NULL);
}

lm_value *lm_emit_history_magnitude(lm_builder *b, lm_value *history) {
  lm_axis past = lm_fp8_history_axis(b->m);
  lm_attr a = {
      .axes = {history->type.axis[0]},
      .n_axes = 1,
      .to = {past},
      .n_to = 1,
      .imm = {1, 1},
      .n_imm = 2,
  };
  lm_value *steps = lm_emit(b, LM_OP_SLICE, &history, 1, &a, NULL);
  return lm_emit_reduce(b, LM_OP_MAX, steps, &past, 1);
}

lm_value *lm_emit_history_first(lm_builder *b, lm_value *history) {
  lm_type slots = history->type;
  lm_type scalar = lm_type_make(LM_INT, NULL, 0);
  slots.dtype = LM_INT;
  lm_value *slot = lm_emit(b, LM_OP_IOTA, NULL, 0, NULL, &slots);
  return lm_emit2(b, LM_OP_EQ, slot, lm_emit_const(b, scalar, 0));
}

void lm_emit_observation(lm_builder *b, const lm_attr *at, lm_value *const *index, uint32_t n,
                         lm_value *x, lm_value *valid) {
  lm_value **in = LM_NEW_N(b->m->arena, lm_value *, n + 1);
  lm_value *magnitude = lm_emit_magnitude(b, x, 0);
  lm_value *history = lm_emit_history(b, at, index, n);
  lm_value *first = lm_emit_history_first(b, history);
  lm_value *greater = lm_emit2(b, LM_OP_LT, history, magnitude);
  lm_value *enters = lm_emit2(b, LM_OP_AND, first, greater);
  if (valid)
    enters = lm_emit2(b, LM_OP_AND, enters, valid);
  for (uint32_t i = 0; i < n; i++)
    in[i] = index[i];
  in[n] = lm_emit_select(b, enters, magnitude, history);
  lm_emit_op(b, LM_OP_RETAIN, in, n + 1, at, NULL);
}
