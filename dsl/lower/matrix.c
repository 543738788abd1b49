// matrix.c - a parameter as the matrices f32[i, o] that an optimizer sees.
//
// The axes that the uses of the parameter sum over are merged into i, and the other ones into o.
// Axes that a `dot` shares with its other operand are batch axes: there is a matrix for each of
// their indices.
#include "dsl/lower/matrix.h"
#include "dsl/elab/edit.h"
#include "dsl/elab/share.h"
#include <string.h>

el_axes lm_tensor_axes(lm_elab *e, const lm_global *g) {
  el_axes axes = {0};
  for (int k = g->n_stack; k < g->type.rank; k++) {
    const lm_axis_info *a = &e->m->axes[g->type.axis[k]];
    lm_sym name = lm_intern_n(e->c->intern, a->name, lm_axis_base_length(a->name));
    el_axis *x = LM_NEW(e->a, el_axis);
    *x = (el_axis){
        .name = name,
        .size = lm_size_number(e->a, a->size),
        .ir = g->type.axis[k],
    };
    el_axes_push(e, &axes, x);
  }
  return axes;
}

// The role of a parameter that an optimizer sees as a matrix; NULL: reported.
static const el_role *role_need(lm_elab *e, const lm_recipe_call *by, const lm_global *g) {
  const el_role *r = el_role_find(e, el_share_base(e, g->name));
  el_axes axes = lm_tensor_axes(e, g);
  uint32_t all = (1u << axes.n) - 1;
  const char *who = by->target.decl->name.text;
  if (r && !r->other && (r->in & ~r->batch) && (all & ~r->in & ~r->batch))
    return r;
  lm_diag *d = !r         ? EL_ERR(e, by->loc, E0EF, who, g->name)
               : r->other ? EL_ERR(e, by->loc, E320, who, g->name)
                          : EL_ERR(e, by->loc, E321, who, g->name);
  lm_diag_note(e->c, d, g->loc, "declared here");
  if (r)
    lm_diag_note(e->c, d, r->at, "%s", el_role_text(e, &axes, r));
  if (r && r->other)
    lm_diag_note(e->c, d, r->other->at, "%s", el_role_text(e, &axes, r->other));
  lm_diag_help(e->c, d, "give it another optimizer: group @%s = (optimizer = adamw(lr = …))",
               g->paths[0]);
  return NULL;
}

static lm_matrix matrix_of(lm_elab *e, const lm_global *g, const el_role *r,
                           const lm_update_type *t) {
  lm_matrix m = {0};
  lm_sym names[LM_MATRIX_ROLES] = {LM_SYM(e->c, "matrices"), t->axes[0], t->axes[1]};
  lm_type taken = g->type;
  for (int k = g->n_stack; k < g->type.rank; k++) {
    uint32_t bit = 1u << (k - g->n_stack);
    int role = r->batch & bit ? LM_MATRIX_BATCH : r->in & bit ? LM_MATRIX_IN : LM_MATRIX_OUT;
    m.of[role][m.n[role]++] = g->type.axis[k];
  }
  for (int role = 0; role < LM_MATRIX_ROLES; role++) {
    int64_t size = 1;
    for (int k = 0; k < m.n[role]; k++)
      size *= lm_axis_size(e->m, m.of[role][k]);
    if (m.n[role] < 2) {
      m.merged[role] = m.n[role] ? m.of[role][0] : 0;
      continue;
    }
    m.merged[role] = lm_axis_shared(e->m, names[role], size, taken);
    if (taken.rank < LM_RANK)
      taken.axis[taken.rank++] = m.merged[role];
  }
  for (int k = 0; k < 2; k++)
    if (t->axes[2 + k]) {
      int64_t size = lm_axis_size(e->m, m.merged[LM_MATRIX_IN + k]);
      m.merged[LM_MATRIX_ROLES + k] = lm_axis_shared(e->m, t->axes[2 + k], size, taken);
      if (taken.rank < LM_RANK)
        taken.axis[taken.rank++] = m.merged[LM_MATRIX_ROLES + k];
    }
  return m;
}

static lm_value *view(lm_elab *e, lm_value *v, const lm_axis *from, int n_from, const lm_axis *to,
                      int n_to) {
  lm_attr a = {
      .n_axes = (uint8_t)n_from,
      .n_to = (uint8_t)n_to,
  };
  memcpy(a.axes, from, sizeof *from * (size_t)n_from);
  memcpy(a.to, to, sizeof *to * (size_t)n_to);
  return lm_emit(&e->b, LM_OP_VIEW, &v, 1, &a, NULL);
}

lm_value *lm_matrix_view(lm_elab *e, const lm_matrix *m, lm_value *v) {
  lm_axis order[LM_RANK];
  int n = 0;
  for (int role = 0; role < LM_MATRIX_ROLES; role++)
    for (int k = 0; k < m->n[role]; k++)
      order[n++] = m->of[role][k];
  v = lm_emit_permute(&e->b, v, order, n);
  for (int role = 0; role < LM_MATRIX_ROLES; role++)
    if (m->n[role] > 1)
      v = view(e, v, m->of[role], m->n[role], &m->merged[role], 1);
  return v;
}

lm_value *lm_matrix_unview(lm_elab *e, const lm_matrix *m, lm_value *v, lm_type to) {
  for (int role = 0; role < LM_MATRIX_ROLES; role++)
    if (m->n[role] > 1)
      v = view(e, v, &m->merged[role], 1, m->of[role], m->n[role]);
  return lm_emit_permute(&e->b, v, to.axis, to.rank);
}

void lm_matrix_axes(lm_elab *e, const lm_matrix *m, const lm_update_type *t, el_axis **out) {
  for (int k = 0; k < 4; k++) {
    lm_axis ir = m->merged[LM_MATRIX_IN + k];
    out[k] = ir ? LM_NEW(e->a, el_axis) : NULL;
    if (ir)
      *out[k] = (el_axis){
          .name = t->axes[k], .size = lm_size_number(e->a, lm_axis_size(e->m, ir)), .ir = ir};
  }
}

bool lm_matrix_find(lm_elab *e, const lm_recipe_call *by, const lm_global *g,
                    const lm_update_type *t, lm_matrix *out) {
  const el_role *role = role_need(e, by, g);
  if (role)
    *out = matrix_of(e, g, role, t);
  return role;
}
