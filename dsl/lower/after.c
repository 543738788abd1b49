// after.c - the function @after_step, which gives the states of blocks their next values.
//
//   func @after_step(%grad_scale: f32) -> () {
//     loop 12 %i {
//       %s = param @layers.load[%i * 1 + 0]   %g = gradient @layers.load[%i * 1 + 0]
//       %n = add %s, %g                       if a method adds to it
//       …                                     after_step { … }
//       assign @layers.load[%i * 1 + 0], %next }
//     return }
//
// Instances of a repetition run in one loop for each segment of equal instances, as methods do.
#include "dsl/elab/call.h"
#include "dsl/elab/share.h"
#include "dsl/lower/internal.h"

static bool has_states(const el_inst *inst) {
  for (uint32_t i = 0; i < inst->n_params; i++)
    if (inst->params[i].is_state && inst->params[i].share->edits % 2 == 0)
      return true;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    const struct el_sub *s = &inst->subs[i];
    for (int64_t k = 0; s->many && k < s->many->n; k++)
      if (has_states(s->many->of[k]))
        return true;
    if (s->one && has_states(s->one))
      return true;
  }
  return false;
}

// The value of a state, plus what `add` gave in the step.
static lm_value *state_read(lm_elab *e, const el_ref *ref, const el_param *p) {
  lm_attr attr;
  lm_value *in[4];
  e->b.loc = p->loc;
  uint32_t n = el_param_indices(e, ref, p, in, &attr);
  lm_value *v = lm_emit(&e->b, LM_OP_PARAM, in, n, &attr, NULL);
  bool adds = p->share->adds && p->share->edits % 2 == 0;
  return adds ? lm_emit2(&e->b, LM_OP_ADD, v, lm_emit(&e->b, LM_OP_GRADIENT, in, n, &attr, NULL))
              : v;
}

// Assigns the value unless the step is skipped, for which grad_scale is NaN.
static void state_write(lm_elab *e, const el_ref *ref, const el_param *p, lm_value *scale,
                        lm_value *now) {
  lm_attr attr;
  lm_value *in[5];
  uint32_t n = el_param_indices(e, ref, p, in, &attr);
  lm_value *old = lm_emit(&e->b, LM_OP_PARAM, in, n, &attr, NULL);
  in[n] = lm_emit_select(&e->b, lm_emit2(&e->b, LM_OP_EQ, scale, scale), now, old);
  lm_emit_op(&e->b, LM_OP_ASSIGN, in, n + 1, &attr, NULL);
}

static void own_states_run(lm_elab *e, el_ref *ref, lm_value *scale) {
  el_inst *inst = ref->inst;
  el_val *state = LM_NEW_N(e->a, el_val, inst->n_params + 1);
  bool any = false;
  for (uint32_t i = 0; i < inst->n_params; i++) {
    el_param *p = &inst->params[i];
    if (!p->is_state)
      continue;
    any = true;
    state[i] = el_tensor(K_F32, &p->axes, state_read(e, ref, p));
    state[i].name = p->name;
    state[i].loc = p->loc;
  }
  if (!any)
    return;
  e->memo = NULL;
  el_run_after(e, ref, state);
  for (uint32_t i = 0; i < inst->n_params; i++) {
    const el_param *p = &inst->params[i];
    bool read = state[i].v && state[i].v->def && state[i].v->def->code == LM_OP_PARAM;
    bool unchanged = read && state[i].v->def->attr.sym == p->global;
    if (p->is_state && state[i].v && !unchanged && p->share->edits % 2 == 0)
      state_write(e, ref, p, scale, state[i].v);
  }
}

static void inst_run(lm_elab *e, el_ref *ref, lm_value *scale);

static void list_run(lm_elab *e, const el_ref *ref, el_insts *xs, lm_value *scale) {
  el_val all = {
      .k = V_INSTS,
      .ref = *ref,
      .insts = xs,
  };
  int64_t count;
  for (int64_t first = 0; first < xs->n;) {
    int period = 1;
    count = el_insts_segment(e, xs, first, &period);
    lm_op *loop = lm_loop_begin(&e->b, count, 0, NULL, 0);
    for (int j = 0; j < period; j++) {
      el_index at = {loop->body->args[0], first + j, period};
      el_val x = el_insts_at(e, &all, &at);
      inst_run(e, &x.ref, scale);
    }
    lm_loop_end(&e->b, loop, NULL, 0, NULL, 0);
    first += count * period;
  }
}

static void inst_run(lm_elab *e, el_ref *ref, lm_value *scale) {
  el_inst *inst = ref->inst;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    const struct el_sub *s = &inst->subs[i];
    if (s->one && has_states(s->one)) {
      el_ref sub = el_ref_sub(e, ref, s->one);
      inst_run(e, &sub, scale);
    }
    for (int64_t k = 0; s->many && k < s->many->n; k++)
      if (has_states(s->many->of[k])) {
        list_run(e, ref, s->many, scale);
        break;
      }
  }
  own_states_run(e, ref, scale);
}

void lm_lower_after(lm_elab *e, el_inst *model) {
  el_ref ref = {.inst = model};
  if (!has_states(model))
    return;
  lm_func *f = lm_func_add_key(e->m, (lm_func_key){LM_FUNC_AFTER_STEP});
  lm_entry_frame(e, model->file);
  e->b = (lm_builder){
      .m = e->m,
      .at = f->body,
      .loc = model->decl->loc,
  };
  e->mode = EL_UPDATE;
  e->n_loops = 0;
  lm_value *scale =
      lm_arg_add(e->m, f->body, lm_type_make(LM_F32, NULL, 0), lm_port_name(e, LM_PORT_GRAD_SCALE));
  inst_run(e, &ref, scale);
  lm_emit_op(&e->b, LM_OP_RETURN, NULL, 0, NULL, NULL);
}
