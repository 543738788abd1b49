// columns.c - see columns.h.
#include "dsl/lower/columns.h"

#include <string.h>

#include "dsl/elab/call.h"

enum {
  UNKNOWN = 8 // the size of an axis in checks that do not read the data
};

enum {
  TOKENS = 3 // tok, pos and seg, the first parameters of `apply`
};

static bool is_method(lm_ctx *c, const ast_member *m, const char *name) {
  return m->kind == MB_METHOD && m->names.v[0].text == LM_SYM(c, name);
}

static bool is_apply(lm_ctx *c, const ast_member *m) {
  return is_method(c, m, "apply");
}

// tok, pos or seg of `encode`, which takes them by name; LM_COLUMNS: a further column.
static lm_column_id token_column(const ast_param *p) {
  lm_column_id id = lm_column_find(p->name.text);
  return (int)id < TOKENS ? id : LM_COLUMNS;
}

// The parameter whose type names the axes of rows and positions: the batch, or one of tok, pos and
// seg.
static const ast_param *batch_of(const ast_sig *sig) {
  for (uint32_t i = 0; i < sig->n_params; i++) {
    const ast_param *p = &sig->params[i];
    if (p->type && el_type_is(p->type, "Batch"))
      return p;
  }
  for (uint32_t i = 0; i < sig->n_params; i++) {
    const ast_param *p = &sig->params[i];
    if (p->type && p->type->n_dims == 2 && token_column(p) < LM_COLUMNS)
      return p;
  }
  return NULL;
}

// The same for a method; an `encode` without these parameters has the names of `loss`.
static const ast_param *grid_of(lm_ctx *c, const ast_decl *model, const ast_member *m) {
  const ast_param *own = batch_of(&m->sig);
  for (uint32_t i = 0; !own && i < model->members.n; i++)
    if (is_method(c, model->members.v[i], "loss"))
      own = batch_of(&model->members.v[i]->sig);
  return own;
}

// Parameter i is the batch, or one of tok, pos and seg.
static bool is_first(lm_ctx *c, const ast_member *m, uint32_t i) {
  if (is_method(c, m, "encode"))
    return token_column(&m->sig.params[i]) < LM_COLUMNS;
  return is_apply(c, m) ? i < TOKENS : &m->sig.params[i] == batch_of(&m->sig);
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

// The column `prompt` has one type.
static bool is_typed(const ast_param *p, const ast_type *batch) {
  return !lm_column_is_prompt(p->name.text) ||
         (el_type_is(p->type, "int") && column_of(p->type, batch) == LM_COLUMN_OF_POSITIONS);
}

// The number of parameters that the compiler passes: those of `apply` up to the first default.
static uint32_t given(lm_ctx *c, const ast_member *m) {
  uint32_t n = is_apply(c, m) ? 0 : m->sig.n_params;
  while (n < m->sig.n_params && !m->sig.params[n].init)
    n++;
  return n;
}

static bool has_column(const lm_model_columns *all, lm_sym name) {
  for (uint32_t i = 0; i < all->n; i++)
    if (all->v[i].name == name)
      return true;
  return false;
}

static void method_columns(lm_ctx *c, const ast_decl *model, const ast_member *m,
                           lm_model_columns *out) {
  const ast_param *batch = grid_of(c, model, m);
  for (uint32_t i = 0; batch && i < given(c, m); i++) {
    const ast_param *p = &m->sig.params[i];
    bool further = !is_first(c, m, i) && is_column(p->type, batch->type);
    if (!further || has_column(out, p->name.text))
      continue;
    lm_model_column *x = &LM_PUSH(c->arena, out->v, out->n, out->cap);
    x->name = p->name.text;
    x->loc = p->name.loc;
    x->dtype = el_type_is(p->type, "int") ? LM_INT : LM_F32;
    x->of = column_of(p->type, batch->type);
  }
}

lm_model_columns lm_model_columns_of(lm_ctx *c, const ast_decl *model) {
  lm_model_columns out = {0};
  for (uint32_t i = 0; model && i < model->members.n; i++) {
    const ast_member *m = model->members.v[i];
    if (is_apply(c, m) || is_method(c, m, "encode") || is_method(c, m, "loss"))
      method_columns(c, model, m, &out);
  }
  return out;
}

bool lm_model_has_apply(lm_ctx *c, const ast_decl *model) {
  for (uint32_t i = 0; i < model->members.n; i++)
    if (is_method(c, model->members.v[i], "apply"))
      return true;
  return false;
}

bool lm_model_takes_prompt(lm_ctx *c, const ast_decl *model) {
  lm_model_columns all = lm_model_columns_of(c, model);
  for (uint32_t i = 0; i < all.n; i++)
    if (lm_column_is_prompt(all.v[i].name))
      return true;
  return false;
}

bool lm_model_takes_request(lm_ctx *c, const ast_decl *model) {
  lm_model_columns own = {0};
  for (uint32_t i = 0; i < model->members.n; i++)
    if (is_apply(c, model->members.v[i]))
      method_columns(c, model, model->members.v[i], &own);
  for (uint32_t i = 0; i < own.n; i++)
    if (own.v[i].of != LM_COLUMN_OF_POSITIONS)
      return true;
  return false;
}

// ---- arguments of the function

static const lm_column_shape *shape_of(const lm_column_call *x, lm_sym name) {
  for (int i = 0; i < x->shapes.n; i++)
    if (!strcmp(x->shapes.v[i].name, name))
      return &x->shapes.v[i];
  return NULL;
}

static lm_sym batch_axis(const lm_column_call *x, int k) {
  return dim_name(&x->grid->type->dims[k]);
}

// The axis of a name: of the batch, of the model, or made for an earlier column; NULL: none yet.
static el_axis *axis_known(lm_elab *e, el_inst *model, const lm_column_call *x, lm_sym name) {
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
static el_axis *axis_of(lm_elab *e, el_inst *model, const lm_column_call *x, const ast_param *p,
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
  lm_diag_note(e->c, d, x->method->sig.params[0].name.loc, "`%s` is declared here",
               x->method->names.v[0].text);
  return NULL;
}

static el_kind kind_of(const ast_type *t) {
  if (el_type_is(t, "int"))
    return K_INT;
  if (el_type_is(t, "real"))
    return K_REAL;
  return K_F32;
}

// The argument of that name, which `loss` and `apply` share. NULL: it has another type.
static lm_value *arg_of(lm_elab *e, const lm_func *f, lm_type type, lm_sym name) {
  for (uint32_t i = 0; i < f->body->n_args; i++)
    if (f->body->args[i]->name == name)
      return lm_type_equal(f->body->args[i]->type, type) ? f->body->args[i] : NULL;
  return lm_arg_add(e->m, f->body, type, name);
}

static bool column_arg(lm_elab *e, el_inst *model, const lm_column_call *x, const ast_param *p,
                       el_val *out) {
  const ast_param *batch = x->grid;
  if (!batch || !is_column(p->type, batch->type) || !is_typed(p, batch->type)) {
    lm_diag *d = EL_ERR(e, p->name.loc, E0F2, p->name.text);
    bool apply = is_apply(e->c, x->method);
    lm_diag_help(e->c, d, "%s%s: %s[b, t]) gives it a value for each position",
                 apply ? "apply(tok: int[b, t], pos: int[b, t], seg: int[b, t], "
                       : "loss(bt: Batch[b, t], ",
                 p->name.text, lm_column_is_prompt(p->name.text) ? "int" : "f32");
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
  lm_value *v = arg_of(e, x->f, el_ir_type(e, stored, &axes), name);
  if (!v)
    return EL_REJECT(e, p->name.loc, E0CA, p->name.text);
  if (kind == K_REAL)
    v = lm_emit_cast(&e->b, v, el_dtype(e, K_REAL));
  *out = el_tensor(kind, &axes, v);
  out->name = p->name.text;
  return true;
}

bool lm_column_args(lm_elab *e, el_inst *model, const lm_column_call *call, el_val *args,
                    uint32_t *n) {
  const ast_sig *sig = &call->method->sig;
  lm_column_call x = *call;
  bool by_name = is_method(e->c, x.method, "encode");
  uint32_t used = 0;
  bool ok = true;
  x.grid = grid_of(e->c, model->decl, x.method);
  *n = given(e->c, x.method);
  for (uint32_t i = 0; i < *n; i++) {
    bool first = is_first(e->c, x.method, i);
    first |= !batch_of(sig) && !i && !by_name; // of another type: the call reports it
    uint32_t at = by_name ? token_column(&sig->params[i]) : used++;
    if (first && at < x.n_first)
      args[i] = x.first[at];
    else
      ok &= column_arg(e, model, &x, &sig->params[i], &args[i]);
  }
  return ok;
}
