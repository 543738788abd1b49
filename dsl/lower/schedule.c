// schedule.c - the schedule of the learning rate: its value at a step, and the checks of it.
#include "dsl/lower/internal.h"
#include "runtime/base/diag_code.h"
#include <math.h>
#include <string.h>

el_val lm_host_scalar(lm_value *v) {
  el_axes none = {0};
  return el_tensor(K_NUM, &none, v);
}

static const char *const schedule_arguments[] = {"step", "run"};

el_val lm_lower_schedule(lm_elab *e, const lm_recipe *r, el_val step, el_val run) {
  if (!r->schedule.name || !r->schedule.target.decl)
    return el_whole(e, 1);
  const ast_decl *d = r->schedule.target.decl;
  if (d->kind != DC_FN || d->sig.n_params < 2)
    return EL_FAIL(e, r->schedule.loc, E0B2);
  if (!lm_check_order(e, &d->sig, schedule_arguments, LM_COUNT(schedule_arguments), d->name.text))
    return el_error();
  ast_expr *call = LM_NEW(e->a, ast_expr);
  ast_expr *name = LM_NEW(e->a, ast_expr);
  *name = (ast_expr){
      .kind = EX_NAME,
      .text = d->name.text,
      .loc = r->schedule.loc,
  };
  *call = (ast_expr){
      .kind = EX_CALL, .a = name, .loc = r->schedule.loc, .n_args = r->schedule.n_args + 2};
  call->args = LM_NEW_N(e->a, ast_arg, call->n_args);
  for (int i = 0; i < 2; i++) {
    lm_sym hidden = LM_SYM(e->c, i ? LM_SCHEDULE_RUN : LM_SCHEDULE_STEP);
    ast_expr *x = LM_NEW(e->a, ast_expr);
    *x = (ast_expr){
        .kind = EX_NAME,
        .text = hidden,
        .loc = r->schedule.loc,
    };
    call->args[i] = (ast_arg){
        .kind = ARG_POS,
        .loc = r->schedule.loc,
        .expr = x,
    };
    el_bind_name(e, hidden, i ? run : step, false);
  }
  if (r->schedule.n_args)
    memcpy(call->args + 2, r->schedule.args, sizeof(ast_arg) * r->schedule.n_args);
  const lm_file *was = e->frame->file;
  e->frame->file = r->schedule.target.file;
  el_val v = el_eval(e, call);
  e->frame->file = was;
  if (v.k != V_ERROR && v.k != V_NUM && (v.k != V_TENSOR || v.axes.n))
    return EL_FAIL(e, r->schedule.loc, E0E8, el_show(e, &v));
  return v;
}

// True if --set or --steps shortened the run. A trial may end during warmup.
static bool is_trial(const lm_recipe *r) {
  const char *near;
  const lm_recipe_origin *o = lm_recipe_origin_find(r, "run", &near);
  return o && (!strcmp(o->who, "--set") || !strcmp(o->who, "--steps"));
}

// Evaluates the schedule at a sample of steps: for its constraints, and for its sign.
static void schedule_sample(lm_elab *e, const lm_recipe *r, int64_t steps) {
  enum {
    SAMPLE = 256
  };
  uint32_t before = e->c->n_errors;
  int64_t last = 0;
  for (int64_t i = 1; i <= SAMPLE && e->c->n_errors == before; i++) {
    int64_t step = 1 + (int64_t)((double)(steps - 1) * (double)(i - 1) / (SAMPLE - 1));
    if (step == last)
      continue;
    last = step;
    el_val v = lm_lower_schedule(e, r, el_whole(e, step), el_whole(e, steps));
    double x;
    if (v.k == V_ERROR || !el_number_value(&v, &x))
      return;
    if (x >= 0 || isnan(x))
      continue;
    LM_REPORT(e->c, r->schedule.loc, W214, (long long)step, (long long)steps, x);
    return;
  }
}

void lm_lower_schedule_check(lm_ctx *c, lm_program *prog, const lm_recipe *r, int64_t steps) {
  if (!r->schedule.name || !r->run.unit || is_trial(r))
    return;
  lm_elab *e = lm_elab_create(c, prog, lm_module_create(c));
  el_frame frame = {
      .file = r->schedule.target.file,
      .real = K_REAL,
  };
  e->frame = &frame;
  e->mode = EL_UPDATE;
  e->b = (lm_builder){
      .m = e->m,
      .at = lm_func_add(e->m, LM_SYM(c, "schedule"))->body,
  };
  schedule_sample(e, r, steps);
}
