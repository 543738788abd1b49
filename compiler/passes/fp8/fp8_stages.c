// fp8_stages.c - scales of 8-bit floats on the stages of a pipeline: at a time, each stage has
// other layers and another micro-batch, or none.
#include "compiler/ops/fp8.h"
#include "compiler/passes/fp8/fp8.h"
#include "compiler/passes/grad/grad.h"
#include "runtime/base/diag_code.h"

static lm_axis axis_divided_by(const lm_module *m, lm_type t, int mesh) {
  for (int i = 0; i < t.rank; i++)
    if (lm_axis_divided_by(m, t.axis[i]) >> (mesh - 1) & 1)
      return t.axis[i];
  return 0;
}

lm_fp8_stages lm_fp8_stages_of(const lm_func *f) {
  const lm_module *m = f->module;
  lm_fp8_stages s = {0};
  for (int k = 1; k <= m->mesh.n && !s.ticks; k++) {
    s.ticks = lm_gradient_ticks_loop(f, k);
    s.mesh = s.ticks ? k : 0;
  }
  if (s.ticks)
    s.rows = axis_divided_by(m, s.ticks->body->args[1]->type, s.mesh);
  return s;
}

bool lm_fp8_stages_check(const lm_fp8 *o, const lm_fp8_stages *s, const lm_fp8_gemms *all) {
  if (!s->ticks || lm_fp8_block(o->scaling))
    return true;
  for (uint32_t i = 0; i < all->n; i++) {
    const lm_fp8_gemm *g = &all->v[i];
    lm_module *m = g->dot->parent->func->module;
    if (g->stays || lm_type_find(g->dot->in[1 - g->weight]->type, s->rows) >= 0)
      continue;
    const lm_global *param = lm_global_find(m, g->param->attr.sym);
    LM_REPORT(m->ctx, o->loc, E2F7, param->name);
    return false;
  }
  return true;
}

lm_mesh_set lm_fp8_others(const lm_fp8_stages *s) {
  return s->ticks ? (lm_mesh_set)(1U << (s->mesh - 1)) : 0;
}

lm_mesh_set lm_fp8_stacks(const lm_module *m, const lm_global *g) {
  lm_type stack = g->type;
  stack.rank = (uint8_t)g->n_stack;
  return lm_type_divided_by(m, stack);
}

lm_value *lm_fp8_stage_works(lm_builder *b, const lm_fp8_stages *s) {
  if (!s->ticks)
    return NULL;
  lm_type number = lm_type_make(LM_INT, NULL, 0);
  int64_t n = s->ticks->attr.imm[0] - b->m->mesh.axis[s->mesh - 1].size + 1;
  lm_attr along = {.mesh = (uint8_t)s->mesh};
  lm_value *rank = lm_emit(b, LM_OP_RANK, NULL, 0, &along, NULL);
  lm_value *micro = lm_emit2(b, LM_OP_SUB, s->ticks->body->args[0], rank);
  lm_value *begun = lm_emit2(b, LM_OP_GE, micro, lm_emit_const(b, number, 0));
  lm_value *left = lm_emit2(b, LM_OP_LT, micro, lm_emit_const(b, number, (double)n));
  return lm_emit2(b, LM_OP_AND, begun, left);
}
