// build.c - the builder: emits operations whose result types the shape rules compute.
#include <string.h>
#include "compiler/ir/internal.h"

static _Noreturn void refuse(lm_builder *b, const lm_op *op, lm_buf *why) {
  lm_buf text = {0};
  lm_op_print(op, &text);
  LM_BUG("%s (line %u): %s", text.p, b->loc.line, why->p ? why->p : "ill-formed");
}

static lm_op *op_new(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                     const lm_attr *attr) {
  lm_op *op = lm_op_new(b->m, code, in, n_in, attr, b->loc);
  op->remat = b->remat;
  return op;
}

lm_op *lm_emit_op(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type) {
  lm_op *op = op_new(b, code, in, n_in, attr);
  lm_buf why = {0};
  int64_t n = lm_op_result_count(b->m, op, &why);
  if (n < 0)
    refuse(b, op, &why);
  lm_type *types = LM_NEW_N(b->m->arena, lm_type, n ? n : 1);
  types[0] = type ? *type : (lm_type){.dtype = LM_DTYPES};
  if (!lm_op_infer(b->m, op, types, &why))
    refuse(b, op, &why);
  lm_buf_free(&why);
  lm_op_results_make(b->m, op, types, (uint32_t)n);
  lm_op_link(b->at, b->before, op);
  return op;
}

lm_value *lm_emit(lm_builder *b, lm_opcode code, lm_value *const *in, uint32_t n_in,
                  const lm_attr *attr, const lm_type *type) {
  lm_op *op = lm_emit_op(b, code, in, n_in, attr, type);
  return op->n_out ? op->out[0] : NULL;
}

lm_value *lm_emit1(lm_builder *b, lm_opcode code, lm_value *x) {
  return lm_emit(b, code, &x, 1, NULL, NULL);
}

lm_value *lm_emit2(lm_builder *b, lm_opcode code, lm_value *x, lm_value *y) {
  return lm_emit(b, code, (lm_value *[]){x, y}, 2, NULL, NULL);
}

lm_value *lm_emit_const(lm_builder *b, lm_type type, double v) {
  return lm_emit(b, LM_OP_CONST, NULL, 0, &(lm_attr){.num = v}, &type);
}

lm_value *lm_emit_cast(lm_builder *b, lm_value *x, lm_dtype t) {
  if (x->type.dtype == t)
    return x;
  lm_type type = x->type;
  type.dtype = (uint8_t)t;
  return lm_emit(b, LM_OP_CAST, &x, 1, NULL, &type);
}

lm_value *lm_emit_select(lm_builder *b, lm_value *c, lm_value *x, lm_value *y) {
  return lm_emit(b, LM_OP_SELECT, (lm_value *[]){c, x, y}, 3, NULL, NULL);
}

lm_value *lm_emit_clamp(lm_builder *b, lm_value *index, int64_t n) {
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  lm_value *first = lm_emit_const(b, number, 0);
  lm_value *last = lm_emit_const(b, number, (double)(n - 1));
  lm_value *low = lm_emit_select(b, lm_emit2(b, LM_OP_LT, index, first), first, index);
  return lm_emit_select(b, lm_emit2(b, LM_OP_GT, low, last), last, low);
}

static lm_attr attr_of_axes(const lm_axis *axes, int n) {
  lm_attr a = {.n_axes = (uint8_t)n};
  if (n > LM_RANK)
    LM_BUG("%d axes", n);
  for (int i = 0; i < n; i++)
    a.axes[i] = axes[i];
  return a;
}

lm_value *lm_emit_reduce(lm_builder *b, lm_opcode sum_or_max, lm_value *x, const lm_axis *over,
                         int n) {
  if (!n)
    return x;
  lm_attr a = attr_of_axes(over, n);
  return lm_emit(b, sum_or_max, &x, 1, &a, NULL);
}

lm_value *lm_emit_dot(lm_builder *b, lm_value *x, lm_value *w, const lm_axis *over, int n) {
  lm_attr a = attr_of_axes(over, n);
  return lm_emit(b, LM_OP_DOT, (lm_value *[]){x, w}, 2, &a, NULL);
}

lm_value *lm_emit_expand(lm_builder *b, lm_value *x, lm_type to) {
  return lm_type_equal(x->type, to) ? x : lm_emit(b, LM_OP_EXPAND, &x, 1, NULL, &to);
}

lm_value *lm_emit_permute(lm_builder *b, lm_value *x, const lm_axis *order, int n) {
  lm_type to = lm_type_make(x->type.dtype, order, n);
  return lm_type_equal(x->type, to) ? x : lm_emit(b, LM_OP_PERMUTE, &x, 1, NULL, &to);
}

lm_value *lm_emit_split(lm_builder *b, lm_value *x, lm_axis whole, lm_axis outer, lm_axis inner) {
  lm_attr a = {.axes = {whole}, .n_axes = 1, .to = {outer, inner}, .n_to = 2};
  return lm_emit(b, LM_OP_VIEW, &x, 1, &a, NULL);
}

lm_value *lm_emit_join(lm_builder *b, lm_value *x, lm_axis outer, lm_axis inner, lm_axis whole) {
  lm_attr a = {.axes = {outer, inner}, .n_axes = 2, .to = {whole}, .n_to = 1};
  return lm_emit(b, LM_OP_VIEW, &x, 1, &a, NULL);
}

// ---- regions

lm_op *lm_loop_begin(lm_builder *b, int64_t count, lm_axis axis, lm_value *const *carry,
                     uint32_t n_carry) {
  lm_attr a = {.imm = {count}, .n_imm = 1, .axes = {axis}, .n_axes = axis != 0};
  lm_op *op = op_new(b, LM_OP_LOOP, carry, n_carry, &a);
  lm_op_link(b->at, b->before, op);
  op->body = lm_region_new(b->m, b->at->func, op);
  lm_arg_add(b->m, op->body, lm_type_make(LM_INT, NULL, 0), LM_SYM(b->m->ctx, "i"));
  for (uint32_t i = 0; i < n_carry; i++)
    lm_arg_add(b->m, op->body, carry[i]->type, carry[i]->name);
  b->at = op->body;
  b->before = NULL;
  return op;
}

void lm_region_end(lm_builder *b, lm_op *op, lm_value *const *yields, uint32_t n) {
  b->at = op->body;
  b->before = NULL;
  lm_emit_op(b, LM_OP_YIELD, yields, n, NULL, NULL);
  lm_type *types = LM_NEW_N(b->m->arena, lm_type, n + 1);
  lm_buf why = {0};
  if (!lm_op_infer(b->m, op, types, &why))
    refuse(b, op, &why);
  int64_t results = lm_op_result_count(b->m, op, &why);
  lm_buf_free(&why);
  lm_op_results_make(b->m, op, types, (uint32_t)results);
  b->at = op->parent;
  b->before = op->next;
}

void lm_loop_end(lm_builder *b, lm_op *loop, lm_value *const *next, uint32_t n_next,
                 lm_value *const *stacked, uint32_t n_stacked) {
  lm_value **all = LM_NEW_N(b->m->arena, lm_value *, n_next + n_stacked + 1);
  for (uint32_t i = 0; i < n_next; i++)
    all[i] = next[i];
  for (uint32_t i = 0; i < n_stacked; i++)
    all[n_next + i] = stacked[i];
  if (n_next != loop->n_in)
    LM_BUG("a loop that carries %u values yields %u", loop->n_in, n_next);
  lm_region_end(b, loop, all, n_next + n_stacked);
}

lm_op *lm_isolated_begin(lm_builder *b, lm_opcode code, const lm_attr *attr, lm_value *const *in,
                         uint32_t n_in, const lm_type *first) {
  lm_op *op = op_new(b, code, in, n_in, attr);
  lm_op_link(b->at, b->before, op);
  op->body = lm_region_new(b->m, b->at->func, op);
  if (first)
    lm_arg_add(b->m, op->body, *first, NULL);
  for (uint32_t i = 0; i < n_in; i++)
    lm_arg_add(b->m, op->body, in[i]->type, in[i]->name);
  b->at = op->body;
  b->before = NULL;
  return op;
}

lm_op *lm_kernel_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in) {
  return lm_isolated_begin(b, LM_OP_KERNEL, attr, in, n_in, NULL);
}

void lm_kernel_end(lm_builder *b, lm_op *kernel, lm_value *const *results, uint32_t n) {
  lm_region_end(b, kernel, results, n);
}

lm_op *lm_attend_begin(lm_builder *b, const lm_attr *attr, lm_value *const *in, uint32_t n_in,
                       const lm_type *cotangent) {
  return lm_isolated_begin(b, cotangent ? LM_OP_ATTEND_VJP : LM_OP_ATTEND, attr, in, n_in,
                           cotangent);
}

void lm_attend_end(lm_builder *b, lm_op *attend, lm_value *const *yields, uint32_t n) {
  lm_region_end(b, attend, yields, n);
}

lm_value *lm_loop_stack(lm_module *m, lm_op *loop, lm_value *v) {
  lm_op *yield = loop->body->last;
  if (!loop->attr.n_axes) {
    loop->attr.axes[0] = lm_axis_add(m, LM_SYM(m->ctx, "trip"), loop->attr.imm[0], 0);
    loop->attr.n_axes = 1;
  }
  lm_value **in = LM_NEW_N(m->arena, lm_value *, yield->n_in + 1),
           **out = LM_NEW_N(m->arena, lm_value *, loop->n_out + 1);
  if (yield->n_in)
    memcpy(in, yield->in, yield->n_in * sizeof *in);
  if (loop->n_out)
    memcpy(out, loop->out, loop->n_out * sizeof *out);
  if (v->type.rank == LM_RANK)
    LM_BUG("a stacked tensor of %d axes", LM_RANK + 1);
  lm_type t = lm_type_stacked(loop->attr.axes[0], v->type);
  in[yield->n_in++] = v;
  yield->in = in;
  out[loop->n_out] = lm_value_new(m, t, loop, loop->parent, loop->n_out, v->name);
  loop->out = out;
  return out[loop->n_out++];
}
