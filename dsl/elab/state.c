// state.c - states of blocks: tensors that the optimizer does not update.
//
//   state load: f32[E] = zeros
//   apply(…) { …; add load = f32(counts) }     accum @moe.load, %counts
//   after_step { …; load = 0 * load }          in @after_step (dsl/lower/after.c)
//
// A state is a parameter of the IR that is `untrained`. What `add` adds in the micro-batches of a
// step, on all ranks, is summed where other parameters have their gradient.
#include "dsl/elab/call.h"
#include "dsl/elab/share.h"
#include "dsl/elab/source.h"

el_val el_over_axes(lm_elab *e, el_val v, const el_axes *axes, lm_loc at) {
  el_axes order = {0};
  el_val want = el_tensor(K_F32, axes, NULL);
  v = el_adapt(e, &v, K_F32, at);
  if (v.k == V_ERROR)
    return v;
  if (v.k != V_TENSOR || v.kind != K_F32 || !el_axes_subset(&v.axes, axes))
    return EL_FAIL(e, at, E0B5, el_show(e, &want), el_show(e, &v));
  if (!v.v)
    return want;
  for (uint32_t i = 0; i < axes->n; i++)
    if (el_axes_has(&v.axes, axes->v[i]))
      el_axes_push(e, &order, axes->v[i]);
  lm_type t = el_ir_type(e, K_F32, &order);
  v.v = lm_emit_permute(&e->b, v.v, t.axis, t.rank);
  return el_tensor(K_F32, axes, lm_emit_expand(&e->b, v.v, el_ir_type(e, K_F32, axes)));
}

// The state of that name of the instance whose method runs.
static el_param *state_find(const lm_elab *e, lm_sym name) {
  const el_inst *inst = e->frame->self ? e->frame->self->inst : NULL;
  for (uint32_t i = 0; inst && i < inst->n_params; i++)
    if (inst->params[i].is_state && inst->params[i].name == name)
      return &inst->params[i];
  return NULL;
}

void el_run_add(lm_elab *e, const ast_stmt *st) {
  const ast_name *name = &st->names.v[0];
  el_param *p = e->mode == EL_UPDATE ? NULL : state_find(e, name->text);
  if (p && e->m && (!el_trains(e) || e->extra_loss))
    return;
  el_val v = el_eval(e, st->expr);
  if (e->scan || !p) {
    if (e->scan)
      el_not_in_scan(e, st->loc, "`add` to a state");
    else if (!el_is_incomplete(e) && !el_is_state(e, name->text))
      EL_ERR(e, name->loc, E0FC, name->text);
    return;
  }
  v = el_over_axes(e, v, &p->axes, st->expr->loc);
  if (!v.v || !p->share || p->share->edits % 2)
    return;
  lm_attr attr;
  lm_value *in[5];
  uint32_t n = el_param_indices(e, e->frame->self, p, in, &attr);
  in[n] = v.v;
  p->share->adds = true;
  lm_emit_op(&e->b, LM_OP_ACCUM, in, n + 1, &attr, NULL);
}

static const ast_member *after_find(const ast_decl *d) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_AFTER)
      return d->members.v[i];
  return NULL;
}

// Where the body assigns a state last.
static lm_loc assigned_at(const ast_member *m, lm_sym name) {
  lm_loc at = m->loc;
  for (uint32_t i = 0; i < m->body.n; i++)
    if (m->body.v[i]->kind == ST_SET && m->body.v[i]->names.v[0].text == name)
      at = m->body.v[i]->expr->loc;
  return at;
}

void el_run_after(lm_elab *e, el_ref *ref, el_val *state) {
  el_inst *inst = ref->inst;
  const ast_member *m = after_find(inst->decl);
  el_frame frame = {
      .up = e->frame,
      .what = lm_arena_printf(e->a, "%s.after_step", inst->decl->name.text),
      .file = inst->file,
      .self = ref,
      .rows = el_rows_copy(e, inst->rows),
      .real = K_REAL,
  };
  if (!m)
    return;
  e->frame = &frame;
  for (uint32_t i = 0; i < inst->decl->members.n; i++) { // names whose type is not sound
    const ast_member *s = inst->decl->members.v[i];
    for (uint32_t k = 0; s->kind == MB_STATE && k < s->names.n; k++)
      el_bind_name(e, s->names.v[k].text, el_error(), true);
  }
  for (uint32_t i = 0; i < inst->n_params; i++)
    if (inst->params[i].is_state)
      el_bind_name(e, inst->params[i].name, state[i], true);
  el_run(e, &m->body);
  if (frame.has_result && frame.result.k != V_ERROR)
    EL_ERR(e, m->loc, E0FD);
  for (uint32_t i = 0; i < inst->n_params; i++) {
    const el_param *p = &inst->params[i];
    if (p->is_state)
      state[i] = el_over_axes(e, el_names_find(&frame.names, p->name)->val, &p->axes,
                              assigned_at(m, p->name));
  }
  e->frame = frame.up;
}
