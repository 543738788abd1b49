// loss.c - the function @loss or @eval of a method of the model that returns a sum and a weight.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/lower/internal.h"

static bool is_pair(lm_elab *e, const el_val *r, lm_loc where) {
  if (r->k == V_TUPLE && r->n == 2)
    return true;
  lm_diag *d = EL_ERR(e, r->loc.file ? r->loc : where, E0A1, el_show(e, r));
  lm_diag_help(e->c, d,
               "loss(bt: Batch[b, t]) -> (f32, f32) { ... return (sum(l * bt.w), sum(bt.w)) }");
  return false;
}

bool lm_loss_call(lm_elab *e, el_inst *model, const lm_entry *x, const ast_member *loss,
                  const lm_lower_options *o, el_val *out) {
  lm_sym fields[LM_COLUMNS];
  for (int c = 0; c < LM_COLUMNS; c++)
    fields[c] = x->cols[c].name;
  el_val bt = {
      .k = V_RECORD,
      .n = LM_COLUMNS,
      .items = (el_val *)x->cols,
      .names = fields,
  };
  el_val *args = LM_NEW_N(e->a, el_val, loss->sig.n_params + 1);
  lm_column_call call = {x->f, loss, x->b, x->t, &bt, 1, o->columns};
  uint32_t n;
  if (!lm_column_args(e, model, &call, args, &n))
    return false;
  el_ref self = {.inst = model};
  *out = el_invoke_method(e, &self, loss->names.v[0].text, args, n, (lm_loc){0});
  return out->k != V_ERROR && is_pair(e, out, loss->loc);
}

lm_value *lm_loss_item(lm_elab *e, const el_val *r, int i, lm_loc where) {
  el_val v = el_adapt(e, &r->items[i], K_F32, where);
  if (v.k == V_TENSOR && !v.axes.n && v.kind == K_F32)
    return v.v;
  if (v.k != V_ERROR)
    EL_ERR(e, r->items[i].loc.file ? r->items[i].loc : where, E0CF, el_show(e, r));
  return NULL;
}

void lm_loss_make(lm_elab *e, el_inst *model, const ast_member *loss, lm_func_key key, el_mode mode,
                  const lm_lower_options *o) {
  el_val r;
  lm_entry x = lm_entry_begin(e, key, o->rows, o->seq, 0, mode, model->file);
  x.b->micro_batches = o->micro_batches;
  if (!lm_loss_call(e, model, &x, loss, o, &r))
    return;
  lm_value *out[4 + LM_EMITS_MAX];
  lm_sym names[4 + LM_EMITS_MAX] = {lm_port_name(e, LM_PORT_SUM), lm_port_name(e, LM_PORT_WEIGHT)};
  uint32_t n = 2;
  for (int i = 0; i < 2; i++)
    if (!(out[i] = lm_loss_item(e, &r, i, loss->loc)))
      return;
  if (!el_emits_check(e, loss->loc, e->n_emits))
    return;
  for (uint32_t i = 0; i < e->n_emits && !key.extra; i++) {
    names[n] = LM_SYM(e->c, lm_arena_printf(e->a, "%s%s", e->emits[i].name, e->emits[i].suffix));
    out[n++] = e->emits[i].val.v;
  }
  if (mode == EL_EVAL)
    lm_lower_tokens(e, model, &x, o, out, names, &n);
  lm_entry_finish(e, x.f, out, names, n);
}
