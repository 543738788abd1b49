// attend_grad_test.c - the pass `attend` preserves the loss, and its derivative is the derivative
// of the loss.
// Build: plain
#include "compiler/plan/planner.h"
#include "tests/attend/cases.h"
#include "tests/numeric/grad_check.h"

static double loss_of(lm_module *m, lm_eval *e, const lm_tensor *args) {
  return first_result(e, lm_func_find(m, "loss"), args);
}

static void arguments(lm_module *m, lm_eval *e, lm_tensor *args) {
  uint64_t state = 5;
  const lm_func *f = lm_func_find(m, "loss");
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    args[i] = lm_eval_tensor(e, f->body->args[i]->type);
    if (f->body->args[i]->type.dtype == LM_INT)
      fill_int(&args[i], i % 2 ? 2 : args[i].type.rank == 2 ? 5 : 1, &state);
    else
      fill_real(&args[i], -1, 1, &state);
  }
  for (uint32_t k = 0; k < m->n_globals; k++)
    fill_real(lm_eval_global(e, m->globals[k].name), -1, 1, &state);
}

static void arguments_free(const lm_module *m, lm_tensor *args) {
  const lm_func *f = lm_func_find((lm_module *)m, "loss");
  for (uint32_t i = 0; i < f->body->n_args; i++)
    lm_tensor_free(&args[i]);
}

static bool never(const lm_module *m, const lm_op *op) {
  return false;
}

// If a target does not support an attention, it is expanded to its operations, and no attend
// remains.
static void expand_attention(lm_module *m) {
  lm_codegen codegen = {.attends = never};
  CHECK(lm_pass_run(m, lm_pass_find("expand_attention"), &(lm_pass_env){.codegen = &codegen}));
  CHECK(attends_in(m) == 0);
}

static void same(const char *name, lm_module *m, double want) {
  lm_eval *e = lm_eval_create(m);
  lm_tensor args[8];
  arguments(m, e, args);
  double got = loss_of(m, e, args);
  if (fabs(got - want) > 1e-12 * (1 + fabs(want)))
    fprintf(stderr, "%s: loss %.17g, not %.17g\n", name, got, want);
  CHECK(fabs(got - want) <= 1e-12 * (1 + fabs(want)));
  int seen = grad_check(m, e, args, 3, 1e-6);
  if (seen <= 0)
    fprintf(stderr, "%s: %d\n", name, seen);
  CHECK(seen > 0);
  arguments_free(m, args);
  lm_eval_destroy(e);
}

static double loss_at(lm_module *m) {
  lm_eval *e = lm_eval_create(m);
  lm_tensor args[8];
  arguments(m, e, args);
  double loss = loss_of(m, e, args);
  arguments_free(m, args);
  lm_eval_destroy(e);
  return loss;
}

static void check(const attend_case *c, const int *size) {
  lm_ctx *x = lm_ctx_create();
  char *text = attend_text(x->arena, c, size);
  lm_module *plain = must_parse(x, c->name, text, strlen(text));
  lm_module *m = must_parse(x, c->name, text, strlen(text));
  must_run(m, "attend,cse,licm,dce");
  if (attends_in(m) != !c->declines)
    fprintf(stderr, "%s: %d attends\n", c->name, attends_in(m));
  CHECK(attends_in(m) == !c->declines);
  must_run(m, "grad,simplify,cse,licm,dce");
  double want = loss_at(plain);
  same(c->name, m, want);
  expand_attention(m);
  same(c->name, m, want);
  lm_ctx_destroy(x);
}

// Rounded weights are those of the expansion to operations, and not the weights.
static void check_rounded(const attend_case *c, const int *size) {
  lm_ctx *x = lm_ctx_create();
  char *text = attend_text(x->arena, c, size);
  lm_module *m = must_parse(x, c->name, text, strlen(text));
  must_run(m, "attend,cse,licm,dce");
  double whole = loss_at(m);
  attends_round(m);
  must_run(m, "grad,simplify,cse,licm,dce");
  double rounded = loss_at(m);
  expand_attention(m);
  double expanded = loss_at(m);
  CHECK(fabs(expanded - rounded) <= 1e-12 * (1 + fabs(rounded)));
  CHECK(fabs(rounded - whole) > 1e-5 * fabs(whole));
  lm_ctx_destroy(x);
}

int main(void) {
  static const int sizes[][8] = {{2, 3, 4, 2, 2, 3, 2, 2}, {1, 7, 5, 1, 3, 2, 3, 1}};
  for (size_t i = 0; i < LM_COUNT(attend_cases); i++)
    for (size_t k = 0; k < LM_COUNT(sizes); k++)
      check(&attend_cases[i], sizes[k]);
  check(&attend_cases[0], (int[]){1, 34, 35, 1, 1, 2, 1, 1});
  check(&attend_cases[7], (int[]){1, 34, 35, 1, 1, 2, 1, 1});
  check_rounded(&attend_cases[0], (int[]){2, 9, 7, 2, 2, 3, 2, 2});
}
