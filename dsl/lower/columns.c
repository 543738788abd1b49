// columns.c - see columns.h.
#include "dsl/lower/columns.h"

#include <string.h>

#include "dsl/elab/call.h"

enum {
  UNKNOWN = 8 // the size of an axis in checks that do not read the data
};

static const ast_param *batch_of(const ast_sig *sig) {
  for (uint32_t i = 0; i < sig->n_params; i++) {
    const ast_param *p = &sig->params[i];
    if (p->type && el_type_is(p->type, "Batch"))
      return p;
  }
  return NULL;
}

static lm_sym dim_name(const ast_dim *d) {
  return d->row || d->expr->kind != EX_NAME ? NULL : d->expr->text;
}

// True if the type is int, f32 or real over named axes, of which the first is that of rows.
static bool is_column(const ast_type *t, const ast_type *batch) {
  if (!t || !t->name || batch->n_dims != 2)
    return false;
  if (!t->n_dims || t->n_dims > 1 + LM_COLUMN_AXES)
    return false;
  bool number = el_type_is(t, "int");
  number |= el_type_is(t, "f32");
  number |= el_type_is(t, "real");
  if (!number)
    return false;
  for (uint32_t i = 0; i < t->n_dims; i++)
    if (!dim_name(&t->dims[i]))
      return false;
  return dim_name(&t->dims[0]) == dim_name(&batch->dims[0]);
}

static lm_column_of column_of(const ast_type *t, const ast_type *batch) {
  if (t->n_dims != 2)
    return LM_COLUMN_OF_ROWS;
  return dim_name(&t->dims[1]) == dim_name(&batch->dims[1]) ? LM_COLUMN_OF_POSITIONS
                                                            : LM_COLUMN_OF_DOCUMENTS;
}

static const ast_sig *loss_of(lm_ctx *c, const ast_decl *model) {
  lm_sym name = LM_SYM(c, "loss");
  for (uint32_t i = 0; i < model->members.n; i++) {
    const ast_member *m = model->members.v[i];
    if (m->kind == MB_METHOD && m->names.v[0].text == name)
      return &m->sig;
  }
  return NULL;
}

lm_loss_columns lm_loss_columns_of(lm_ctx *c, const ast_decl *model) {
  lm_loss_columns out = {0};
  const ast_sig *sig = model ? loss_of(c, model) : NULL;
  const ast_param *batch = sig ? batch_of(sig) : NULL;
  for (uint32_t i = 0; batch && i < sig->n_params; i++) {
    const ast_param *p = &sig->params[i];
    if (p == batch || !is_column(p->type, batch->type))
      continue;
    lm_loss_column *x = &LM_PUSH(c->arena, out.v, out.n, out.cap);
    x->name = p->name.text;
    x->loc = p->name.loc;
    x->dtype = el_type_is(p->type, "int") ? LM_INT : LM_F32;
    x->of = column_of(p->type, batch->type);
  }
  return out;
}

// ---- arguments of the function

static const lm_column_shape *shape_of(const lm_loss_call *x, lm_sym name) {
  for (int i = 0; i < x->shapes.n; i++)
    if (!strcmp(x->shapes.v[i].name, name))
      return &x->shapes.v[i];
  return NULL;
}

static lm_sym batch_axis(const lm_loss_call *x, int k) {
  return dim_name(&batch_of(&x->loss->sig)->type->dims[k]);
}

// The axis of a name: of the batch, of the model, or made for an earlier column; NULL: none yet.
static el_axis *axis_known(lm_elab *e, el_inst *model, const lm_loss_call *x, lm_sym name) {
  if (name == batch_axis(x, 0))
    return x->b;
  if (name == batch_axis(x, 1))
    return x->t;
  for (el_axis_bind *b = model->axes; b; b = b->up)
    if (b->name == name)
      return b->axis;
  return el_axis_lookup(e, name);
}

// Axis i of a column; extent: its size in the data, or 0. NULL: reported.
static el_axis *axis_of(lm_elab *e, el_inst *model, const lm_loss_call *x, const ast_param *p,
                        uint32_t i, int64_t extent) {
  lm_sym name = dim_name(&p->type->dims[i]);
  el_axis *a = axis_known(e, model, x, name);
  int64_t size;
  if (!a) {
    a = el_axis_new(e, name, lm_size_number(e->a, extent ? extent : UNKNOWN), 0);
    el_axis_bind_name(e, name, a);
    return a;
  }
  bool differs = extent && lm_size_whole(a->size, &size) && size != extent;
  if (!differs || (a == x->t && x->f->key.id == LM_FUNC_PROBE)) // whose row is longer
    return a;
  lm_diag *d = EL_ERR(e, p->name.loc, E0F3, p->name.text, (long long)extent, name, (long long)size);
  lm_diag_note(e->c, d, x->loss->sig.params[0].name.loc, "`loss` is declared here");
  return NULL;
}

static el_kind kind_of(const ast_type *t) {
  if (el_type_is(t, "int"))
    return K_INT;
  if (el_type_is(t, "real"))
    return K_REAL;
  return K_F32;
}

static bool column_arg(lm_elab *e, el_inst *model, const lm_loss_call *x, const ast_param *p,
                       el_val *out) {
  const ast_param *batch = batch_of(&x->loss->sig);
  if (!batch || !is_column(p->type, batch->type)) {
    lm_diag *d = EL_ERR(e, p->name.loc, E0F2, p->name.text);
    lm_diag_help(e->c, d, "loss(bt: Batch[b, t], %s: f32[b, t]) gives it a value for each position",
                 p->name.text);
    return false;
  }
  const lm_column_shape *shape = shape_of(x, p->name.text);
  if (shape && shape->rank + 1 != (int)p->type->n_dims)
    return EL_REJECT(e, p->name.loc, E0F4, p->name.text, shape->rank + 1, p->type->n_dims);
  el_axes axes = {0};
  for (uint32_t i = 0; i < p->type->n_dims; i++) {
    el_axis *a = axis_of(e, model, x, p, i, shape && i ? shape->extent[i - 1] : 0);
    if (!a)
      return false;
    el_axes_push(e, &axes, a);
  }
  el_kind kind = kind_of(p->type);
  lm_sym name = LM_SYM(e->c, lm_arena_printf(e->a, "%s%s", LM_COLUMN_PREFIX, p->name.text));
  el_kind stored = kind == K_INT ? K_INT : K_F32;
  lm_type type = el_ir_type(e, stored, &axes);
  lm_value *v = lm_arg_add(e->m, x->f->body, type, name);
  if (kind == K_REAL)
    v = lm_emit_cast(&e->b, v, el_dtype(e, K_REAL));
  *out = el_tensor(kind, &axes, v);
  out->name = p->name.text;
  return true;
}

bool lm_loss_args(lm_elab *e, el_inst *model, const lm_loss_call *x, el_val *args) {
  const ast_sig *sig = &x->loss->sig;
  const ast_param *batch = batch_of(sig);
  bool ok = true;
  for (uint32_t i = 0; i < sig->n_params; i++) {
    const ast_param *p = &sig->params[i];
    if (p == batch || (!batch && !i))
      args[i] = *x->batch; // of another type: the call reports it
    else
      ok &= column_arg(e, model, x, p, &args[i]);
  }
  return ok;
}
