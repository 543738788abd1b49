// expr.c - evaluation of expressions.
#include "dsl/elab/elab.h"
#include <string.h>

bool el_budget(lm_elab *e, lm_loc at) {
  if (e->budget) {
    e->budget--;
    return true;
  }
  if (!e->exhausted)
    EL_ERR(e, at, E090, (int)EL_EXPRESSIONS, "expressions");
  e->exhausted = true;
  return false;
}

void el_count_check(lm_elab *e, uint32_t n, const char *what, lm_loc at) {
  if (n < EL_MAX_ITEMS || e->exhausted)
    return;
  EL_ERR(e, at, E090, EL_MAX_ITEMS, what);
  e->exhausted = true;
  e->budget = 0;
}

static el_val eval_field(lm_elab *e, const ast_expr *x) {
  el_val a = el_eval(e, x->a);
  if (a.k == V_ERROR)
    return a;
  if (a.k == V_RECORD)
    for (uint32_t i = 0; i < a.n; i++)
      if (a.names[i] == x->text)
        return a.items[i];
  if (a.k == V_INST && !el_is_optimizer(&a)) {
    el_frame *f = e->frame, inside = {.up = f,
                                      .file = a.ref.inst->file,
                                      .self = &a.ref,
                                      .live = f->live,
                                      .real = K_REAL};
    bool found;
    e->frame = &inside;
    el_val v = el_lookup_member(e, x->text, &found);
    e->frame = f;
    if (found)
      return v;
  }
  const char *near = a.k == V_RECORD ? lm_nearest(x->text, a.names, (int)a.n) : NULL;
  lm_diag *d = EL_ERR(e, x->loc, E042, el_show(e, &a), x->text);
  if (near)
    lm_diag_help(e->c, d, "did you mean '%s'?", near);
  else if (a.k == V_RECORD)
    lm_diag_help(e->c, d,
                 "a Batch has tok, pos, seg, next and w; further columns of the data are "
                 "parameters of `loss`: loss(bt: Batch[b, t], reward: f32[b, t])");
  else if (e->mode == EL_UPDATE && x->text == LM_SYM(e->c, "update") && x->a->kind == EX_NAME)
    lm_diag_help(e->c, d, "declare the parameter as an optimizer, `%s: optimizer`", x->a->text);
  else if (!el_help_word(e, d, x->text))
    el_help_function(e, d, x->text);
  return el_error();
}

static el_val eval_if(lm_elab *e, const ast_expr *x) {
  el_val c = el_eval(e, x->c);
  if (c.k == V_BOOL && c.known)
    return el_eval(e, c.num != 0 ? x->a : x->b);
  if (el_request_unroll(e, &c))
    return el_error();
  bool undecided = c.k == V_NUM && !c.known && !e->m;
  if (c.k != V_BOOL && c.k != V_ERROR && !undecided) {
    lm_diag *d = EL_ERR(e, x->c->loc, E043, el_show(e, &c));
    lm_diag_help(e->c, d, "select(condition, a, b) chooses for each element of a tensor");
    return el_error();
  }
  el_val a = el_eval(e, x->a);
  el_val b = el_eval(e, x->b); // the condition is unknown while checking, so both must be valid
  return a.k == V_ERROR ? b : a.k == V_NUM && b.k == V_NUM ? el_unknown_number() : a;
}

static el_val eval_neg(lm_elab *e, const ast_expr *x) {
  el_val v = el_eval(e, x->a);
  el_val zero = el_whole(e, 0);
  if (v.k == V_TENSOR && (v.kind == K_REAL || v.kind == K_F32 || v.kind == K_NUM)) {
    if (v.v)
      v.v = lm_emit1(&e->b, LM_OP_NEG, v.v);
    v.name = NULL;
    return v;
  }
  return el_binary(e, OP_SUB, &zero, &v, x->loc);
}

static el_val eval_tuple(lm_elab *e, const ast_expr *x) {
  el_val *items = LM_NEW_N(e->a, el_val, x->n_args + 1);
  for (uint32_t i = 0; i < x->n_args; i++) {
    if (x->args[i].kind != ARG_POS)
      return EL_FAIL(e, x->args[i].loc, E044);
    items[i] = el_eval(e, x->args[i].expr);
  }
  return el_tuple(e, items, x->n_args);
}

// The last index of a tuple or list of n, for messages.
static const char *last_index(const lm_elab *e, int64_t n) {
  return n < INT64_MAX ? lm_arena_printf(e->a, "%lld", (long long)n - 1) : "the last one";
}

static el_val eval_index(lm_elab *e, const ast_expr *x) {
  el_val a = el_eval(e, x->a);
  int64_t i;
  if (a.k == V_ERROR)
    return a;
  if (x->n_args == 1 && x->args[0].kind == ARG_POS && (a.k == V_INSTS || (a.k == V_TUPLE && a.n))) {
    el_val at = el_as_size(e, el_eval(e, x->args[0].expr));
    if (at.k == V_ERROR || (at.k == V_NUM && !at.known) || el_request_unroll(e, &at))
      return el_error();
    int64_t n = a.k == V_TUPLE ? (int64_t)a.n : a.insts->count;
    if (at.k == V_NUM && at.has_size && lm_size_whole(at.size, &i) && i >= 0 && i < n)
      return a.k == V_TUPLE ? a.items[i] : el_insts_at(e, &a, &(el_index){NULL, i, 1});
    return EL_FAIL(e, x->args[0].loc, E045, last_index(e, n), el_show(e, &at));
  }
  lm_diag *d = EL_ERR(e, x->loc, E09C, el_show(e, &a));
  if (a.k == V_TENSOR)
    lm_diag_help(e->c, d, "use slice(x, e -> a, first, step), split, unstack or gather");
  return el_error();
}

// Percent is a number in expressions. The other units are for recipes.
static el_val eval_quantity(lm_elab *e, const ast_expr *x) {
  if (strcmp(x->unit, "%") == 0)
    return el_number(e, x->num / 100);
  lm_diag *d = EL_ERR(e, x->loc, E09B, x->unit);
  lm_diag_help(e->c, d, "write %g; an argument for a parameter of type `steps` may have a unit",
               x->num);
  return el_error();
}

static el_val eval(lm_elab *e, const ast_expr *x) {
  switch (x->kind) {
  case EX_NAME: return el_lookup(e, x->text, x->loc, true);
  case EX_NUMBER: return x->is_int ? el_whole(e, x->inum) : el_number(e, x->num);
  case EX_QUANTITY: return eval_quantity(e, x);
  case EX_STRING:
    return (el_val){
        .k = V_STRING,
        .known = true,
        .text = x->text,
    };
  case EX_PATTERN:
    return (el_val){
        .k = V_PATTERN,
        .known = true,
        .text = x->text,
    };
  case EX_TUPLE: return eval_tuple(e, x);
  case EX_LIST: return eval_tuple(e, x);
  case EX_CALL: return el_call(e, x);
  case EX_INDEX: return eval_index(e, x);
  case EX_FIELD: return eval_field(e, x);
  case EX_NEG: return eval_neg(e, x);
  case EX_IF: return eval_if(e, x);
  case EX_ERROR: return el_error();
  case EX_BINARY: break;
  }
  if (x->op == OP_IN) {
    el_axes inner = {0}, outer = {0};
    if (!el_axis_list(e, x->a, &inner) || !el_axis_list(e, x->b, &outer))
      return el_error();
    return el_boolean(el_axes_subset(&inner, &outer), true);
  }
  el_val a = el_eval(e, x->a);
  el_val b = el_eval(e, x->b);
  return el_binary(e, x->op, &a, &b, x->loc);
}

el_val el_eval(lm_elab *e, const ast_expr *x) {
  if (!el_budget(e, x->loc))
    return el_error();
  if (e->m)
    e->b.loc = x->loc;
  el_val v = eval(e, x);
  bool emitted = v.k == V_TENSOR && v.v;
  return emitted && !el_size_check(e, v.v->type, x->loc) ? el_error() : v;
}
