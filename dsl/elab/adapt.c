// adapt.c - adapters: instances of blocks that compute the uses of a parameter.
//
//   adapt @layers.*.wq = lora(rank = 4)         let q = dot(y, wq, d)
//   ->
//   param layers.#.wq.lora.a: real[d, rank]     let q = lora.use(y, wq, dot(y, wq, d))
//   param layers.#.wq.lora.b: real[rank, g, e]
//
// The axes of the parameter that its uses sum over are the row `..i` of the block, the other ones
// the row `..o`. They follow from a first elaboration of the model without edits, which records
// each use. A value keeps the parameter that it is (el_val.of) as an argument of a call and as a
// name; any operation clears that.
//
// Batch axes, such as that of the experts of a `grouped_dot`, are in neither row: the block is
// written for one matrix. They stand in front of each of its types that has a row, and in `use` for
// a `grouped_dot` a `dot` of rows with such a value is a `grouped_dot` too.
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/prim.h"
#include "dsl/elab/share.h"
#include <string.h>

// ---- roles

el_role *el_role_find(const lm_elab *e, lm_sym base) {
  el_role *r = e->roles;
  while (r && r->base != base)
    r = r->next;
  return r;
}

static void role_record(lm_elab *e, el_role use) {
  el_role *r = el_role_find(e, use.base);
  if (!r) {
    r = LM_NEW(e->a, el_role);
    *r = use;
    r->next = e->roles;
    e->roles = r;
  } else if (!r->other &&
             (r->in != use.in || r->batch != use.batch || r->is_gather != use.is_gather)) {
    r->other = LM_NEW(e->a, el_role);
    *r->other = use;
  }
}

// counts: of a `grouped_dot`; NULL: a `dot`.
static void dot_record(lm_elab *e, const el_val *w, const el_val *other, const el_axes *over,
                       const el_val *counts, lm_loc at) {
  if (!w->of)
    return;
  el_role use = {
      .base = w->of->p->family->base,
      .at = at,
  };
  for (uint32_t k = 0; k < w->axes.n; k++) {
    bool in = el_axes_has(over, w->axes.v[k]);
    use.in |= (uint32_t)in << k;
    bool shared = el_axes_has(&other->axes, w->axes.v[k]) ||
                  (counts && el_axes_has(&counts->axes, w->axes.v[k]));
    use.batch |= (uint32_t)(!in && shared) << k;
  }
  role_record(e, use);
}

void el_gather_record(lm_elab *e, const el_val *table, const el_axis *v, lm_loc at) {
  if (!e->edits || !e->edits->records || !table->of)
    return;
  int k = el_axes_find(&table->axes, v);
  role_record(e, (el_role){.base = table->of->p->family->base,
                           .in = k < 0 ? 0 : 1u << k,
                           .at = at,
                           .is_gather = true});
}

const char *el_role_text(lm_elab *e, const el_axes *axes, const el_role *r) {
  el_axes in = {0};
  for (uint32_t k = 0; k < axes->n; k++)
    if (r->in >> k & 1)
      el_axes_push(e, &in, axes->v[k]);
  return r->is_gather ? "this use selects rows of it"
                      : lm_arena_printf(e->a, "this use sums over %s", el_show_axes(e, &in));
}

// True if the uses of a parameter give its axes a role; reports why not.
static bool has_role(lm_elab *e, const el_param *p, const el_edit *by, const el_role *r,
                     lm_sym path) {
  lm_diag *d;
  if (!r) {
    d = EL_ERR(e, by->at, E305, path);
    lm_diag_note(e->c, d, p->loc, "declared here");
    return false;
  }
  if (!r->other && !r->is_gather)
    return true;
  if (r->other) {
    d = EL_ERR(e, by->at, E306, path);
    lm_diag_note(e->c, d, r->at, "%s", el_role_text(e, &p->axes, r));
    lm_diag_note(e->c, d, r->other->at, "%s", el_role_text(e, &p->axes, r->other));
    return false;
  }
  d = EL_ERR(e, by->at, E307, path, "a table of `gather`");
  lm_diag_note(e->c, d, r->at, "used here");
  return false;
}

// ---- instances

static el_row *row_of(lm_elab *e, const el_param *p, const char *name, uint32_t bits, el_row *up) {
  el_row *r = LM_NEW(e->a, el_row);
  *r = (el_row){
      .name = LM_SYM(e->c, name),
      .up = up,
  };
  for (uint32_t k = 0; k < p->axes.n; k++)
    if (bits >> k & 1)
      el_axes_push(e, &r->axes, p->axes.v[k]);
  return r;
}

static el_inst *adapter_make(lm_elab *e, el_inst *inst, const el_param *p, const el_edit *by,
                             const el_role *role) {
  const char *base = lm_arena_printf(e->a, "%s.%s", p->family->base, by->block.decl->name.text);
  el_inst_site site = {
      .decl = by->block,
      .owner = inst,
      .path = LM_SYM(e->c, base),
      .n_stack = inst->n_stack,
      .added_by = by,
      .host = p->name,
  };
  memcpy(site.stack, inst->stack, sizeof site.stack);
  memcpy(site.index, inst->index, sizeof site.index);
  memcpy(site.stack_name, inst->stack_name, sizeof site.stack_name);
  site.rows = row_of(e, p, "o", ~role->in & ~role->batch, NULL);
  site.rows = row_of(e, p, "i", role->in, site.rows);
  site.rows = row_of(e, p, EL_BATCH_ROW, role->batch, site.rows);
  el_frame frame =
               {
                   .file = e->edits->file,
                   .real = K_REAL,
               },
           *was = e->frame;
  e->frame = &frame;
  el_inst *made = el_inst_make(e, by->call, e->edits->file, &site);
  e->frame = was;
  return made && !made->broken ? made : NULL;
}

void el_adapters_add(lm_elab *e, el_inst *inst, uint32_t param) {
  if (!e->edits || e->edits->records || !e->edits->has_adapters || el_edit_of(inst))
    return;
  el_param *p = &inst->params[param];
  el_adapter **end = &p->adapters;
  lm_sym path = el_inst_path(e, inst, p->name);
  for (uint32_t i = 0; i < e->edits->n; i++) {
    el_edit *x = &e->edits->v[i];
    bool adapts = x->kind == EL_EDIT_ADAPT && lm_pattern_match(e->c, x->pattern, path, NULL);
    if (!adapts || x->failed || el_edit_last(e, EL_EDIT_ADAPT, path, x->block.decl) != x)
      continue;
    const el_role *role = el_role_find(e, p->family->base);
    el_inst *made = has_role(e, p, x, role, path) ? adapter_make(e, inst, p, x, role) : NULL;
    x->failed = !made;
    if (!made)
      continue;
    *end = LM_NEW(e->a, el_adapter);
    **end = (el_adapter){
        .inst = made,
        .by = x,
    };
    end = &(*end)->next;
  }
}

// ---- uses

bool el_is_edited(const lm_elab *e, const el_val *v) {
  return e->edits && !e->bare && v->k == V_TENSOR && v->of &&
         (e->edits->records || v->of->p->adapters);
}

// Between the axes of a use and those of the parameter, which a call may have renamed.
typedef struct renaming {
  el_axes from, to;
} renaming;

static bool renaming_find(lm_elab *e, const el_val *w, const el_val *other, renaming *out) {
  const el_axes *own = &w->of->p->axes;
  for (uint32_t k = 0; k < own->n; k++) {
    if (w->axes.v[k] == own->v[k])
      continue;
    if (el_axes_has(&other->axes, own->v[k]))
      return false;
    el_axes_push(e, &out->from, w->axes.v[k]);
    el_axes_push(e, &out->to, own->v[k]);
  }
  return true;
}

// The parameter with its batch axes and the axes of the row `..i` in front.
static el_val weight_of(el_call_site c, const el_val *w, const el_inst *adapter) {
  el_axes order = {0};
  for (const el_row *r = adapter->rows; r; r = r->up)
    for (uint32_t k = 0; k < r->axes.n; k++)
      el_axes_push(c.e, &order, r->axes.v[k]);
  return el_in_order(c, w->kind, &order, w->v);
}

el_val el_adapted_weight(lm_elab *e, el_inst *adapter) {
  el_inst *host = adapter->owner;
  el_ref ref = el_inst_ref(host);
  ast_expr at = {
      .kind = EX_NAME,
      .loc = adapter->at,
  };
  uint32_t i = 0;
  while (host->params[i].name != adapter->host)
    i++;
  el_val w = el_param_value(e, &ref, &host->params[i]);
  return w.k == V_ERROR ? w : weight_of((el_call_site){.e = e, .x = &at}, &w, adapter);
}

// The result of a method, which has the type of `like`.
static el_val call(el_call_site c, const el_ref *ref, const char *method, const el_val *args,
                   uint32_t n, const el_val *like) {
  el_val r = el_invoke_method(c.e, ref, LM_SYM(c.e->c, method), args, n, c.x->loc);
  return el_edit_result(c.e, ref->inst, method, r, like, c.x->loc);
}

static el_val merge(el_call_site c, const el_adapter *a, const el_ref *ref, const el_val *w) {
  el_val own = weight_of(c, w, a->inst);
  el_val merged = call(c, ref, "merge", &own, 1, &own);
  return merged.k == V_ERROR ? merged : el_in_order(c, w->kind, &w->axes, merged.v);
}

el_val el_merged(lm_elab *e, el_inst *inst, uint32_t param) {
  el_param *p = &inst->params[param];
  el_ref ref = el_inst_ref(inst);
  el_val w = el_param_value(e, &ref, p);
  for (const el_adapter *a = p->adapters; a && w.k != V_ERROR; a = a->next) {
    ref.inst = a->inst;
    if (!el_method_find(a->inst, LM_SYM(e->c, "merge"))) {
      lm_diag *d = EL_ERR(e, a->by->at, E309, a->inst->decl->name.text);
      lm_diag_note(e->c, d, a->inst->decl->name.loc, "declared here");
      return el_error();
    }
    ast_expr at = {
        .kind = EX_NAME,
        .loc = a->by->at,
    };
    w = merge(
        (el_call_site){
            .e = e,
            .x = &at,
        },
        a, &ref, &w);
  }
  return w;
}

// The result of `use`. If w is that of a `grouped_dot`, the rows of x meet the parameters of their
// group.
static el_val call_use(el_call_site c, const el_adapter *a, const el_ref *ref, const el_use *u,
                       const el_val *w, const renaming *by, const el_val *y) {
  lm_elab *e = c.e;
  const el_grouping *was = e->grouping;
  el_grouping groups = {0};
  if (u->counts) {
    groups.rows = el_axes_minus(e, &u->x->axes, u->over).v[0];
    groups.counts = el_rename(e, u->counts, &by->from, &by->to);
    e->grouping = &groups;
  }
  el_val args[3];
  args[0] = el_rename(e, u->x, &by->from, &by->to);
  args[1] = weight_of(c, w, a->inst);
  args[2] = el_rename(e, y, &by->from, &by->to);
  el_val r = call(c, ref, "use", args, 3, &args[2]);
  e->grouping = was;
  return r.k == V_ERROR ? r : el_rename(e, &r, &by->to, &by->from);
}

static el_val apply(el_call_site c, const el_adapter *a, const el_use *u, el_val y) {
  lm_elab *e = c.e;
  renaming by = {0};
  el_ref ref = u->w->of->ref;
  ref.inst = a->inst;
  ref.indexed = NULL;
  ref.each = NULL;
  if (!renaming_find(e, u->w, u->x, &by))
    return EL_FAIL(e, c.x->loc, E307, el_inst_path(e, u->w->of->ref.inst, u->w->of->p->name),
                   "whose axes are renamed");
  el_val own = el_rename(e, u->w, &by.from, &by.to);
  if (el_method_find(a->inst, LM_SYM(e->c, "use")))
    return el_edited(e, call_use(c, a, &ref, u, &own, &by, &y), &y);
  el_val merged = merge(c, a, &ref, &own);
  if (merged.k == V_ERROR)
    return merged;
  merged = el_rename(e, &merged, &by.to, &by.from);
  el_val z = u->counts ? el_grouped_dot(c, u->x, &merged, u->counts, u->over)
                       : el_dot(c, u->x, &merged, u->over);
  return z.k == V_ERROR ? z : el_in_order(c, z.kind, &y.axes, z.v);
}

el_val el_dot_edited(el_call_site c, el_use u, el_val y) {
  lm_elab *e = c.e;
  bool w_edited = el_is_edited(e, u.w);
  if (y.k == V_ERROR || (!el_is_edited(e, u.x) && !w_edited))
    return y;
  if (e->edits->records) {
    dot_record(e, u.w, u.x, u.over, u.counts, c.x->loc);
    dot_record(e, u.x, u.w, u.over, NULL, c.x->loc);
    return y;
  }
  if (el_is_edited(e, u.x) && w_edited)
    return EL_FAIL(e, c.x->loc, E307, u.w->of->p->global, "in a `dot` with another adapted one");
  if (!w_edited)
    u = (el_use){
        .x = u.w,
        .w = u.x,
        .over = u.over,
    };
  for (const el_adapter *a = u.w->of->p->adapters; a && y.k != V_ERROR; a = a->next)
    y = apply(c, a, &u, y);
  return y;
}
