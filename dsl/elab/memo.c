// memo.c - memoized calls: if an evaluation calls a method of the model again with the same
// arguments, it gets the result of the first call. The token metrics need the logits that the loss
// has computed. Training does not memoize, as each call draws different random numbers.
#include "dsl/elab/call.h"
#include <string.h>

struct el_memo_entry {
  const ast_member *method;
  const lm_region *in;
  const el_val *args;
  uint32_t n;
  el_val result;
  struct el_memo_entry *next;
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

static bool same_args(const struct el_memo_entry *m, const el_memo *o) {
  bool same = m->n == o->n;
  for (uint32_t i = 0; same && i < m->n; i++)
    same = same_value(&m->args[i], &o->args[i]);
  return same;
}

// True if every caller can use the result: each of its axes is an axis of the arguments or of the
// model.
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

// Defaults are evaluated inside the call, so calls that use them are not compared.
static bool all_given(const el_invocation *v) {
  bool all = true;
  for (uint32_t i = 0; i < v->sig->n_params; i++)
    all &= v->given[i];
  return all;
}

el_memo el_memo_begin(lm_elab *e, const el_invocation *v, const el_inst *inst,
                      const ast_member *method) {
  el_memo o = {
      .model = inst,
      .method = method,
      .n = v->sig->n_params,
      .sites = e->n_sites,
  };
  o.enabled = e->m && e->mode == EL_EVAL && !inst->owner && all_given(v);
  o.args = LM_NEW_N(e->a, el_val, o.n + 1);
  memcpy(o.args, v->args, o.n * sizeof *o.args); // before the call adapts them
  return o;
}

bool el_memo_find(const lm_elab *e, const el_memo *o, el_val *out) {
  for (const struct el_memo_entry *m = o->enabled ? e->memo : NULL; m; m = m->next)
    if (m->method == o->method && m->in == e->b.at && same_args(m, o)) {
      *out = m->result;
      return true;
    }
  return false;
}

void el_memo_end(lm_elab *e, const el_memo *o, el_val r) {
  el_axes known = {0};
  for (uint32_t i = 0; i < o->n; i++)
    el_known_axes(e, &o->args[i], &known);
  if (!o->enabled || e->n_sites != o->sites || !is_portable(&r, &known, o->model))
    return;
  struct el_memo_entry *m = LM_NEW(e->a, struct el_memo_entry);
  *m = (struct el_memo_entry){o->method, e->b.at, o->args, o->n, r, e->memo};
  e->memo = m;
}
