// once.c - methods of the model that an evaluation calls again with the same arguments are not
// run again: what is measured besides the loss asks for the logits that the loss has made. Not in
// training, where each call has random numbers of its own.
#include "dsl/elab/call.h"
#include <string.h>

struct el_made {
  const ast_member *method;
  const lm_region *in;
  const el_val *args;
  uint32_t n;
  el_val result;
  struct el_made *next;
};

static bool same_value(const el_val *x, const el_val *y) {
  if (x->k != y->k || x->kind != y->kind || x->v != y->v || x->n != y->n)
    return false;
  bool same =
      x->k == V_TENSOR ? el_axes_same(&x->axes, &y->axes) : x->k == V_RECORD || x->k == V_TUPLE;
  for (uint32_t i = 0; same && x->k != V_TENSOR && i < x->n; i++)
    same = same_value(&x->items[i], &y->items[i]);
  return same;
}

static bool same_args(const struct el_made *m, const el_once *o) {
  bool same = m->n == o->n;
  for (uint32_t i = 0; same && i < m->n; i++)
    same = same_value(&m->args[i], &o->args[i]);
  return same;
}

// Whether its axes mean the same to every caller: they are the arguments' or the model's.
static bool is_portable(const el_val *r, const el_axes *known, const el_inst *model) {
  bool portable = r->k == V_TENSOR || r->k == V_TUPLE;
  for (uint32_t i = 0; r->k == V_TENSOR && i < r->axes.n; i++) {
    bool found = el_axes_has(known, r->axes.v[i]);
    for (const el_axis_bind *b = model->axes; b && !found; b = b->up)
      found = b->axis == r->axes.v[i];
    portable &= found;
  }
  for (uint32_t i = 0; r->k == V_TUPLE && i < r->n; i++)
    portable &= is_portable(&r->items[i], known, model);
  return portable;
}

// A default is evaluated by the call.
static bool all_given(const el_invocation *v) {
  bool all = true;
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    all &= v->given[i];
  return all;
}

el_once el_once_begin(lm_elab *e, const el_invocation *v, const el_inst *inst,
                      const ast_member *method) {
  el_once o = {.model = inst, .method = method, .n = v->sig->n_params, .sites = e->n_sites};
  o.asked = e->m && e->mode == EL_EVAL && !inst->owner && all_given(v);
  o.args = LM_NEW_N(e->a, el_val, o.n + 1);
  memcpy(o.args, v->args, o.n * sizeof *o.args); // before the call adapts them
  return o;
}

bool el_once_find(const lm_elab *e, const el_once *o, el_val *out) {
  for (const struct el_made *m = o->asked ? e->made : NULL; m; m = m->next)
    if (m->method == o->method && m->in == e->b.at && same_args(m, o)) {
      *out = m->result;
      return true;
    }
  return false;
}

void el_once_end(lm_elab *e, const el_once *o, el_val r) {
  el_axes known = {0};
  for (uint32_t i = 0; i < o->n; i++)
    el_known_axes(e, &o->args[i], &known);
  if (!o->asked || e->n_sites != o->sites || !is_portable(&r, &known, o->model))
    return;
  struct el_made *m = LM_NEW(e->a, struct el_made);
  *m = (struct el_made){o->method, e->b.at, o->args, o->n, r, e->made};
  e->made = m;
}
