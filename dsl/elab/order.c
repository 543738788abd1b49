// order.c - warnings about arguments in a wrong order that their types allow.
//
// Arguments exchange their parameters if each has the name of the parameter of another one: `b` and
// `g` of layernorm(x, b, g), whose parameters are x, g and b. Their types are equal, or the call
// would be an error, so that no check of types finds the mistake.
//
// Two `param`s of one type differ only in their initializers and their names. If a function
// multiplies by the one with zeros and adds the one with ones, they were exchanged: its result is 1
// for every x, and x has no gradient.
#include "dsl/elab/call.h"
#include <string.h>

// ---- names

// The index of the parameter that has the name of argument i; UINT32_MAX if there is none.
static uint32_t target_of(const ast_sig *sig, const ast_expr *call, uint32_t i) {
  const ast_arg *a = i < call->n_args ? &call->args[i] : NULL;
  bool is_name = a && a->kind == ARG_POS && (a->expr->kind == EX_NAME || a->expr->kind == EX_FIELD);
  for (uint32_t k = 0; is_name && k < sig->n_params; k++)
    if (sig->params[k].name.text == a->expr->text)
      return k;
  return UINT32_MAX;
}

// The number of arguments that exchange their parameters with argument i, itself included; 0 if
// there are none, or if one of them precedes it.
static uint32_t exchange_size(const ast_sig *sig, const ast_expr *call, uint32_t i) {
  uint32_t n = 1, at = target_of(sig, call, i);
  while (at != UINT32_MAX && at > i && n++ < call->n_args)
    at = target_of(sig, call, at);
  return at == i && n > 1 ? n : 0;
}

static uint32_t count_positional(const ast_expr *call) {
  uint32_t n = 0;
  while (n < call->n_args && call->args[n].kind == ARG_POS)
    n++;
  return n;
}

static void report(lm_elab *e, const ast_sig *sig, const char *what, const ast_expr *call,
                   uint32_t first, uint32_t n) {
  lm_buf names = {0}, by_name = {0};
  uint32_t at = first;
  for (uint32_t i = 0; i < n; i++) {
    lm_sym name = call->args[at].expr->text;
    const char *before = !i ? "" : i + 1 < n ? ", " : " and ";
    lm_buf_printf(&names, "%s'%s'", before, name);
    lm_buf_printf(&by_name, "%s%s = %s", i ? ", " : "", sig->params[at].name.text, name);
    at = target_of(sig, call, at);
  }
  lm_diag *d = LM_REPORT(e->c, call->args[first].expr->loc, W005, names.p, what);
  lm_diag_note(e->c, d, sig->params[first].name.loc, "declared here");
  lm_diag_help(e->c, d, "reorder them; if the order is intended, write %s", by_name.p);
  lm_buf_free(&names);
  lm_buf_free(&by_name);
}

void el_warn_order(lm_elab *e, const ast_sig *sig, const char *what, const ast_expr *call) {
  uint32_t n = count_positional(call);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t size = exchange_size(sig, call, i);
    if (size && size < n)
      report(e, sig, what, call, i, size);
  }
}

// ---- initializers

static bool is_operand(const ast_expr *x, ast_op op, lm_sym name) {
  if (!x)
    return false;
  bool is_a = x->a && x->a->kind == EX_NAME && x->a->text == name;
  bool is_b = x->b && x->b->kind == EX_NAME && x->b->text == name;
  if (x->kind == EX_BINARY && x->op == op && (is_a || is_b))
    return true;
  return is_operand(x->a, op, name) || is_operand(x->b, op, name) || is_operand(x->c, op, name);
}

static bool has_operand(const ast_body *body, ast_op op, lm_sym name) {
  for (uint32_t i = 0; i < body->n; i++)
    if (is_operand(body->v[i]->expr, op, name))
      return true;
  return false;
}

// The parameter of the instance whose method runs that argument a names, with `init`.
static bool is_param(const lm_elab *e, const ast_arg *a, const char *init) {
  const el_ref *self = e->frame->self;
  if (!self || a->kind != ARG_POS || a->expr->kind != EX_NAME)
    return false;
  for (uint32_t i = 0; i < self->inst->decl->members.n; i++) {
    const ast_member *m = self->inst->decl->members.v[i];
    bool has_init = m->kind == MB_PARAM && m->init && m->init->kind == EX_NAME;
    for (uint32_t k = 0; has_init && k < m->names.n; k++)
      if (m->names.v[k].text == a->expr->text)
        return !strcmp(m->init->text, init);
  }
  return false;
}

// The first argument that names a param with `init` and is an operand of `op` in the callee.
static const ast_arg *operand_find(const lm_elab *e, const ast_decl *fn, const ast_expr *call,
                                   ast_op op, const char *init) {
  for (uint32_t i = 0; i < call->n_args && i < fn->sig.n_params; i++)
    if (is_param(e, &call->args[i], init) &&
        has_operand(&fn->body, op, fn->sig.params[i].name.text))
      return &call->args[i];
  return NULL;
}

void el_warn_exchanged(lm_elab *e, const ast_decl *fn, const ast_expr *call) {
  const ast_arg *factor = operand_find(e, fn, call, OP_MUL, "zeros");
  const ast_arg *summand = operand_find(e, fn, call, OP_ADD, "ones");
  if (!factor || !summand)
    return;
  const char *zeros = factor->expr->text, *ones = summand->expr->text;
  lm_diag *d = LM_REPORT(e->c, factor->expr->loc, W008, fn->name.text, zeros, ones);
  lm_diag_note(e->c, d, fn->name.loc, "%s takes %s", fn->name.text,
               lm_sig_names(e->c, &fn->sig, 0));
  lm_diag_help(e->c, d, "exchange '%s' and '%s'", zeros, ones);
}
