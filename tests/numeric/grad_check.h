// grad_check.h - derivatives of @micro against central differences of @loss, in the float64 interpreter.
#ifndef LM_TESTS_GRAD_CHECK_H
#define LM_TESTS_GRAD_CHECK_H
#include <math.h>
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

static inline double unit(uint64_t *state) {                  // in (-1, 1)
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)(*state >> 11) * 0x1p-52 - 1;
}

static inline void fill_real(lm_tensor *t, double lo, double hi, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++) t->v[i] = lo + (hi - lo) * (unit(state) + 1) / 2;
}

static inline void fill_int(lm_tensor *t, int64_t below, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++) t->v[i] = floor((unit(state) + 1) / 2 * (double)below);
}

static inline lm_module *must_parse(lm_ctx *c, const char *path, const char *text, size_t n) {
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text, n));
  if (m) return m;
  lm_buf b = {0};
  lm_diag_render(c, &b, false);
  fprintf(stderr, "%s", b.p);
  exit(1);
}

static inline void must_run_for(lm_module *m, const char *passes, const void *target) {
  bool ok = false;
  CHECK_OK(lm_pass_run_list(m, passes, &(lm_pass_env){.target = target}, &ok));
  CHECK(ok);
}

static inline void must_run(lm_module *m, const char *passes) { must_run_for(m, passes, NULL); }

static inline double first_result(lm_eval *e, const lm_func *f, const lm_tensor *args) {
  lm_tensor out[16];
  CHECK(f->n_out <= LM_COUNT(out));
  CHECK_OK(lm_eval_call(e, f, args, out));
  double v = out[0].v[0];
  for (uint32_t i = 0; i < f->n_out; i++) lm_tensor_free(&out[i]);
  return v;
}

// The derivative in one element: of the polynomial through the losses at p ± h, p ± 2h.
static inline double difference(lm_eval *e, const lm_func *f, const lm_tensor *args, double *p, double h) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double was = *p, sum = 0;
  for (int i = 0; i < 4; i++) {
    *p = was + at[i] * h;
    sum += weight[i] * first_result(e, f, args);
  }
  *p = was;
  return sum / (12 * h);
}

// Every `stride`-th element of every parameter: |derivative - difference| <= tolerance * (1 + |difference|).
// Returns the number of elements looked at whose derivative is not zero, -1 if one is wrong.
static inline int grad_check(lm_module *m, lm_eval *e, const lm_tensor *args, int64_t stride, double tolerance) {
  const lm_func *loss = lm_func_find(m, "loss"), *micro = lm_func_find(m, "micro");
  int seen = 0;
  CHECK(loss && micro);
  double a = first_result(e, loss, args), b = first_result(e, micro, args);
  CHECK(fabs(a - b) <= 1e-12 * (1 + fabs(a)));
  for (uint32_t k = 0; k < m->n_globals; k++) {
    if (m->globals[k].kind != LM_GLOBAL_PARAM) continue;
    lm_tensor *p = lm_eval_global(e, m->globals[k].name), *g = lm_eval_gradient(e, m->globals[k].name);
    for (int64_t i = 0; i < p->n; i += stride) {
      double d = difference(e, loss, args, &p->v[i], 1e-4);
      seen += d != 0;
      if (fabs(d - g->v[i]) <= tolerance * (1 + fabs(d))) continue;
      fprintf(stderr, "@%s[%lld]: derivative %.10g, difference %.10g\n", m->globals[k].name, (long long)i, g->v[i], d);
      return -1;
    }
  }
  return seen;
}
#endif
