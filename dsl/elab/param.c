// param.c - parameters of an instance: their types, initial values and uses.
#include "dsl/elab/call.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/inst.h"
#include "dsl/elab/share.h"
#include <string.h>

lm_sym el_inst_path(lm_elab *e, const el_inst *inst, lm_sym name) {
  const char *out = "";
  size_t done = 0;
  for (int k = 0; k < inst->n_stack; k++) {
    size_t n = strlen(inst->stack_name[k]);
    out = lm_arena_printf(e->a, "%s%.*s.%lld", out, (int)(n - done), inst->path + done,
                          (long long)inst->index[k]);
    done = n;
  }
  return LM_SYM(e->c, lm_arena_printf(e->a, "%s%s%s%s", out, inst->path + done,
                                      inst->path[0] && name[0] ? "." : "", name));
}

// True if x calls a method of the block: it computes the initial value in @begin.
static bool is_made(const el_inst *inst, const ast_expr *x) {
  return x->kind == EX_CALL && x->a->kind == EX_NAME && el_method_find(inst, x->a->text);
}

static lm_init initializer(lm_elab *e, el_inst *inst, const ast_expr *x) {
  static const struct {
    const char *name;
    lm_init_kind kind;
    uint32_t n;
    const char *form;
  } table[] = {
      {"zeros", LM_INIT_ZEROS, 0, "zeros"},
      {"ones", LM_INIT_ONES, 0, "ones"},
      {"const", LM_INIT_CONST, 1, "const(value)"},
      {"normal", LM_INIT_NORMAL, 1, "normal(std), whose mean is 0"},
      {"uniform", LM_INIT_UNIFORM, 2, "uniform(low, high)"},
  };
  const char *names[LM_COUNT(table)];
  bool call = x->kind == EX_CALL && x->a->kind == EX_NAME;
  lm_sym name = call ? x->a->text : x->kind == EX_NAME ? x->text : NULL;
  for (size_t i = 0; i < LM_COUNT(table); i++) {
    names[i] = table[i].name;
    if (!name || strcmp(name, table[i].name))
      continue;
    uint32_t n = call ? x->n_args : 0;
    if (n != table[i].n) {
      lm_diag *d = EL_ERR(e, x->loc, E084, name, table[i].n, table[i].n == 1 ? "" : "s");
      lm_diag_help(e->c, d, "write %s", table[i].form);
      return (lm_init){0};
    }
    double v[2] = {0};
    for (uint32_t k = 0; k < n; k++) {
      el_val a = x->args[k].expr ? el_inst_eval(e, inst, x->args[k].expr) : el_error();
      if (!el_number_value(&a, &v[k]) && a.k != V_ERROR && (a.k != V_NUM || e->m))
        EL_ERR(e, x->args[k].loc, E0A8, name, el_show(e, &a));
    }
    if (table[i].kind == LM_INIT_NORMAL && v[0] < 0)
      EL_ERR(e, x->loc, E0A9, v[0]);
    return (lm_init){table[i].kind, v[0], v[1]};
  }
  lm_diag *d = name ? EL_ERR(e, x->loc, E0AA, name) : EL_ERR(e, x->loc, E0AB);
  if (name && el_help_word(e, d, name))
    return (lm_init){0};
  const char *near = name ? lm_nearest(name, names, (int)LM_COUNT(table)) : NULL;
  lm_diag_help(e->c, d,
               near ? "did you mean '%s'?" : "normal(std), uniform(a, b), zeros, ones or const(c)",
               near);
  return (lm_init){0};
}

void el_inst_add_params(lm_elab *e, el_inst *inst, const ast_member *m) {
  el_frame frame, *was = el_inst_enter(e, inst, &frame);
  el_axes axes = {0};
  bool ok;
  el_kind kind = el_kind_of_type(e, m->type, &ok);
  bool is_state = m->kind == MB_STATE;
  if (ok && is_state && kind != K_F32) {
    EL_ERR(e, m->type->loc, E08A, el_kind_name(kind));
    ok = false;
  }
  if (ok && kind != K_REAL && kind != K_F32) {
    EL_ERR(e, m->type->loc, E086, el_kind_name(kind));
    ok = false;
  }
  const el_axes *batch = el_type_batch(e, m->type);
  for (uint32_t k = 0; k < batch->n; k++)
    el_axes_push(e, &axes, batch->v[k]);
  for (uint32_t i = 0; i < m->type->n_dims; i++) {
    const ast_dim *d = &m->type->dims[i];
    if (d->row && el_row_is_of_instance(e, d->row)) {
      const el_row *r = el_row_find(e, d->row);
      for (uint32_t k = 0; k < r->axes.n; k++)
        el_axes_push(e, &axes, r->axes.v[k]);
      continue;
    }
    if (d->row || d->expr->kind != EX_NAME) {
      lm_diag *g = EL_ERR(e, d->loc, E071);
      if (!d->row && d->expr->kind == EX_NUMBER)
        lm_diag_help(e->c, g, "declare it first: dim n = %s, and write n here", d->expr->spelling);
      else
        lm_diag_help(e->c, g, "declare it first: dim n = …, and write n here");
      ok = false;
      continue;
    }
    if (!el_axis_list(e, d->expr, &axes))
      ok = false;
  }
  for (uint32_t i = 0; i < axes.n; i++)
    if (el_axes_find(&axes, axes.v[i]) < (int)i) {
      EL_ERR(e, axes.n == m->type->n_dims ? m->type->dims[i].loc : m->type->loc, E056,
             axes.v[i]->name);
      ok = false;
    }
  e->frame = was;
  bool made = is_made(inst, m->init);
  lm_init init = made ? (lm_init){0} : initializer(e, inst, m->init);
  for (uint32_t i = 0; i < m->names.n; i++) {
    const ast_name *n = &m->names.v[i];
    el_param p = {
        .name = n->text,
        .axes = axes,
        .kind = kind,
        .loc = n->loc,
        .init = init,
    };
    p.made = made ? m->init : NULL;
    p.is_state = is_state;
    if (!ok) {
      el_inst_bind(e, inst, n->text, el_error());
      continue;
    }
    LM_PUSH(e->a, inst->params, inst->n_params, inst->cap_params) = p;
    if (e->m)
      el_share_declare(e, inst);
  }
}

uint32_t el_param_indices(lm_elab *e, const el_ref *ref, const el_param *p, lm_value **in,
                          lm_attr *attr) {
  *attr = (lm_attr){.sym = p->global};
  for (int k = 0; k < ref->n; k++) {
    el_index at = el_share_index(ref, p, k);
    in[k] = at.loop ? at.loop : lm_emit_const(&e->b, lm_type_make(LM_INT, NULL, 0), 0);
    attr->imm[attr->n_imm++] = at.first;
    attr->imm[attr->n_imm++] = at.step;
  }
  return (uint32_t)ref->n;
}

el_val el_param_value(lm_elab *e, const el_ref *ref, el_param *p) {
  el_val v = el_tensor(p->kind, &p->axes, NULL);
  v.name = p->name;
  v.loc = p->loc;
  el_mark_live(e, &v);
  if (!e->m)
    return v;
  if (!p->share) { // the model is being instantiated, so that only the type counts
    v.v = lm_emit_const(&e->b, el_ir_type(e, p->kind, &p->axes), 0);
    return v;
  }
  if (e->begins && p->made)
    return EL_FAIL(e, p->made->loc, E323, p->name);
  if (e->in_library)
    e->library_failed = true;
  lm_attr attr;
  lm_value *in[4];
  uint32_t n = el_param_indices(e, ref, p, in, &attr);
  v.v = lm_emit_cast(&e->b, lm_emit(&e->b, LM_OP_PARAM, in, n, &attr, NULL), el_dtype(e, p->kind));
  if (e->edits && e->edits->has_adapters) {
    el_origin *of = LM_NEW(e->a, el_origin);
    *of = (el_origin){p, *ref};
    v.of = of;
  }
  return v;
}
