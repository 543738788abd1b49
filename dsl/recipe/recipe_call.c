// recipe_call.c - calls of optimizers, schedules and models: checks the arguments against the
// declaration and converts quantities to numbers.
#include "dsl/recipe/recipe_read.h"
#include <math.h>
#include <string.h>

// The parameter to which an argument is bound.
typedef struct binding {
  const ast_decl *decl;
  const ast_param *param;
  uint32_t implied;
} binding;

static bool holds_quantity(const ast_expr *e) {
  if (!e)
    return false;
  if (e->kind == EX_QUANTITY)
    return true;
  for (uint32_t i = 0; i < e->n_args; i++)
    if (holds_quantity(e->args[i].expr))
      return true;
  return holds_quantity(e->a) || holds_quantity(e->b) || holds_quantity(e->c);
}

static ast_expr *number_expr(const lm_reader *d, const ast_expr *from, double x) {
  ast_expr *e = LM_NEW(d->R->c->arena, ast_expr);
  bool is_int = x == floor(x) && fabs(x) < 0x1p53;
  *e = (ast_expr){.kind = EX_NUMBER,
                  .loc = from->loc,
                  .num = x,
                  .is_int = is_int,
                  .inum = is_int ? (int64_t)x : 0,
                  .height = 1};
  e->spelling = LM_SYM(d->R->c, lm_arena_printf(d->R->c->arena, "%.17g", x));
  return e;
}

// ---- quantities among the arguments
//
// The declared type of a parameter determines the accepted units: a parameter of type `steps` is a
// duration and accepts steps, tokens, percent of the run and epochs; all others accept plain
// numbers and percent.

static const char *label_of(const lm_reader *d, const binding *bound) {
  return lm_arena_printf(d->R->c->arena, "%s of %s", bound->param->name.text,
                         bound->decl->name.text);
}

static bool is_duration(const ast_param *p) {
  return p && p->type && p->type->name && !strcmp(p->type->name, "steps");
}

static const ast_expr *plain_quantity(const lm_reader *d, const binding *bound, const ast_expr *e) {
  const char *name = bound->param->name.text;
  if (!strcmp(e->unit, "%"))
    return number_expr(d, e, e->num / 100);
  lm_diag *g = LM_REPORT(d->R->c, e->loc, E238, label_of(d, bound), lm_unit_name(e->unit));
  lm_diag_note(d->R->c, g, bound->param->name.loc, "declared here");
  bool time = !strcmp(e->unit, "steps") || !strcmp(e->unit, "tokens") || !strcmp(e->unit, "epochs");
  if (bound->implied && time)
    lm_diag_help(d->R->c, g, "to make it a duration, declare it as %s: steps", name);
  return number_expr(d, e, e->num);
}

// The expression with percent as plain numbers; the same tree if it contains no quantity.
static const ast_expr *plain(const lm_reader *d, const binding *bound, const ast_expr *e) {
  if (!holds_quantity(e))
    return e;
  if (e->kind == EX_QUANTITY)
    return plain_quantity(d, bound, e);
  ast_expr *copy = LM_NEW(d->R->c->arena, ast_expr);
  *copy = *e;
  copy->a = (ast_expr *)plain(d, bound, e->a);
  copy->b = (ast_expr *)plain(d, bound, e->b);
  copy->c = (ast_expr *)plain(d, bound, e->c);
  copy->args = LM_NEW_N(d->R->c->arena, ast_arg, e->n_args + 1);
  for (uint32_t i = 0; i < e->n_args; i++) {
    copy->args[i] = e->args[i];
    copy->args[i].expr = (ast_expr *)plain(d, bound, e->args[i].expr);
  }
  return copy;
}

// For a duration that is in error: one step, which the constraints of the callee accept.
static const ast_expr *any_duration(const lm_reader *d, const ast_expr *from) {
  return number_expr(d, from, 1);
}

// share * LM_SCHEDULE_RUN, the number of steps of the run.
static const ast_expr *share_of_run(const lm_reader *d, const ast_expr *from, double share) {
  ast_expr *run = LM_NEW(d->R->c->arena, ast_expr);
  ast_expr *e = LM_NEW(d->R->c->arena, ast_expr);
  *run = (ast_expr){
      .kind = EX_NAME, .loc = from->loc, .text = LM_SYM(d->R->c, LM_SCHEDULE_RUN), .height = 1};
  *e = (ast_expr){.kind = EX_BINARY,
                  .op = OP_MUL,
                  .loc = from->loc,
                  .a = run,
                  .b = (ast_expr *)number_expr(d, from, share),
                  .height = 2};
  return e;
}

static const ast_expr *epochs_as_share(const lm_reader *d, const ast_expr *e, double epochs) {
  const lm_recipe_run *run = &d->r->run;
  if (run->unit == LM_RECIPE_UNIT_EPOCHS && run->n > 0)
    return share_of_run(d, e, epochs / run->n);
  lm_diag *g = LM_REPORT(d->R->c, e->loc, E221);
  if (run->unit)
    lm_diag_note(d->R->c, g, d->r->run_loc, "`run` is set here");
  lm_diag_help(d->R->c, g, "give the duration in percent of the run, in steps or in tokens");
  return any_duration(d, e);
}

static const ast_expr *report_duration(const lm_reader *d, const binding *bound, const ast_expr *e,
                                       const lm_amount *a) {
  const char *units =
      bound->implied ? "steps, tokens, epochs or percent of the run" : "steps or tokens";
  const char *label = label_of(d, bound);
  lm_diag *g = a->unit ? LM_REPORT(d->R->c, e->loc, E23A, label, units, lm_unit_name(a->unit))
                       : LM_REPORT(d->R->c, e->loc, E239, label, units);
  bool share = bound->implied && a->value > 0 && a->value < 1;
  lm_diag_note(d->R->c, g, bound->param->name.loc, "declared here");
  if (!a->unit && share)
    lm_diag_help(d->R->c, g, "write %g%%", 100 * a->value);
  else if (!a->unit)
    lm_diag_help(d->R->c, g, "write %g steps", a->value);
  return any_duration(d, e);
}

static const ast_expr *duration(const lm_reader *d, const binding *bound, const ast_expr *e,
                                const lm_file *file) {
  lm_amount a;
  if (!lm_amount_eval(d->R, file, e, false, &a))
    return any_duration(d, e);
  bool percent = a.unit && !strcmp(a.unit, "%");
  if (a.value < 0 || (percent && a.value > 100)) {
    LM_REPORT(d->R->c, e->loc, E224, bound->param->name.text, bound->decl->name.text,
              a.value < 0 ? "0 or more" : "at most 100% of the run");
    return any_duration(d, e);
  }
  if (percent && bound->implied)
    return share_of_run(d, e, a.value / 100);
  switch (lm_read_unit(a.unit)) {
  case LM_RECIPE_UNIT_STEPS: return number_expr(d, e, a.value);
  case LM_RECIPE_UNIT_TOKENS:
    return d->r->batch ? number_expr(d, e, a.value / (double)d->r->batch) : any_duration(d, e);
  case LM_RECIPE_UNIT_EPOCHS:
    return bound->implied ? epochs_as_share(d, e, a.value) : report_duration(d, bound, e, &a);
  default: return !a.unit && a.value == 0 ? number_expr(d, e, 0) : report_duration(d, bound, e, &a);
  }
}

bool lm_is_optimizer_param(const ast_param *p) {
  return p->type && p->type->name && !strcmp(p->type->name, "optimizer");
}

int lm_read_param(const ast_sig *sig, const char *name) {
  for (uint32_t i = 0; i < sig->n_params; i++)
    if (!strcmp(sig->params[i].name.text, name))
      return (int)i;
  return -1;
}

void lm_read_unknown_arg(const lm_reader *d, const ast_decl *decl, uint32_t skip,
                         const ast_arg *a) {
  const char *names[64];
  int n = 0;
  for (uint32_t i = skip; i < decl->sig.n_params && n < (int)LM_COUNT(names); i++)
    names[n++] = decl->sig.params[i].name.text;
  lm_diag *e = LM_REPORT(d->R->c, a->name_loc, E203, decl->name.text, a->name);
  lm_diag_note(d->R->c, e, decl->name.loc, "%s takes %s", decl->name.text,
               lm_sig_names(d->R->c, &decl->sig, skip));
  const char *path = decl->kind == DC_OPTIMIZER ? "recipe.optimizer"
                     : decl->kind == DC_FN      ? "recipe.schedule"
                                                : "recipe.model";
  lm_recipe_help(d->R->c, e, path, a->name, names, n);
}

// The index of the parameter of argument i; -1 after an error. The first `skip` parameters cannot
// be given.
static int param_of(const lm_reader *d, const ast_decl *decl, uint32_t skip, const ast_arg *a,
                    uint32_t i) {
  int at = a->kind == ARG_POS     ? (int)(skip + i)
           : a->kind == ARG_NAMED ? lm_read_param(&decl->sig, a->name)
                                  : -1;
  if (a->kind == ARG_NAMED && at < (int)skip) {
    lm_read_unknown_arg(d, decl, skip, a);
    return -1;
  }
  if (at >= 0 && at < (int)decl->sig.n_params)
    return at;
  uint32_t max = decl->sig.n_params > skip ? decl->sig.n_params - skip : 0;
  LM_REPORT(d->R->c, a->loc, E23F, decl->name.text, max);
  return -1;
}

// A parameter that has no argument is reported only if all arguments have a parameter: another name
// may stand for it.
static bool check_args(const lm_reader *d, const lm_recipe_call *call, uint32_t skip) {
  const ast_decl *decl = call->target.decl;
  uint32_t before = d->R->c->n_errors;
  bool *seen = LM_NEW_N(d->R->c->arena, bool, decl->sig.n_params + 1);
  bool known = true;
  for (uint32_t i = 0; i < call->n_args; i++) {
    if (!known && call->args[i].kind == ARG_POS)
      continue; // one too many was reported
    int at = param_of(d, decl, skip, &call->args[i], i);
    known &= at >= 0;
    if (at < 0)
      continue;
    if (seen[at])
      LM_REPORT(d->R->c, call->args[i].loc, E23E, decl->sig.params[at].name.text);
    seen[at] = true;
  }
  for (uint32_t i = skip; known && i < decl->sig.n_params; i++) {
    if (seen[i] || decl->sig.params[i].init)
      continue;
    lm_diag *e = LM_REPORT(d->R->c, call->loc, E204, call->name, decl->sig.params[i].name.text);
    lm_diag_note(d->R->c, e, decl->sig.params[i].name.loc, "it has no default");
  }
  return d->R->c->n_errors == before;
}

// The parameter of argument i; NULL if there is none, which check_args reports.
static const ast_param *param_for(const ast_sig *sig, uint32_t implied, const ast_arg *a,
                                  uint32_t i) {
  int at = a->kind == ARG_NAMED ? lm_read_param(sig, a->name) : (int)(implied + i);
  return at >= 0 && at < (int)sig->n_params ? &sig->params[at] : NULL;
}

// Warns of a learning rate above 1 of an optimizer of the library whose steps have the size of lr,
// not of the gradient.
static void warn_of_rate(const lm_reader *d, const binding *bound, const ast_expr *x) {
  const char *name = bound->decl->name.text;
  lm_program *p = d->R->p;
  bool scales = !strcmp(name, "sgd") || !strcmp(name, "sam");
  if (bound->decl->kind != DC_OPTIMIZER || strcmp(bound->param->name.text, "lr") || scales)
    return;
  bool own = !p->optim || lm_program_find(p, p->optim, name).decl != bound->decl;
  if (!own && x->kind == EX_NUMBER && x->num > 1)
    LM_REPORT(d->R->c, x->loc, W21B, x->num, name);
}

const ast_arg *lm_read_args(const lm_reader *d, const ast_decl *decl, uint32_t implied,
                            const ast_arg *args, uint32_t n, const lm_file *file) {
  ast_arg *copy = LM_NEW_N(d->R->c->arena, ast_arg, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    binding bound = {decl, param_for(&decl->sig, implied, &args[i], i), implied};
    copy[i] = args[i];
    if (!args[i].expr || !bound.param || lm_is_optimizer_param(bound.param))
      continue;
    warn_of_rate(d, &bound, args[i].expr);
    copy[i].expr = (ast_expr *)(is_duration(bound.param) ? duration(d, &bound, args[i].expr, file)
                                                         : plain(d, &bound, args[i].expr));
  }
  return copy;
}

// True if x calls an optimizer.
static bool names_optimizer(const lm_reader *d, const lm_file *file, const ast_expr *x) {
  lm_decl_ref ref = {0};
  if (x && lm_callee(x))
    ref = lm_callable_find(d->R, file, lm_callee(x));
  return ref.decl && ref.decl->kind == DC_OPTIMIZER;
}

// Reads the argument x of a parameter into *out if that is an optimizer. False: reported.
static bool read_inner(const lm_reader *d, const lm_recipe_call *call, const ast_param *p,
                       const ast_expr *x, lm_recipe_call *out) {
  const char *name = p->name.text, *of = call->target.decl->name.text;
  bool wanted = lm_is_optimizer_param(p);
  if (wanted && lm_callee(x)) {
    *out = lm_read_call(d, x, call->file, DC_OPTIMIZER, 0);
    return out->target.decl;
  }
  lm_arena *a = d->R->c->arena;
  if (wanted)
    LM_REPORT(d->R->c, x->loc, E23B, lm_arena_printf(a, "%s of %s", name, of),
              "a call of an optimizer", "a value of another form");
  else if (names_optimizer(d, call->file, x))
    lm_diag_note(d->R->c, LM_REPORT(d->R->c, x->loc, E33B, name, of, name), p->name.loc,
                 "declared here");
  else
    return true;
  return false;
}

// The calls that are arguments of parameters of type `optimizer`. False: reported.
static bool read_inners(const lm_reader *d, lm_recipe_call *call) {
  const ast_sig *sig = &call->target.decl->sig;
  lm_recipe_call *inner = LM_NEW_N(d->R->c->arena, lm_recipe_call, sig->n_params + 1);
  bool ok = true;
  for (uint32_t i = 0; i < call->n_args; i++) {
    const ast_param *p = param_for(sig, 0, &call->args[i], i);
    ok &= read_inner(d, call, p, call->args[i].expr, &inner[p - sig->params]);
  }
  call->inner = inner;
  return ok;
}

lm_recipe_call lm_read_call(const lm_reader *d, const ast_expr *e, const lm_file *file,
                            ast_decl_kind kind, uint32_t skip) {
  lm_recipe_call call = {
      .name = lm_callee(e),
      .loc = e->loc,
      .file = file,
  };
  call.target = lm_read_decl(d, file, kind, call.name, e->loc);
  call.args = e->args;
  call.n_args = e->n_args;
  if (call.target.decl)
    call.args = lm_read_args(d, call.target.decl, skip, e->args, e->n_args, file);
  if (call.target.decl && !check_args(d, &call, skip))
    call.target = (lm_decl_ref){0};
  if (call.target.decl && kind == DC_OPTIMIZER && !read_inners(d, &call))
    call.target = (lm_decl_ref){0};
  return call;
}
