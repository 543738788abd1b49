// fp8_stages.c - scales of 8-bit floats in a pipeline. In a tick each stage computes its layers for
// another micro-batch, or for none. The operations before and after the layers are inside of the
// loop over ticks in some schedules; then the ranks divide the rows of one micro-batch among them.
// In the others they are outside of it and see the rows of all micro-batches of the step at once,
// so no scale there can be that of a micro-batch (see pass shard).
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/grad/grad.h"
#include "compiler/passes/shard/shard.h"

lm_fp8_stages lm_fp8_stages_of(const lm_func *f) {
  const lm_module *m = f->module;
  lm_fp8_stages s = {0};
  for (int k = 1; k <= m->mesh.n && !s.ticks; k++) {
    s.ticks = lm_gradient_ticks_loop(f, k);
    s.mesh = s.ticks ? k : 0;
  }
  if (!s.ticks)
    return s;
  s.model = lm_mesh_axis_ticks(&m->mesh.axis[s.mesh - 1]);
  s.behind = LM_NEW_N(m->arena, uint8_t, m->n_values + 1);
  lm_gradient_ticks_late(s.ticks, s.behind);
  return s;
}

static lm_mesh_set set_of(const lm_fp8_stages *s) {
  return (lm_mesh_set)(1U << (s->mesh - 1));
}

lm_mesh_set lm_fp8_stacks(const lm_module *m, const lm_global *g) {
  lm_type stack = g->type;
  stack.rank = (uint8_t)g->n_stack;
  return lm_type_divided_by(m, stack);
}

// ---- where a GEMM is

// True if the region reads parameters of which each stage has its own.
static bool is_of_stage(const lm_fp8_stages *s, lm_module *m, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    const lm_global *g = op->code == LM_OP_PARAM ? lm_global_find(m, op->attr.sym) : NULL;
    if (g && lm_fp8_stacks(m, g) & set_of(s))
      return true;
    if (op->body && is_of_stage(s, m, op->body))
      return true;
  }
  return false;
}

// True if t has the rows that the stages compute at a time.
static bool has_rows_of_stages(const lm_fp8_stages *s, const lm_module *m, lm_type t) {
  const lm_region *r = s->ticks->body;
  for (uint32_t i = 1; i < r->n_args; i++)
    for (int k = 0; k < r->args[i]->type.rank; k++) {
      lm_axis a = r->args[i]->type.axis[k];
      if (lm_axis_divided_by(m, a) & set_of(s) && lm_type_find(t, a) >= 0)
        return true;
    }
  return false;
}

// The operation of the loop over ticks that contains op; NULL: op is outside of it.
static const lm_op *in_ticks(const lm_fp8_stages *s, const lm_op *op) {
  while (op && op->parent != s->ticks->body)
    op = op->parent->owner;
  return op;
}

lm_fp8_phase lm_fp8_phase_of(const lm_fp8_stages *s, const lm_fp8_gemm *g) {
  lm_module *m = g->dot->parent->func->module;
  const lm_op *op = s->ticks ? in_ticks(s, g->dot) : NULL;
  const lm_value *x = g->dot->in[1 - g->weight];
  if (!op)
    return LM_FP8_OUTSIDE;
  bool own = !s->model || has_rows_of_stages(s, m, x->type);
  if (own || (op->body && is_of_stage(s, m, op->body)))
    return LM_FP8_IN_STAGE;
  return lm_gradient_ticks_is_late(op, s->behind) ? LM_FP8_BEHIND : LM_FP8_IN_FRONT;
}

lm_mesh_set lm_fp8_others(const lm_fp8_stages *s, lm_fp8_phase at) {
  return at == LM_FP8_IN_STAGE ? set_of(s) : 0;
}

// ---- which micro-batch

static lm_value *arith(lm_builder *b, lm_opcode code, lm_value *x, int64_t n) {
  return lm_emit2(b, code, x, lm_emit_const(b, lm_type_make(LM_INT, NULL, 0), (double)n));
}

static lm_value *stage_works(lm_builder *b, const lm_fp8_stages *s) {
  int64_t n = s->ticks->attr.imm[0] - b->m->mesh.axis[s->mesh - 1].size + 1;
  lm_attr along = {.mesh = (uint8_t)s->mesh};
  lm_value *rank = lm_emit(b, LM_OP_RANK, NULL, 0, &along, NULL);
  lm_value *micro = lm_emit2(b, LM_OP_SUB, s->ticks->body->args[0], rank);
  lm_value *begun = arith(b, LM_OP_GE, micro, 0);
  return lm_emit2(b, LM_OP_AND, begun, arith(b, LM_OP_LT, micro, n));
}

static lm_value *last_stage_works(lm_builder *b, const lm_fp8_stages *s) {
  const lm_mesh_axis *by = &b->m->mesh.axis[s->mesh - 1];
  lm_shard_order order = {
      .ranks = by->size,
      .chunks = lm_mesh_axis_chunks(by),
  };
  order.n_micro = (s->ticks->attr.imm[0] - order.ranks + 1) / order.chunks;
  return lm_shard_order_ends(&order, b, s->ticks->body->args[0]);
}

lm_value *lm_fp8_has_micro(lm_builder *b, const lm_fp8_stages *s, lm_fp8_phase at) {
  if (at == LM_FP8_IN_STAGE)
    return stage_works(b, s);
  return at == LM_FP8_BEHIND ? last_stage_works(b, s) : NULL;
}
