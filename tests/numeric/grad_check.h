// grad_check.h - compares gradients of @micro with central differences of @loss, both computed by
// the float64 interpreter.
#ifndef LM_TESTS_GRAD_CHECK_H
#define LM_TESTS_GRAD_CHECK_H
#include <math.h>
#include <string.h>
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

static inline double unit(uint64_t *state) { // in (-1, 1)
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)(*state >> 11) * 0x1p-52 - 1;
}

static inline void fill_real(lm_tensor *t, double lo, double hi, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++)
    t->v[i] = lo + (hi - lo) * (unit(state) + 1) / 2;
}

static inline void fill_int(lm_tensor *t, int64_t below, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++)
    t->v[i] = floor((unit(state) + 1) / 2 * (double)below);
}

static inline lm_module *must_parse(lm_ctx *c, const char *path, const char *text, size_t n) {
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text, n));
  if (m)
    return m;
  lm_buf b = {0};
  lm_diag_render(c, &b, false);
  fprintf(stderr, "%s", b.p);
  exit(1);
}

// With a target or a code generator in env, the passes are forced.
static inline void must_run_for(lm_module *m, const char *passes, const lm_pass_env *of) {
  bool ok = false;
  lm_pass_env env = *of;
  env.compute = LM_REAL;
  if (env.target || env.codegen)
    CHECK_OK(lm_pass_force(m->arena, passes, &env));
  CHECK_OK(lm_pass_run_list(m, passes, &env, &ok));
  CHECK(ok);
}

static inline void must_run(lm_module *m, const char *passes) {
  must_run_for(m, passes, &(lm_pass_env){0});
}

static inline double first_result(lm_eval *e, const lm_func *f, const lm_tensor *args) {
  lm_tensor out[16];
  CHECK(f->n_out <= LM_COUNT(out));
  CHECK_OK(lm_eval_call(e, f, args, out));
  double v = out[0].v[0];
  for (uint32_t i = 0; i < f->n_out; i++)
    lm_tensor_free(&out[i]);
  return v;
}

// Runs @micro after some passes and returns its loss; e has the gradients. Parameters are random in
// (-1, 1), and `fill` sets the arguments.
typedef struct micro_run {
  lm_ctx *c;
  lm_module *m;
  lm_eval *e;
  double loss;
} micro_run;

static inline micro_run micro_run_make(const char *name, const char *text, const char *passes,
                                       void (*fill)(lm_tensor *args, uint64_t *state)) {
  micro_run r = {.c = lm_ctx_create()};
  r.m = must_parse(r.c, name, text, strlen(text));
  must_run(r.m, passes);
  r.e = lm_eval_create(r.m);
  uint64_t state = 7;
  for (uint32_t k = 0; k < r.m->n_globals && r.m->globals[k].kind == LM_GLOBAL_PARAM; k++)
    fill_real(lm_eval_global(r.e, r.m->globals[k].name), -1, 1, &state);
  const lm_func *micro = lm_func_find(r.m, "micro");
  lm_tensor args[4];
  CHECK(micro->body->n_args <= LM_COUNT(args));
  for (uint32_t i = 0; i < micro->body->n_args; i++)
    args[i] = lm_eval_tensor(r.e, micro->body->args[i]->type);
  fill(args, &state);
  r.loss = first_result(r.e, micro, args);
  for (uint32_t i = 0; i < micro->body->n_args; i++)
    lm_tensor_free(&args[i]);
  return r;
}

static inline void micro_run_free(micro_run *r) {
  lm_eval_destroy(r->e);
  lm_ctx_destroy(r->c);
}

static inline double square_norm(const lm_tensor *a) {
  double sum = 0;
  for (int64_t i = 0; i < a->n; i++)
    sum += a->v[i] * a->v[i];
  return sum;
}

static inline double square_distance(const lm_tensor *a, const lm_tensor *b) {
  double sum = 0;
  for (int64_t i = 0; i < a->n; i++)
    sum += (a->v[i] - b->v[i]) * (a->v[i] - b->v[i]);
  return sum;
}

// Checks that two runs have equal losses and gradients of a's globals, up to rounding. Returns the
// number of gradients that are not zero.
static inline int micro_runs_agree(const micro_run *a, const micro_run *b) {
  int seen = 0;
  CHECK(fabs(a->loss - b->loss) <= 1e-12 * fabs(a->loss));
  for (uint32_t k = 0; k < a->m->n_globals; k++) {
    const lm_tensor *x = lm_eval_gradient(a->e, a->m->globals[k].name);
    const lm_tensor *y = lm_eval_gradient(b->e, a->m->globals[k].name);
    double norm = square_norm(x);
    CHECK(square_distance(x, y) <= 1e-24 * norm);
    seen += norm > 0;
  }
  return seen;
}

// The derivative in one element: of the polynomial through the losses at p ± h, p ± 2h.
static inline double difference(lm_eval *e, const lm_func *f, const lm_tensor *args, double *p,
                                double h) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double was = *p, sum = 0;
  for (int i = 0; i < 4; i++) {
    *p = was + at[i] * h;
    sum += weight[i] * first_result(e, f, args);
  }
  *p = was;
  return sum / (12 * h);
}

// Every `stride`-th element of every parameter: |derivative - difference| <= tolerance * (1 +
// |difference|). Returns the number of compared elements whose derivative is not zero, -1 if one is
// wrong.
static inline int grad_check(lm_module *m, lm_eval *e, const lm_tensor *args, int64_t stride,
                             double tolerance) {
  const lm_func *loss = lm_func_find(m, "loss");
  const lm_func *micro = lm_func_find(m, "micro");
  int seen = 0;
  CHECK(loss && micro);
  double a = first_result(e, loss, args);
  double b = first_result(e, micro, args);
  CHECK(fabs(a - b) <= 1e-12 * (1 + fabs(a)));
  for (uint32_t k = 0; k < m->n_globals; k++) {
    if (m->globals[k].kind != LM_GLOBAL_PARAM)
      continue;
    lm_tensor *p = lm_eval_global(e, m->globals[k].name);
    lm_tensor *g = lm_eval_gradient(e, m->globals[k].name);
    for (int64_t i = 0; i < p->n; i += stride) {
      double d = difference(e, loss, args, &p->v[i], 1e-4);
      seen += d != 0;
      if (fabs(d - g->v[i]) <= tolerance * (1 + fabs(d)))
        continue;
      fprintf(stderr, "@%s[%lld]: derivative %.10g, difference %.10g\n", m->globals[k].name,
              (long long)i, g->v[i], d);
      return -1;
    }
  }
  return seen;
}
#endif
