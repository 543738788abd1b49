// value.c - values of the evaluator: constructors, kinds of numbers, renaming of axes.
#include "dsl/elab/elab.h"
#include <math.h>
#include <string.h>

el_val el_error(void) {
  return (el_val){.k = V_ERROR};
}
bool el_any_error(const el_val *v, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (v[i].k == V_ERROR)
      return true;
  return false;
}
el_val el_sized(lm_size s) {
  el_val v = {
      .k = V_NUM,
      .known = lm_size_is_const(s),
      .has_size = true,
      .size = s,
  };
  if (v.known)
    v.num = s.n ? (double)s.t[0].num / (double)s.t[0].den : 0;
  return v;
}
el_val el_whole(lm_elab *e, int64_t v) {
  return el_sized(lm_size_number(e->a, v));
}
el_val el_as_size(lm_elab *e, el_val v) {
  bool whole =
      v.k == V_NUM && v.known && !v.has_size && v.num == floor(v.num) && fabs(v.num) < 0x1p53;
  return whole ? el_whole(e, (int64_t)v.num) : v;
}
el_val el_number(lm_elab *e, double v) {
  return (el_val){
      .k = V_NUM,
      .known = true,
      .num = v,
  };
}
el_val el_unknown_number(void) {
  return (el_val){.k = V_NUM};
}
el_val el_boolean(bool v, bool known) {
  return (el_val){
      .k = V_BOOL,
      .known = known,
      .num = v,
  };
}
el_val el_tensor(el_kind kind, const el_axes *axes, lm_value *v) {
  return (el_val){
      .k = V_TENSOR,
      .kind = kind,
      .axes = *axes,
      .v = v,
  };
}

el_val el_tuple(lm_elab *e, const el_val *items, uint32_t n) {
  el_val *copy = LM_NEW_N(e->a, el_val, n ? n : 1);
  if (n)
    memcpy(copy, items, n * sizeof *copy);
  return (el_val){
      .k = V_TUPLE,
      .items = copy,
      .n = n,
  };
}

bool el_is_optimizer(const el_val *v) {
  return v->k == V_INST && v->ref.inst->decl->kind == DC_OPTIMIZER;
}

bool el_number_value(const el_val *v, double *out) {
  return v->k == V_NUM && v->known ? (*out = v->num, true) : false;
}

const char *el_kind_name(el_kind k) {
  return (const char *[]){"real", "f32", "int", "bool", "number"}[k];
}
el_kind el_kind_of_column(lm_column_id c) {
  return lm_column_table[c].dtype == LM_F32 ? K_F32 : K_INT;
}

lm_dtype el_dtype(const lm_elab *e, el_kind k) {
  return (lm_dtype[]){LM_REAL, LM_F32, LM_INT, LM_BOOL, LM_F64}[k];
}

void el_mark_live(lm_elab *e, const el_val *v) {
  if (v->k == V_TENSOR)
    for (uint32_t i = 0; i < v->axes.n; i++)
      if (!el_axes_has(&e->frame->live, v->axes.v[i]))
        el_axes_push(e, &e->frame->live, v->axes.v[i]);
  if (v->k == V_TUPLE || v->k == V_RECORD)
    for (uint32_t i = 0; i < v->n; i++)
      el_mark_live(e, &v->items[i]);
}

el_val el_rename(lm_elab *e, const el_val *v, const el_axes *from, const el_axes *to) {
  el_val out = *v;
  if (v->k == V_TUPLE || v->k == V_RECORD) {
    out.items = LM_NEW_N(e->a, el_val, v->n ? v->n : 1);
    for (uint32_t i = 0; i < v->n; i++)
      out.items[i] = el_rename(e, &v->items[i], from, to);
  }
  if ((v->k != V_TENSOR && v->k != V_AXES) || from->n == 0)
    return out;
  out.axes = (el_axes){0};
  lm_attr attr = {0};
  for (uint32_t i = 0; i < v->axes.n; i++) {
    int k = el_axes_find(from, v->axes.v[i]);
    el_axis *now = k < 0 ? v->axes.v[i] : to->v[k];
    el_axes_push(e, &out.axes, now);
    if (v->k != V_TENSOR || !v->v || k < 0 || el_axis_ir(e, now) == v->axes.v[i]->ir)
      continue;
    attr.axes[attr.n_axes++] = v->axes.v[i]->ir;
    attr.to[attr.n_to++] = now->ir;
  }
  if (attr.n_axes)
    out.v = lm_emit(&e->b, LM_OP_RENAME, &v->v, 1, &attr, NULL);
  return out;
}
