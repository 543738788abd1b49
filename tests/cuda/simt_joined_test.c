// simt_joined_test.c - gradients of weights that one launch computes, for sm_90a, under the shim
// against the interpreter: GEMMs whose rows, columns and k end within a tile, several tiles of a
// block, gradients in memory that are added to or overwritten, layers of a loop.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#define SIMT_ARCH "sm_90a"
#define SIMT_UNITS 2 // so that a block computes several tiles
#include "tests/cuda/simt_run.h"
#include <math.h>
#include "runtime/hal/tensor.h"
#include "tests/cuda/joined_case.h"

static const joined_case cases[] = {
    {"edges", "t = 200, d = 136, f = 264, h = 72", JOINED, 3},
    {"whole tiles, one step", "t = 64, d = 128, f = 384, h = 192", JOINED, 3},
    {"layers", "t = 72, n = 2, d = 136, f = 64, h = 264", JOINED_LAYERS, 2},
};

static void inputs_fill(const lm_func *f, lm_eval *eval, lm_exec *e, const lm_plan_func *pf,
                        lm_tensor *args) {
  uint64_t state = 7;
  for (uint32_t i = 0; i < f->body->n_args; i++) {
    args[i] = lm_eval_tensor(eval, f->body->args[i]->type);
    random_fill(&args[i], &state);
    for (int64_t k = 0; k < args[i].n; k++)
      element_store(lm_exec_port(e, &pf->in[i]), args[i].type.dtype, k, args[i].v[k]);
  }
}

static float before_of(bool adds, int64_t i) {
  return adds ? (float)(i % 7) : NAN;
}

// All gradients are numbers that tell elements apart, or NaN where nothing may read them.
static void gradients_set(const lm_plan *plan, lm_exec *e, bool adds) {
  for (int p = 0; p < plan->n_params; p++)
    for (int64_t i = 0; i < plan->params[p].elements; i++) {
      float v = before_of(adds, i);
      lm_plan_tensor t = {&plan->params[p], LM_ROLE_GRAD};
      CHECK_OK(lm_tensor_set(e, plan, t, i, 1, &v));
    }
}

// The elements of parameter p in the interpreter's gradient, where layers are stacked.
static const double *wanted(const lm_plan_param *p, lm_eval *eval) {
  const char *dot = strchr(p->path, '.');
  char name[8];
  snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - p->path) : 7, p->path);
  return lm_eval_gradient(eval, name)->v + (dot ? atoll(dot + 1) * p->elements : 0);
}

static void gradients_check(const joined_case *c, const lm_plan *plan, lm_exec *e, lm_eval *eval,
                            bool adds) {
  for (int k = 0; k < plan->n_params; k++) {
    const lm_plan_param *p = &plan->params[k];
    float *got = lm_alloc((size_t)p->elements * sizeof *got);
    CHECK_OK(lm_tensor_get(e, plan, (lm_plan_tensor){p, LM_ROLE_GRAD}, 0, p->elements, got));
    const double *want = wanted(p, eval);
    double worst = 0, most = 0;
    for (int64_t i = 0; i < p->elements; i++) {
      double x = want[i] + (adds ? before_of(true, i) : 0);
      worst = fmax(worst, isnan(got[i]) ? INFINITY : fabs(got[i] - x));
      most = fmax(most, fabs(x));
    }
    lm_free(got);
    simt_error(LM_F32, worst / most);
    if (!(worst <= 2e-6 * most)) {
      fprintf(stderr, "%s, %s: off by %g of %g\n", c->name, p->path, worst, most);
      exit(1);
    }
  }
}

// The shim does not know of an iteration whether it overwrites: `adds` is of all launches.
static void schedules_run(const joined_case *c, const lm_plan *plan, lm_exec *e, lm_eval *eval,
                          bool adds) {
  const lm_plan_func *f = lm_plan_func_find(plan, "f");
  simt_adds_set(adds);
  for (int time = 0; time < SIMT_SCHEDULES; time++) {
    RUN_BEFORE(time);
    gradients_set(plan, e, adds);
    CHECK_OK(lm_exec_run(e, f, NULL));
    RUN_AFTER(c->name);
    gradients_check(c, plan, e, eval, adds);
  }
}

static void test(const joined_case *c) {
  lm_ctx *ctx[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_plan_options target = RUN_OPTIONS();
  lm_module *step = joined_module(ctx[0], c, NULL);
  lm_plan *plan = joined_plan(ctx[1], c, &target);
  CHECK(plan->kernels[joined_kernel_of(plan)].launch.n_maps == 2 * c->joined);
  simt_prepare(plan, ctx[1]->arena);
  lm_exec *e;
  CHECK_OK(lm_cpu_exec_create(plan, &(lm_exec_options){.threads = 1}, &e));
  lm_eval *eval = lm_eval_create(step);
  lm_eval_round_set(eval, true);
  const lm_func *f = lm_func_find(step, "f");
  lm_tensor args[3], want[1];
  inputs_fill(f, eval, e, lm_plan_func_find(plan, "f"), args);
  CHECK_OK(lm_eval_call(eval, f, args, want));
  schedules_run(c, plan, e, eval, true);
  if (!strstr(c->text, "loop"))
    schedules_run(c, plan, e, eval, false);
  for (int i = 0; i < 3; i++)
    lm_tensor_free(&args[i]);
  lm_tensor_free(want);
  lm_eval_destroy(eval);
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx[0]);
  lm_ctx_destroy(ctx[1]);
}

int main(int argc, char **argv) {
  cache_begin();
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    if (argc < 2 || strstr(cases[i].name, argv[1]))
      test(&cases[i]);
}
