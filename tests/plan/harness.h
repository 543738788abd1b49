// harness.h - runs a module of stage step by the interpreter and as a plan, on equal random
// numbers, and compares the results.
#ifndef LM_TESTS_PLAN_HARNESS_H
#define LM_TESTS_PLAN_HARNESS_H
#include <math.h>
#include <unistd.h>

#include "compiler/eval/eval.h"
#include "runtime/cpu/exec.h"
#include "runtime/hal/tensor.h"
#include "tests/plan/naive.h"
#include "tests/runtime/arena.h"
#include "tests/runtime/check.h"

typedef struct subject { // two copies of one module: one for the interpreter, one planned
  lm_ctx *ctx[2];
  lm_module *step, *kernel;
  lm_plan *plan;
} subject;

static void memory_check(const lm_plan *p) {
  lm_buf why = {0};
  for (int i = 0; i < p->n_funcs; i++)
    if (!lm_plan_check(p, &p->funcs[i], &why)) {
      lm_plan_print(p, &why);
      fprintf(stderr, "%s", why.p);
      exit(1);
    }
  lm_buf_free(&why);
}

// Calls `make` twice, once for each copy of the module.
typedef lm_module *make_fn(lm_ctx *c, void *user);
static subject subject_make(make_fn *make, void *user) {
  subject s = {.ctx = {lm_ctx_create(), lm_ctx_create()}};
  s.step = make(s.ctx[0], user);
  s.kernel = make(s.ctx[1], user);
  naive_kernels_make(s.kernel);
  lm_buf why = {0};
  if (!lm_module_verify(s.kernel, &why)) {
    fprintf(stderr, "%s", why.p);
    exit(1);
  }
  lm_plan_options target = {.codegen = &naive_codegen};
  s.plan = lm_plan_build(s.kernel, &target);
  lm_diag_render(s.ctx[1], &why, false);
  if (!s.plan) {
    fprintf(stderr, "%s", why.p);
    exit(1);
  }
  if (getenv("SHOW")) {
    lm_module_print(s.kernel, &why);
    lm_plan_print(s.plan, &why);
    puts(why.p);
  }
  memory_check(s.plan);
  lm_buf_free(&why);
  return s;
}

static void subject_free(subject *s) {
  lm_ctx_destroy(s->ctx[0]);
  lm_ctx_destroy(s->ctx[1]);
}

// ---- equal numbers for the interpreter and the plan

static double draw(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)(*state >> 40) / (1 << 23) - 1;
}

static void random_fill(lm_tensor *t, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++) {
    double v = draw(state);
    t->v[i] = t->type.dtype == LM_INT    ? floor((v + 1) * 2.5)
              : t->type.dtype == LM_BOOL ? v > 0
                                         : (double)(float)v;
  }
}

static void to_memory(const lm_tensor *t, void *p) {
  for (int64_t i = 0; i < t->n; i++)
    switch (t->type.dtype) {
    case LM_INT: ((int32_t *)p)[i] = (int32_t)t->v[i]; break;
    case LM_BOOL: ((uint8_t *)p)[i] = (uint8_t)t->v[i]; break;
    default: ((float *)p)[i] = (float)t->v[i];
    }
}

static double from_memory(const void *p, lm_dtype t, int64_t i) {
  return t == LM_INT    ? ((const int32_t *)p)[i]
         : t == LM_BOOL ? ((const uint8_t *)p)[i]
                        : (double)((const float *)p)[i];
}

static void compare(const char *what, const double *want, const void *got, lm_dtype t, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double g = from_memory(got, t, i);
    if (fabs(g - want[i]) <= 2e-5 * (1 + fabs(want[i])))
      continue;
    fprintf(stderr, "%s[%lld] is %.9g, not %.9g\n", what, (long long)i, g, want[i]);
    exit(1);
  }
}

// Calls fn on every logical parameter: its tensor, which fn may change, and its elements in the
// stacked tensor of the interpreter.
typedef void param_fn(const lm_plan_param *p, float *at, double *v);
static void params_each(subject *s, lm_exec *e, lm_eval *eval, lm_port_role role, param_fn *fn) {
  bool gradient = role == LM_ROLE_GRAD;
  int n = 0;
  for (uint32_t i = 0; i < s->step->n_globals; i++) {
    const lm_global *g = &s->step->globals[i];
    if (g->kind != LM_GLOBAL_PARAM)
      continue;
    lm_tensor *t = gradient ? lm_eval_gradient(eval, g->name) : lm_eval_global(eval, g->name);
    for (int64_t k = 0; k < g->n_paths; k++, n++) {
      const lm_plan_param *p = &s->plan->params[n];
      lm_plan_tensor x = {p, role};
      float *at = lm_alloc((size_t)p->elements * sizeof *at);
      int64_t first;
      bool apart = !lm_global_pack(s->step, g, &first) || !first;
      CHECK(!strcmp(p->path, g->paths[k]) && (p->pieces->offset % LM_BLOCK == 0) == apart);
      CHECK_OK(lm_tensor_get(e, s->plan, x, 0, p->elements, at));
      fn(p, at, t->v + k * p->elements);
      CHECK_OK(lm_tensor_set(e, s->plan, x, 0, p->elements, at));
      lm_free(at);
    }
  }
  CHECK(n == s->plan->n_params);
}

static void param_set(const lm_plan_param *p, float *at, double *v) {
  for (int64_t i = 0; i < p->elements; i++)
    at[i] = (float)v[i];
}

static void param_spoil(const lm_plan_param *p, float *at, double *v) {
  for (int64_t i = 0; i < p->elements; i++)
    at[i] = NAN;
}

// The gradients after two micro-batches with the same arguments.
static void param_compare_twice(const lm_plan_param *p, float *at, double *v) {
  for (int64_t i = 0; i < p->elements; i++)
    v[i] *= 2;
  compare(p->path, v, at, LM_F32, p->elements);
}

static void param_compare(const lm_plan_param *p, float *at, double *v) {
  compare(p->path, v, at, LM_F32, p->elements);
}

typedef struct bits {
  void *p;
  size_t n;
} bits; // of all results and gradients, to compare between runs

static void bits_add(bits *b, const void *p, size_t n) {
  b->p = lm_realloc(b->p, b->n + n);
  memcpy((char *)b->p + b->n, p, n);
  b->n += n;
}

static bits run(subject *s, const char *name, int threads) {
  lm_exec *e;
  lm_eval *eval = lm_eval_create(s->step);
  uint64_t state = 42;
  const lm_func *f = lm_func_find(s->step, name);
  const lm_plan_func *pf = lm_plan_func_find(s->plan, name);
  CHECK_OK(lm_cpu_exec_create(s->plan, &(lm_exec_options){.threads = threads}, &e));
  for (uint32_t i = 0; i < s->step->n_globals; i++)
    if (s->step->globals[i].kind == LM_GLOBAL_PARAM)
      random_fill(lm_eval_global(eval, s->step->globals[i].name), &state);
  params_each(s, e, eval, LM_ROLE_PARAM, param_set);
  lm_tensor args[16], out[16];
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    args[i] = lm_eval_tensor(eval, f->body->args[i]->type);
    random_fill(&args[i], &state);
    to_memory(&args[i], lm_exec_port(e, lm_plan_port_find(pf, f->body->args[i]->name, false)));
  }
  CHECK_OK(lm_eval_call(eval, f, args, out));
  bool differentiates = s->plan->arena_bytes[LM_ARENA_GRAD] > 0;
  if (differentiates)
    params_each(s, e, eval, LM_ROLE_GRAD, param_spoil);
  CHECK_OK(lm_exec_run_first(e, pf, NULL));
  bits b = {0};
  for (uint32_t i = 0; i < f->n_out; i++) {
    const lm_plan_port *port = lm_plan_port_find(pf, f->out_names[i], true);
    void *at = lm_exec_port(e, port);
    compare(f->out_names[i], out[i].v, at, port->dtype, out[i].n);
    bits_add(&b, at, (size_t)out[i].n * (port->dtype == LM_BOOL ? 1 : 4));
    lm_tensor_free(&out[i]);
  }
  if (differentiates) {
    params_each(s, e, eval, LM_ROLE_GRAD, param_compare);
    void *grad = arena_read(e, s->plan, LM_ARENA_GRAD);
    bits_add(&b, grad, (size_t)s->plan->arena_bytes[LM_ARENA_GRAD]);
    lm_free(grad);
    CHECK_OK(lm_exec_run(e, pf, NULL));
    params_each(s, e, eval, LM_ROLE_GRAD, param_compare_twice);
  }
  for (uint32_t i = 0; i < f->body->n_args; i++)
    lm_tensor_free(&args[i]);
  lm_eval_destroy(eval);
  lm_exec_destroy(e);
  return b;
}

static void run_compare(subject *s, const char *name) {
  bits one = run(s, name, 1);
  bits three = run(s, name, 3);
  CHECK(one.n == three.n && !memcmp(one.p, three.p, one.n));
  lm_free(one.p);
  lm_free(three.p);
}
#endif
