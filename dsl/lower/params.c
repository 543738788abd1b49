// params.c - functions of parameters alone: @merged, the weights with their adapters merged, and
// @begin, the initial values that are computed from other parameters.
//
//   param m: f32[..o] = norm(w)    ->    func @begin() -> (begin.layers.0.wq.dora.m: f32[g, e], …)
//
// `norm` is a method of the block. In an adapter, w is the parameter that it adapts.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/lower/internal.h"

typedef struct results {
  const char *prefix; // of their names
  lm_value **v;
  lm_sym *names;
  uint32_t n, cap_v, n_names, cap_names;
} results;

static void result_add(lm_elab *e, const el_inst *inst, lm_sym name, el_val v, results *out) {
  lm_sym path = el_inst_path(e, inst, name);
  LM_PUSH(e->a, out->v, out->n, out->cap_v) = lm_emit_cast(&e->b, v.v, LM_F32);
  LM_PUSH(e->a, out->names, out->n_names, out->cap_names) =
      LM_SYM(e->c, lm_arena_printf(e->a, "%s.%s", out->prefix, path));
}

// Calls `each` for every instance, those of adapters included.
typedef void visitor(lm_elab *e, el_inst *inst, results *out);
static void insts_visit(lm_elab *e, el_inst *inst, visitor *each, results *out) {
  each(e, inst, out);
  for (uint32_t i = 0; i < inst->n_params; i++)
    for (el_adapter *a = inst->params[i].adapters; a; a = a->next)
      insts_visit(e, a->inst, each, out);
  for (const el_inserted *x = inst->inserted; x; x = x->next)
    insts_visit(e, x->inst, each, out);
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one)
      insts_visit(e, inst->subs[i].one, each, out);
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      insts_visit(e, inst->subs[i].many->of[k], each, out);
  }
}

static void func_make(lm_elab *e, el_inst *model, lm_func_id id, visitor *each, results *out) {
  lm_entry x = lm_entry_begin(e, (lm_func_key){id}, 1, 1, 0, EL_EVAL, model->file);
  uint32_t before = e->c->n_errors;
  insts_visit(e, model, each, out);
  if (e->c->n_errors == before)
    lm_entry_finish(e, x.f, out->v, out->names, out->n);
}

// ---- @merged

static void merged_add(lm_elab *e, el_inst *inst, results *out) {
  for (uint32_t i = 0; i < inst->n_params; i++) {
    if (!inst->params[i].adapters)
      continue;
    el_val w = el_merged(e, inst, i);
    if (w.k == V_ERROR)
      return;
    result_add(e, inst, inst->params[i].name, w, out);
  }
}

void lm_lower_merged(lm_elab *e, el_inst *model) {
  results all = {
      .prefix = "merged",
  };
  if (e->edits && e->edits->has_adapters)
    func_make(e, model, LM_FUNC_MERGED, merged_add, &all);
}

// ---- @begin

// The value, in the scope of the instance, of the parameter's type. V_ERROR: reported.
static el_val initial(lm_elab *e, el_inst *inst, const el_param *p) {
  el_frame frame, *was = el_inst_enter(e, inst, &frame);
  e->begins = true;
  if (inst->host)
    el_bind_name(e, LM_SYM(e->c, "w"), el_adapted_weight(e, inst), false);
  el_val v = el_eval(e, p->made);
  e->begins = false;
  e->frame = was;
  if (v.k == V_ERROR)
    return v;
  if (v.k == V_TENSOR && v.kind == p->kind && el_axes_same(&v.axes, &p->axes))
    return v;
  el_val declared = el_tensor(p->kind, &p->axes, NULL);
  lm_diag *d = EL_ERR(e, p->made->loc, E322, p->name, el_show(e, &v), el_show(e, &declared));
  lm_diag_note(e->c, d, p->loc, "declared here");
  return el_error();
}

static void initial_add(lm_elab *e, el_inst *inst, results *out) {
  for (uint32_t i = 0; i < inst->n_params; i++) {
    if (!inst->params[i].made)
      continue;
    el_val v = initial(e, inst, &inst->params[i]);
    if (v.k == V_ERROR)
      return;
    result_add(e, inst, inst->params[i].name, v, out);
  }
}

static bool any_made(const el_inst *inst) {
  for (uint32_t i = 0; i < inst->n_params; i++) {
    if (inst->params[i].made)
      return true;
    for (const el_adapter *a = inst->params[i].adapters; a; a = a->next)
      if (any_made(a->inst))
        return true;
  }
  for (const el_inserted *x = inst->inserted; x; x = x->next)
    if (any_made(x->inst))
      return true;
  for (uint32_t i = 0; i < inst->n_subs; i++) {
    if (inst->subs[i].one && any_made(inst->subs[i].one))
      return true;
    for (int64_t k = 0; inst->subs[i].many && k < inst->subs[i].many->n; k++)
      if (any_made(inst->subs[i].many->of[k]))
        return true;
  }
  return false;
}

void lm_lower_begin(lm_elab *e, el_inst *model) {
  results all = {
      .prefix = "begin",
  };
  if (any_made(model))
    func_make(e, model, LM_FUNC_BEGIN, initial_add, &all);
}
