// grad_ticks_parts.c - the parts of a loop over ticks: what the stages take, send and give to the
// operations behind them.
//
//   %x = first(%k)   %c0 = select takes(%k), %x, %in                     %c0: taken
//   %y = stage(%k, %c0)   %next = ring_shift %y over(pp) [1]             %y: sent
//   %s = last(%k, %y)   yield %next, %s                                  %y: a result of the stage
#include "compiler/analysis/activity.h"
#include "compiler/passes/grad/grad_ticks.h"

// ---- the parts of the loop's body

static bool reads_late(const lm_region *r, const uint8_t *late) {
  for (const lm_op *op = r->first; op; op = op->next)
    if (lm_gradient_ticks_is_late(op, late))
      return true;
  return false;
}

bool lm_gradient_ticks_is_late(const lm_op *op, const uint8_t *late) {
  for (uint32_t i = 0; i < op->n_in; i++)
    if (late[op->in[i]->id])
      return true;
  return op->body && reads_late(op->body, late);
}

void lm_gradient_ticks_late(const lm_op *loop, uint8_t *late) {
  const lm_region *r = loop->body;
  for (uint32_t i = 1; i < r->n_args; i++)
    late[r->args[i]->id] = 1;
  for (const lm_op *op = r->first; op; op = op->next) {
    bool is_late = lm_gradient_ticks_is_late(op, late);
    for (uint32_t i = 0; i < op->n_out; i++)
      late[op->out[i]->id] = is_late;
  }
}

static void stage_mark(lm_ticks *t, const lm_value *v);

static void captured_mark(lm_ticks *t, const lm_region *r) {
  for (const lm_op *op = r->first; op; op = op->next) {
    for (uint32_t i = 0; i < op->n_in; i++)
      stage_mark(t, op->in[i]);
    if (op->body)
      captured_mark(t, op->body);
  }
}

static void stage_mark(lm_ticks *t, const lm_value *v) {
  if (v->region != t->loop->body || t->of_stage[v->id])
    return;
  t->of_stage[v->id] = 1;
  for (uint32_t i = 0; v->def && i < v->def->n_in; i++)
    stage_mark(t, v->def->in[i]);
  if (v->def && v->def->body)
    captured_mark(t, v->def->body);
}

static void result_note(lm_ticks *t, lm_value *v) {
  if (v->region != t->loop->body || !t->late[v->id] || !t->of_stage[v->id])
    return;
  for (uint32_t i = 0; i < t->n_results; i++)
    if (t->results[i] == v)
      return;
  LM_PUSH(t->m->arena, t->results, t->n_results, t->cap_results) = v;
}

static void results_note(lm_ticks *t, const lm_op *op) {
  for (uint32_t i = 0; i < op->n_in; i++)
    result_note(t, op->in[i]);
  for (const lm_op *in = op->body ? op->body->first : NULL; in; in = in->next)
    results_note(t, in);
}

// What operations behind the stage read of it, and the results of a tick.
static void results_find(lm_ticks *t) {
  const lm_op *yield = lm_ticks_yield(t);
  for (uint32_t i = 0; i < t->n; i++)
    stage_mark(t, t->sent[i]);
  for (const lm_op *op = t->loop->body->first; op != yield; op = op->next) {
    bool behind = op->n_out && t->late[op->out[0]->id] && !t->of_stage[op->out[0]->id];
    bool sends = op->code == LM_OP_RING_SHIFT && op->attr.mesh == t->mesh;
    if (behind && !sends)
      results_note(t, op);
  }
  for (uint32_t i = t->n; i < yield->n_in; i++)
    result_note(t, yield->in[i]);
}

static lm_value *taken_find(const lm_ticks *t, const lm_value *carry) {
  for (lm_op *op = t->loop->body->first; op; op = op->next)
    if (op->code == LM_OP_SELECT && op->in[2] == carry)
      return op->out[0];
  LM_BUG("a carry of a pipeline is not selected");
}

// ---- the function

lm_op *lm_gradient_ticks_loop(const lm_func *f, int mesh) {
  for (lm_op *op = f->body->first; op; op = op->next) {
    const lm_op *yield = op->code == LM_OP_LOOP ? op->body->last : NULL;
    const lm_op *sends = yield && op->n_in ? yield->in[0]->def : NULL;
    if (sends && sends->code == LM_OP_RING_SHIFT && sends->attr.mesh == mesh)
      return op;
  }
  return NULL;
}

bool lm_ticks_find(lm_ticks *t, lm_func *f) {
  const lm_mesh *mesh = &f->module->mesh;
  *t = (lm_ticks){
      .m = f->module,
      .f = f,
  };
  for (int k = 1; k <= mesh->n && !t->mesh; k++) // GPipe is the derivative of the loop as it is
    t->mesh = mesh->axis[k - 1].schedule ? k : 0;
  t->loop = t->mesh ? lm_gradient_ticks_loop(f, t->mesh) : NULL;
  if (!t->loop)
    return false;
  t->stages = mesh->axis[t->mesh - 1].size;
  t->chunks = lm_mesh_axis_chunks(&mesh->axis[t->mesh - 1]);
  t->n = t->loop->n_in;
  t->n_values = t->m->n_values;
  const lm_op *sum = f->body->last->in[0]->def;
  if (!sum || sum->code != LM_OP_SUM || sum->in[0]->def != t->loop)
    return false;
  t->loss = sum->in[0]->index - t->n;
  return true;
}

void lm_ticks_parts_find(lm_ticks *t) {
  lm_arena *a = t->m->arena;
  int64_t slots = 2 * lm_ticks_period(t) - 1, n_ticks = t->loop->attr.imm[0];
  t->sent = LM_NEW_N(a, lm_value *, t->n);
  t->taken = LM_NEW_N(a, lm_value *, t->n);
  t->late = LM_NEW_N(a, uint8_t, t->n_values + 1);
  t->of_stage = LM_NEW_N(a, uint8_t, t->n_values + 1);
  for (uint32_t i = 0; i < t->n; i++) {
    t->sent[i] = lm_ticks_yield(t)->in[i]->def->in[0];
    t->taken[i] = taken_find(t, t->loop->body->args[i + 1]);
  }
  t->slot = lm_axis_add(t->m, LM_SYM(t->m->ctx, "slot"), slots < n_ticks ? slots : n_ticks, 0);
  for (lm_op *op = t->loop->body->first; op; op = op->next)
    t->cycle = op->code == LM_OP_CYCLE ? op->out[0] : t->cycle;
  lm_gradient_ticks_late(t->loop, t->late);
  results_find(t);
}
