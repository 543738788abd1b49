// recipe_call.c - calls of optimizers, schedules and models: arguments against the declaration, quantities as numbers.
#include "dsl/recipe_read.h"
#include <math.h>
#include <string.h>

static bool holds_quantity(const ast_expr *e) {
  if (!e) return false;
  if (e->kind == EX_QUANTITY) return true;
  for (uint32_t i = 0; i < e->n_args; i++)
    if (holds_quantity(e->args[i].expr)) return true;
  return holds_quantity(e->a) || holds_quantity(e->b) || holds_quantity(e->c);
}

static ast_expr *number_expr(const lm_reader *d, const ast_expr *from, double x) {
  ast_expr *e = LM_NEW(d->R->c->arena, ast_expr);
  bool is_int = x == floor(x) && fabs(x) < 0x1p53;
  *e = (ast_expr){
      .kind = EX_NUMBER, .loc = from->loc, .num = x, .is_int = is_int, .inum = is_int ? (int64_t)x : 0, .height = 1};
  e->spelling = LM_SYM(d->R->c, lm_arena_printf(d->R->c->arena, "%.17g", x));
  return e;
}

static const ast_expr *plain_quantity(const lm_reader *d, const ast_expr *e) {
  if (!strcmp(e->unit, "%")) return number_expr(d, e, e->num / 100);
  if (!strcmp(e->unit, "steps")) return number_expr(d, e, e->num);
  if (!strcmp(e->unit, "tokens") && d->r->batch) return number_expr(d, e, e->num / (double)d->r->batch);
  lm_error(d->R->c, e->loc, "E202", "an argument in %s has no meaning here; steps and percent have",
           lm_schema_list(d->R->c, e->unit));
  return number_expr(d, e, e->num);
}

// The expression with its quantities as plain numbers; itself if it has none.
static const ast_expr *plain(const lm_reader *d, const ast_expr *e) {
  if (!holds_quantity(e)) return e;
  if (e->kind == EX_QUANTITY) return plain_quantity(d, e);
  ast_expr *copy = LM_NEW(d->R->c->arena, ast_expr);
  *copy = *e;
  copy->a = (ast_expr *)plain(d, e->a);
  copy->b = (ast_expr *)plain(d, e->b);
  copy->c = (ast_expr *)plain(d, e->c);
  copy->args = LM_NEW_N(d->R->c->arena, ast_arg, e->n_args + 1);
  for (uint32_t i = 0; i < e->n_args; i++) {
    copy->args[i] = e->args[i];
    copy->args[i].expr = (ast_expr *)plain(d, e->args[i].expr);
  }
  return copy;
}

int lm_read_param(const ast_sig *sig, const char *name) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (!strcmp(sig->params[i].name.text, name)) return (int)i;
  return -1;
}

void lm_read_unknown_arg(const lm_reader *d, const ast_decl *decl, uint32_t skip, const ast_arg *a) {
  const char *names[64];
  int n = 0;
  for (uint32_t i = skip; i < decl->sig.n_params && n < (int)LM_COUNT(names); i++)
    names[n++] = decl->sig.params[i].name.text;
  lm_diag *e = lm_error(d->R->c, a->name_loc, "E203", "%s has no argument '%s'", decl->name.text, a->name);
  lm_diag_note(d->R->c, e, decl->name.loc, "%s is declared here", decl->name.text);
  lm_read_suggest(d, e, lm_nearest(a->name, names, n));
}

// Which parameter argument i is for, -1 after a report. The first `skip` parameters are not the caller's to give.
static int param_of(const lm_reader *d, const ast_decl *decl, uint32_t skip, const ast_arg *a, uint32_t i) {
  int at = a->kind == ARG_POS ? (int)(skip + i) : a->kind == ARG_NAMED ? lm_read_param(&decl->sig, a->name) : -1;
  if (a->kind == ARG_NAMED && at < (int)skip) {
    lm_read_unknown_arg(d, decl, skip, a);
    return -1;
  }
  if (at >= 0 && at < (int)decl->sig.n_params) return at;
  uint32_t most = decl->sig.n_params > skip ? decl->sig.n_params - skip : 0;
  lm_error(d->R->c, a->loc, "E203", "%s takes %u arguments at the most", decl->name.text, most);
  return -1;
}

static bool check_args(const lm_reader *d, const lm_recipe_call *call, uint32_t skip) {
  const ast_decl *decl = call->target.decl;
  uint32_t before = d->R->c->n_errors;
  bool *seen = LM_NEW_N(d->R->c->arena, bool, decl->sig.n_params + 1);
  for (uint32_t i = 0; i < call->n_args; i++) {
    int at = param_of(d, decl, skip, &call->args[i], i);
    if (at < 0) return false;
    if (seen[at]) lm_error(d->R->c, call->args[i].loc, "E203", "'%s' is given twice", decl->sig.params[at].name.text);
    seen[at] = true;
  }
  for (uint32_t i = skip; i < decl->sig.n_params; i++) {
    if (seen[i] || decl->sig.params[i].init) continue;
    lm_diag *e = lm_error(d->R->c, call->loc, "E204", "%s needs '%s'", call->name, decl->sig.params[i].name.text);
    lm_diag_note(d->R->c, e, decl->sig.params[i].name.loc, "it has no default");
  }
  return d->R->c->n_errors == before;
}

const ast_arg *lm_read_args(const lm_reader *d, const ast_arg *args, uint32_t n) {
  ast_arg *copy = LM_NEW_N(d->R->c->arena, ast_arg, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    copy[i] = args[i];
    copy[i].expr = (ast_expr *)plain(d, args[i].expr);
  }
  return copy;
}

lm_recipe_call lm_read_call(const lm_reader *d, const ast_expr *e, const lm_file *file, ast_decl_kind kind,
                            uint32_t skip) {
  lm_recipe_call call = {.name = lm_callee(e), .loc = e->loc, .file = file};
  call.target = lm_read_decl(d, file, kind, call.name, e->loc);
  call.args = lm_read_args(d, e->args, e->n_args);
  call.n_args = e->n_args;
  if (call.target.decl && !check_args(d, &call, skip)) call.target = (lm_decl_ref){0};
  return call;
}
