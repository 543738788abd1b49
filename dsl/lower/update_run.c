// update_run.c - the body of a method of an optimizer.
//
// `update` is written for one element of a parameter. It is evaluated once, over values with the
// axes of all elements. With a module, they are arguments of @update. Without one, for an optimizer
// that the recipe does not use, they are only types. `inner.update(p, g, k)` of an argument is
// evaluated in the body that calls it: for elements of a value, for the whole value or, in loops
// over them, for its matrices. It changes the states of the argument.
#include "dsl/elab/call.h"
#include "dsl/lower/optimizer.h"
#include <string.h>

// ---- the values that a method sees

typedef struct body {
  el_wrapper wrapper; // first
  const lm_optimizer_values *in;
  const el_frame *frame;
  el_axes axes;                // of p
  el_axis *matrix[4];          // by lm_update_type, if `update` sees a matrix
  const lm_optimizer **called; // the arguments of which a method was called
  uint32_t n_called, cap_called;
} body;

// The axes of a value as an optimizer sees them, of elements or not.
static el_axes axes_seen(lm_elab *e, const el_axes *of, bool elements) {
  el_axes out = {0};
  for (uint32_t k = 0; k < of->n; k++) {
    el_axis *x = of->v[k];
    if (x->element != elements) {
      x = LM_NEW(e->a, el_axis);
      *x = *of->v[k];
      x->element = elements;
    }
    el_axes_push(e, &out, x);
  }
  return out;
}

static void axes_bind(lm_elab *e, body *b) {
  const lm_optimizer *o = b->in->o;
  el_frame *frame = e->frame;
  b->axes = b->in->args[0].axes;
  switch (o->type.form) {
  case LM_UPDATE_ELEMENT: b->axes = axes_seen(e, &b->axes, true); break;
  case LM_UPDATE_TENSOR:
    b->axes = axes_seen(e, &b->axes, false);
    el_row_bind(e, o->type.axes[0], b->axes);
    break;
  case LM_UPDATE_MATRIX:
    memcpy(b->matrix, b->in->matrix, sizeof b->matrix);
    if (b->in->m)
      lm_matrix_axes(e, b->in->m[o->id], &o->type, b->matrix);
    b->axes = (el_axes){0};
    for (int k = 0; k < 4; k++)
      if (b->matrix[k]) {
        el_axes_push(e, k < 2 ? &b->axes : &frame->live, b->matrix[k]);
        el_axis_bind_name(e, o->type.axes[k], b->matrix[k]);
      }
    break;
  }
  for (uint32_t k = 0; k < b->axes.n; k++)
    el_axes_push(e, &frame->live, b->axes.v[k]);
}

static lm_sym state_name(lm_elab *e, const lm_optimizer *o, const lm_lowered_state *s) {
  return LM_SYM(e->c, s->name + strlen(o->prefix));
}

static el_axes state_axes(lm_elab *e, const body *b, uint32_t k) {
  return lm_optimizer_state_axes(e, &b->in->all->states.v[k], &b->axes, b->matrix);
}

static void values_bind(lm_elab *e, const body *b, const ast_member *m) {
  const lm_optimizer *o = b->in->o;
  for (uint32_t k = o->first; k < o->first + o->own; k++) {
    el_axes own = state_axes(e, b, k);
    el_val s = el_tensor(K_F32, &own, b->in->state[k]);
    s.name = state_name(e, o, &b->in->all->states.v[k]);
    el_bind_name(e, s.name, s, b->in->method != LM_METHOD_EVAL);
  }
  for (uint32_t i = 0; i < m->sig.n_params; i++) {
    el_val x = b->in->args[i];
    if (i < 2)
      x = el_tensor(K_F32, &b->axes, x.v);
    el_bind_name(e, m->sig.params[i].name.text, x, false);
  }
}

// ---- calls of the methods of arguments

static lm_optimizer *argument_of(const body *b, const el_inst *inst) {
  const lm_optimizer *o = b->in->o;
  for (uint32_t i = 0; i < o->inst->decl->sig.n_params; i++)
    if (o->inner[i] && (o->inner[i]->inst == inst || o->inner[i]->eval_inst == inst))
      return o->inner[i];
  LM_BUG("no argument is %s", inst->decl->name.text);
}

// True if the call is one that the method may have: inner.update(p, g, k) in update,
// inner.eval(p) in eval.
static bool check_call(lm_elab *e, const body *b, const ast_expr *x) {
  const char *name = x->a->a->kind == EX_NAME ? x->a->a->text : "inner";
  bool is_eval = b->in->method == LM_METHOD_EVAL;
  bool ok = b->in->method != LM_METHOD_EXTRA && !strcmp(x->a->text, is_eval ? "eval" : "update") &&
            x->n_args == (is_eval ? 1 : 3);
  for (uint32_t i = 0; i < x->n_args; i++)
    ok &= x->args[i].kind == ARG_POS;
  if (!ok || e->frame != b->frame)
    return EL_REJECT(e, x->loc, E334, name, name);
  return !e->nested || is_eval || EL_REJECT(e, x->loc, E335, name);
}

static el_val argument(lm_elab *e, const body *b, const ast_expr *x, bool of_p) {
  el_val v = el_eval(e, x);
  if (of_p)
    return el_over_axes(e, v, &b->axes, x->loc);
  v = el_as_tensor(e, &v, x->loc);
  el_val want = el_tensor(K_NUM, &(el_axes){0}, NULL);
  if (v.k != V_TENSOR || (v.kind == K_NUM && !v.axes.n))
    return v;
  return EL_FAIL(e, x->loc, E0B5, el_show(e, &want), el_show(e, &v));
}

static el_val call(el_wrapper *w, lm_elab *e, const ast_expr *x, const el_inst *inst) {
  body *b = (body *)w;
  if (!check_call(e, b, x))
    return el_error();
  lm_optimizer_values in = *b->in;
  el_val out = el_tensor(K_F32, &b->axes, NULL);
  in.o = argument_of(b, inst);
  in.matrix = b->matrix[0] ? b->matrix : in.matrix;
  LM_PUSH(e->a, b->called, b->n_called, b->cap_called) = in.o;
  for (uint32_t i = 0; i < x->n_args; i++) {
    in.args[i] = argument(e, b, x->args[i].expr, i < 2);
    if (in.args[i].k != V_TENSOR)
      return el_error();
  }
  if (!in.o->update)
    return out; // it is only checked
  if (in.method == LM_METHOD_EVAL)
    in.o = lm_optimizer_view(in.o);
  if (!in.o)
    return in.args[0];
  return lm_optimizer_run(e, &in, &out) ? out : el_error();
}

// Reports an argument whose update, or eval if it has one, the body does not call.
static bool calls_check(lm_elab *e, const body *b, const ast_member *m) {
  const lm_optimizer *o = b->in->o;
  const ast_sig *sig = &o->inst->decl->sig;
  bool is_eval = b->in->method == LM_METHOD_EVAL;
  for (uint32_t i = 0; i < sig->n_params && b->in->method != LM_METHOD_EXTRA; i++) {
    bool called = !o->inner[i] || (is_eval && !lm_optimizer_view(o->inner[i]));
    for (uint32_t k = 0; k < b->n_called; k++)
      called |= b->called[k] == o->inner[i];
    if (called)
      continue;
    lm_diag *d = EL_ERR(e, m->loc, E336, o->inst->decl->name.text, m->names.v[0].text,
                        sig->params[i].name.text, m->names.v[0].text);
    if (o->inner[i]->call)
      lm_diag_note(e->c, d, o->inner[i]->call->loc, "%s is this %s", sig->params[i].name.text,
                   o->inner[i]->inst->decl->name.text);
    return false;
  }
  return true;
}

// ---- the body

static el_val bound(const lm_elab *e, lm_sym name) {
  const el_bind *b = el_names_find(&e->frame->names, name);
  return b ? b->val : el_error();
}

// The new values of the states of the optimizer. False: reported.
static bool states_read(lm_elab *e, const body *b, const ast_member *m) {
  const lm_optimizer *o = b->in->o;
  bool ok = true;
  for (uint32_t k = o->first; k < o->first + o->own; k++) {
    el_axes own = state_axes(e, b, k);
    el_val v = bound(e, state_name(e, o, &b->in->all->states.v[k]));
    v = el_over_axes(e, v, &own, m->loc);
    ok &= v.k == V_TENSOR;
    b->in->state[k] = v.v;
  }
  return ok;
}

static bool result_read(lm_elab *e, const body *b, const ast_member *m, el_val *out) {
  bool has_result = b->in->method != LM_METHOD_EXTRA || m->sig.ret;
  el_val p = b->in->args[0];
  if (!has_result && e->frame->has_result)
    return EL_REJECT(e, m->loc, E331, m->names.v[0].text);
  if (has_result && !e->frame->has_result) {
    if (e->budget)
      EL_ERR(e, m->body.close, E077,
             lm_arena_printf(e->a, "%s.%s", e->frame->what, m->names.v[0].text));
    return false;
  }
  if (has_result) {
    el_val v = el_over_axes(e, e->frame->result, &b->axes, e->frame->result.loc);
    if (v.k != V_TENSOR)
      return false;
    p.v = v.v;
  }
  *out = p;
  return b->in->method == LM_METHOD_EVAL || states_read(e, b, m);
}

static bool body_run(lm_elab *e, const lm_optimizer_values *in, el_val *out) {
  const lm_optimizer *o = in->o;
  const ast_member *m = in->method == LM_METHOD_EVAL    ? o->eval
                        : in->method == LM_METHOD_EXTRA ? o->extra
                                                        : o->update;
  el_ref self;
  el_frame frame = lm_optimizer_frame(in->method == LM_METHOD_EVAL ? o->eval_inst : o->inst, &self);
  el_frame *was = e->frame;
  el_wrapper *outer = e->wrapper;
  body b = {
      .wrapper = {call},
      .in = in,
      .frame = &frame,
  };
  uint32_t before = e->c->n_rejects;
  e->frame = &frame;
  e->wrapper = &b.wrapper;
  axes_bind(e, &b);
  values_bind(e, &b, m);
  el_run(e, &m->body);
  bool ok = result_read(e, &b, m, out) && e->c->n_rejects == before && calls_check(e, &b, m);
  e->wrapper = outer;
  e->frame = was;
  return ok;
}

// ---- the matrices of a parameter

typedef struct stack {
  const lm_optimizer_values *in;
  lm_value **v; // p, g and the states of the optimizer and its arguments
  uint32_t n;
} stack;

// True if value k has the axes of the parameter.
static bool is_of_parameter(const stack *s, uint32_t k) {
  return k < 2 || !s->in->all->states.v[s->in->o->first + k - 2].has_own_axes;
}

static bool matrix_run(lm_elab *e, const lm_optimizer_values *in, el_val *out) {
  const lm_optimizer *o = in->o;
  const lm_matrix *m = in->m[o->id];
  lm_axis batch = m->merged[LM_MATRIX_BATCH];
  lm_optimizer_values own = *in;
  stack s = {
      .in = in,
      .v = LM_NEW_N(e->a, lm_value *, o->n + 2),
      .n = o->n + 2,
  };
  el_axis *matrix[4];
  lm_op *loop = NULL;
  lm_type whole = in->args[0].v->type;
  lm_matrix_axes(e, m, &o->type, matrix);
  own.matrix = matrix;
  for (uint32_t k = 0; k < s.n; k++)
    s.v[k] = k < 2 ? in->args[k].v : in->state[o->first + k - 2];
  for (uint32_t k = 0; k < s.n; k++)
    if (is_of_parameter(&s, k))
      s.v[k] = lm_matrix_view(e, m, s.v[k]);
  if (batch) {
    loop = lm_loop_begin(&e->b, lm_axis_size(e->m, batch), batch, NULL, 0);
    for (uint32_t k = 0; k < s.n; k++)
      s.v[k] = lm_emit(&e->b, LM_OP_AT, (lm_value *[]){s.v[k], loop->body->args[0]}, 2,
                       &(lm_attr){.imm = {0, 1}, .n_imm = 2}, NULL);
  }
  el_axes none = {0};
  for (int k = 0; k < 2; k++)
    own.args[k] = el_tensor(K_F32, &none, s.v[k]);
  memcpy(in->state + o->first, s.v + 2, sizeof *s.v * o->n);
  if (!body_run(e, &own, out))
    return false;
  s.v[1] = out->v;
  memcpy(s.v + 2, in->state + o->first, sizeof *s.v * o->n);
  if (loop) {
    lm_loop_end(&e->b, loop, NULL, 0, s.v + 1, s.n - 1);
    memcpy(s.v + 1, loop->out, sizeof *s.v * (s.n - 1));
  }
  for (uint32_t k = 1; k < s.n; k++)
    if (is_of_parameter(&s, k))
      s.v[k] = lm_matrix_unview(e, m, s.v[k], whole);
  memcpy(in->state + o->first, s.v + 2, sizeof *s.v * o->n);
  *out = in->args[0];
  out->v = s.v[1];
  return true;
}

bool lm_optimizer_run(lm_elab *e, const lm_optimizer_values *in, el_val *out) {
  bool divides = in->o->type.form == LM_UPDATE_MATRIX && !in->matrix;
  return divides ? matrix_run(e, in, out) : body_run(e, in, out);
}

// ---- an optimizer that the recipe does not use

// True if the body has a `let (a, b) = name`.
static bool is_tuple(const ast_body *body, lm_sym name) {
  for (uint32_t i = 0; i < body->n; i++) {
    const ast_stmt *st = body->v[i];
    if (st->is_tuple && st->expr && st->expr->kind == EX_NAME && st->expr->text == name)
      return true;
  }
  return false;
}

// An optimizer of which nothing is known.
static lm_optimizer *unknown_optimizer(lm_elab *e, const ast_param *p) {
  lm_optimizer *o = LM_NEW(e->a, lm_optimizer);
  ast_decl *d = LM_NEW(e->a, ast_decl);
  *d = (ast_decl){
      .kind = DC_OPTIMIZER,
      .name = p->name,
  };
  o->inst = LM_NEW(e->a, el_inst);
  *o->inst = (el_inst){.decl = d};
  return o;
}

// Without a default an argument may have any value; if the body destructures it, it is not a
// number.
static el_val unknown_argument(lm_elab *e, lm_optimizer *o, uint32_t k, const ast_member *update) {
  const ast_param *p = &o->inst->decl->sig.params[k];
  if (p->init)
    return el_eval(e, p->init);
  if (lm_is_optimizer_param(p)) {
    o->inner[k] = unknown_optimizer(e, p);
    return (el_val){
        .k = V_INST,
        .ref = {.inst = o->inner[k]->inst},
    };
  }
  return is_tuple(&update->body, p->name.text) ? el_error() : el_unknown_number();
}

static void bind_arguments(lm_elab *e, lm_optimizer *o) {
  const ast_sig *sig = &o->inst->decl->sig;
  o->inner = LM_NEW_N(e->a, lm_optimizer *, sig->n_params + 1);
  for (uint32_t i = 0; i < sig->n_params; i++)
    el_names_add(e, &o->inst->vals, sig->params[i].name.text, unknown_argument(e, o, i, o->update),
                 false);
}

static el_axis *symbolic_axis(lm_elab *e, lm_sym name, el_axes *out) {
  el_axis *x = el_axis_new(e, name, lm_size_dim(e->a, name), 0);
  el_axes_push(e, out, x);
  return x;
}

// The axes of a parameter of unknown shape; matrix: those of t.
static el_axes symbolic_axes(lm_elab *e, lm_update_type t, el_axis **matrix) {
  el_axes axes = {0}, unused = {0};
  switch (t.form) {
  case LM_UPDATE_ELEMENT: symbolic_axis(e, LM_SYM(e->c, "el"), &axes)->element = true; break;
  case LM_UPDATE_TENSOR: symbolic_axis(e, t.axes[0], &axes)->opaque = true; break;
  case LM_UPDATE_MATRIX:
    for (int k = 0; k < 4; k++) {
      matrix[k] = t.axes[k] ? symbolic_axis(e, t.axes[k], k < 2 ? &axes : &unused) : NULL;
      if (matrix[k])
        matrix[k]->size = lm_size_dim(e->a, t.axes[k % 2]);
    }
    break;
  }
  return axes;
}

static void run_symbolic(lm_elab *e, lm_optimizer *o) {
  const ast_decl *d = o->inst->decl;
  lm_optimizers all = {
      .v = &o,
      .n = 1,
  };
  el_axis *matrix[4] = {0};
  el_axes none = {0}, axes = symbolic_axes(e, o->type, matrix);
  lm_optimizer_states(e, d, "", &all.states);
  o->own = o->n = all.states.n;
  bind_arguments(e, o);
  *o->eval_inst = *o->inst;
  el_where_check_all(e, &(el_where){&d->sig, d->name.text, d->loc, NULL});
  el_val p = el_tensor(K_F32, &axes, NULL), step = el_tensor(K_NUM, &none, NULL), out;
  el_val number = el_tensor(K_F32, &none, NULL);
  lm_optimizer_values in = {
      .all = &all,
      .o = o,
      .args = {p, p, step, number, number},
      .state = LM_NEW_N(e->a, lm_value *, all.states.n + 1),
      .matrix = matrix,
  };
  lm_optimizer_run(e, &in, &out);
  in.method = LM_METHOD_EXTRA;
  if (o->extra)
    lm_optimizer_run(e, &in, &out);
  in.method = LM_METHOD_EVAL;
  if (o->eval)
    lm_optimizer_run(e, &in, &out);
}

void lm_optimizer_check(lm_elab *e, const lm_file *file, ast_decl *d) {
  el_inst inst = {
      .decl = d,
      .file = file,
      .path = LM_SYM(e->c, ""),
  };
  el_inst eval_inst = inst;
  el_ref self;
  el_frame frame = lm_optimizer_frame(&inst, &self);
  el_mode mode = e->mode;
  el_frame *was = e->frame;
  e->frame = &frame;
  e->mode = EL_UPDATE;
  lm_optimizer o = {
      .inst = &inst,
      .eval_inst = &eval_inst,
      .update = lm_optimizer_members(e, d),
      .eval = lm_optimizer_eval(d),
      .extra = lm_optimizer_extra_method(d),
      .prefix = "",
  };
  if (o.update) {
    o.type = o.merged = lm_update_type_of(d, o.update);
    run_symbolic(e, &o);
  }
  e->mode = mode;
  e->frame = was;
}
