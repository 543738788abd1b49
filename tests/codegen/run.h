// run.h - computes the functions of a module at stage step twice: by the interpreter in float64,
// and as kernels through plan and executor.
#ifndef LM_TESTS_CODEGEN_RUN_H
#define LM_TESTS_CODEGEN_RUN_H
#include <math.h>
#include "codegen/cpu/cpu.h"
#include "compiler/eval/eval.h"
#include "compiler/passes/pass.h"
#include "runtime/base/dtype.h"
#include "runtime/cpu/exec.h"
#include "tests/codegen/sum_error.h"
#include "tests/codegen/threads.h"
#include "tests/runtime/check.h"

// The target and executor of the kernels: the CPU, unless the test defines another.
#ifndef RUN_CREATE
#define RUN_CREATE(plan, o, out) lm_cpu_exec_create(plan, o, out)
#endif
#ifndef RUN_OPTIONS
#define RUN_OPTIONS lm_cpu_options
#define RUN_IS_GPU false
#define RUN_PREPARE(plan, arena) ((void)0)
#define RUN_TIMES 1
#define RUN_BEFORE(time) ((void)0)
#define RUN_AFTER(name) ((void)0)
#define RUN_THREADS test_threads(2)
#define RUN_ERROR(dtype, error) ((void)0)
#define RUN_SLACK 1 // a factor on tolerances: other summation orders in float32
#endif

static inline double draw(uint64_t *state) { // in [-1, 1)
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(int64_t)(*state >> 40) / (1 << 23) - 1;
}

static inline lm_module *parse_and_run_for(lm_ctx *c, const char *text, const char *passes,
                                           const lm_target *target) {
  lm_module *m = lm_module_parse(c, lm_source_add(c, "case.lmir", text, strlen(text)));
  bool ok = m != NULL;
  if (m && passes)
    CHECK_OK(lm_pass_run_list(m, passes, &(lm_pass_env){.target = target}, &ok));
  lm_buf b = {0};
  lm_diag_render(c, &b, false);
  if (!ok)
    fprintf(stderr, "%s%s", text, b.p);
  CHECK(ok);
  lm_buf_free(&b);
  return m;
}

static inline lm_module *parse_and_run(lm_ctx *c, const char *text, const char *passes) {
  return parse_and_run_for(c, text, passes, NULL);
}

static inline float bf16_value(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
  memcpy(&x, &u, 4);
  return x;
}

// Values of arguments: ints in [0, 5), floats in [-1, 1) rounded to their type, e4m3 and e5m2 in
// [-3, 3), dyn8 and udyn8 in [-1, 1), all of i8 and u8.
static inline void random_fill(lm_tensor *t, uint64_t *state) {
  for (int64_t i = 0; i < t->n; i++) {
    double v = draw(state);
    switch (t->type.dtype) {
    case LM_INT: t->v[i] = floor((v + 1) * 2.5); break;
    case LM_BOOL: t->v[i] = v > 0; break;
    case LM_BF16: t->v[i] = bf16_value((float)v); break;
    case LM_F16: t->v[i] = lm_dtype_round(LM_F16, v); break;
    case LM_DYN8: t->v[i] = lm_dtype_round(LM_DYN8, v); break;
    case LM_UDYN8: t->v[i] = lm_dtype_round(LM_UDYN8, fabs(v)); break;
    case LM_E4M3:
    case LM_E5M2: t->v[i] = lm_dtype_round(t->type.dtype, v * 3); break;
    case LM_E8M0: t->v[i] = exp2(floor(v * 20)); break;
    case LM_I8: t->v[i] = floor(v * 128); break;
    case LM_U8: t->v[i] = floor((v + 1) * 128); break;
    default: t->v[i] = (float)v;
    }
  }
}

static inline void element_store(void *p, lm_dtype t, int64_t i, double v) {
  float f = (float)v;
  switch (t) {
  case LM_INT: ((int32_t *)p)[i] = (int32_t)v; break;
  case LM_BOOL: ((uint8_t *)p)[i] = (uint8_t)v; break;
  case LM_F16: ((uint16_t *)p)[i] = (uint16_t)lm_dtype_bits(t, v); break;
  case LM_E4M3:
  case LM_E5M2:
  case LM_E8M0:
  case LM_DYN8:
  case LM_UDYN8:
  case LM_I8:
  case LM_U8: ((uint8_t *)p)[i] = (uint8_t)lm_dtype_bits(t, v); break;
  case LM_F64: ((double *)p)[i] = v; break;
  case LM_BF16:
    f = bf16_value(f);
    memcpy((uint16_t *)p + i, (uint16_t *)&f + 1, 2);
    break; // the upper half
  default: ((float *)p)[i] = f;
  }
}

static inline double element_load(const void *p, lm_dtype t, int64_t i) {
  float f;
  uint32_t u;
  switch (t) {
  case LM_INT: return ((const int32_t *)p)[i];
  case LM_BOOL:
  case LM_U8: return ((const uint8_t *)p)[i];
  case LM_I8: return ((const int8_t *)p)[i];
  case LM_E4M3: return lm_e4m3_load(((const uint8_t *)p)[i]);
  case LM_E5M2: return lm_e5m2_load(((const uint8_t *)p)[i]);
  case LM_E8M0: return lm_e8m0_load(((const uint8_t *)p)[i]);
  case LM_DYN8: return lm_dyn8_load(((const uint8_t *)p)[i]);
  case LM_UDYN8: return lm_udyn8_load(((const uint8_t *)p)[i]);
  case LM_F16: return lm_f16_load(((const uint16_t *)p)[i]);
  case LM_F64: return ((const double *)p)[i];
  case LM_BF16:
    u = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &u, 4);
    return f;
  default: return ((const float *)p)[i];
  }
}

// The offset in memory, whose strides are by capacity, of element i of a tensor at its extents.
static inline int64_t memory_offset(const lm_module *m, lm_type t, const int64_t *extents,
                                    int64_t i) {
  int64_t at = 0, stride = 1;
  for (int k = t.rank - 1; k >= 0; k--) {
    int64_t n = axis_extent(m, t.axis[k], extents);
    at += i % n * stride;
    i /= n;
    stride *= m->axes[t.axis[k]].size;
  }
  return at;
}

// `floor` is added to the magnitude that errors are relative to.
typedef struct run_options {
  const char *name;
  double tolerance, floor;
  const int64_t *extents;
  int n_extents;
  uint64_t seed;
  bool rounds; // the interpreter rounds every result to its dtype
  void (*kernels)(const lm_module *m);
  void (*plan)(const lm_plan *plan);
} run_options;

// The maximum of (|got - want| - error of the sum) / (|want| + max |want|); `sums` holds the errors
// of sums, or is NULL.
static inline double worst_error(const lm_tensor *want, const lm_module *m, const void *got,
                                 const double *sums, const run_options *o, int64_t *out_at) {
  double worst = 0, most = o->floor + 1e-30;
  for (int64_t i = 0; i < want->n; i++)
    if (isfinite(want->v[i]) && fabs(want->v[i]) > most)
      most = fabs(want->v[i]);
  for (int64_t i = 0; i < want->n; i++) {
    double w = want->v[i];
    double g = element_load(got, want->type.dtype, memory_offset(m, want->type, o->extents, i));
    double allowed = sums ? sums[i] * RUN_SLACK : 0;
    double e = w == g || (isnan(w) && isnan(g)) ? 0 : (fabs(g - w) - allowed) / (fabs(w) + most);
    if (!(e <= worst)) {
      worst = isnan(e) ? INFINITY : e;
      *out_at = i;
    }
  }
  return worst;
}

static inline void fail_with(const char *text, const lm_module *kernel, lm_plan *plan) {
  lm_buf b = {0};
  lm_module_print(kernel, &b);
  fprintf(stderr, "%s\n---- kernels\n%s", text, b.p);
  for (int i = 0; plan && i < plan->n_kernels; i++)
    fprintf(stderr, "%s\n", plan->kernels[i].source);
  lm_buf_free(&b);
  exit(1);
}

static inline void compare_results(const run_options *o, const char *text, lm_module *kernel,
                                   lm_plan *plan, lm_exec *e, const lm_func *f,
                                   const lm_tensor *want, double *const *sums) {
  const lm_plan_func *pf = lm_plan_func_find(plan, f->name);
  for (uint32_t i = 0; i < f->n_out; i++) {
    int64_t at = 0;
    double error = worst_error(&want[i], f->module, lm_exec_port(e, &pf->out[i]), sums[i], o, &at);
    RUN_ERROR((lm_dtype)want[i].type.dtype, error);
    double allowed = want[i].type.dtype == LM_BF16  ? 0.004
                     : want[i].type.dtype == LM_F16 ? 0.0005
                                                    : o->tolerance * RUN_SLACK;
    if (error <= allowed)
      continue;
    fprintf(stderr, "%s: @%s, result %s[%lld]: %.9g, not %.9g (error %g)\n", o->name, f->name,
            f->out_names[i], (long long)at,
            element_load(lm_exec_port(e, &pf->out[i]), want[i].type.dtype,
                         memory_offset(f->module, want[i].type, o->extents, at)),
            want[i].v[at], error);
    fail_with(text, kernel, plan);
  }
}

// So that an element that nothing stores is not 0.
static inline void results_spoil(lm_exec *e, const lm_plan_func *f) {
  for (int i = 0; i < f->n_out; i++)
    memset(lm_exec_port(e, &f->out[i]), 0x55, (size_t)f->out[i].buf.bytes);
}

// Results must be the same bits in every run.
static inline void run_times(const run_options *o, lm_exec *e, const lm_plan_func *f) {
  lm_buf first = {0};
  for (int time = 0; time < RUN_TIMES; time++) {
    RUN_BEFORE(time);
    CHECK_OK(lm_exec_call(e, f, o->extents));
    RUN_AFTER(o->name);
    size_t at = 0;
    for (int i = 0; i < f->n_out; i++) {
      const char *bits = lm_exec_port(e, &f->out[i]);
      size_t n = (size_t)f->out[i].buf.bytes;
      if (!time)
        lm_buf_add(&first, bits, n);
      else if (memcmp(first.p + at, bits, n)) {
        fprintf(stderr, "%s: result %s differs in run %d\n", o->name, f->out[i].name, time);
        exit(1);
      }
      at += n;
    }
  }
  lm_buf_free(&first);
}

// Runs every function of the module both ways; returns the number of kernels.
static inline int run_both(const char *text, const run_options *o) {
  lm_ctx *ctx[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_plan_options target = RUN_OPTIONS();
  lm_module *step = parse_and_run(ctx[0], text, NULL);
  lm_module *kernel = parse_and_run_for(ctx[1], text, "decompose,cse,dce,fuse", &target.target);
  if (o->kernels)
    o->kernels(kernel);
  lm_plan *plan = lm_plan_build(kernel, &target);
  if (!plan) {
    lm_buf b = {0};
    lm_diag_render(ctx[1], &b, false);
    fprintf(stderr, "%s: %s", o->name, b.p);
    fail_with(text, kernel, NULL);
  }
  if (o->plan)
    o->plan(plan);
  RUN_PREPARE(plan, kernel->arena);
  lm_exec *e;
  CHECK_OK(RUN_CREATE(plan, &(lm_exec_options){.threads = RUN_THREADS}, &e));
  lm_eval *eval = lm_eval_create(step);
  lm_eval_round_set(eval, o->rounds);
  for (int i = 0; i < o->n_extents; i++)
    lm_eval_extent_set(eval, i + 1, o->extents[i]);
  uint64_t state = o->seed + 1;
  for (const lm_func *f = step->funcs; f; f = f->next) {
    const lm_plan_func *pf = lm_plan_func_find(plan, f->name);
    lm_tensor args[16], want[16];
    double *sums[16];
    CHECK(f->body->n_args <= 16 && f->n_out <= 16 && pf);
    results_spoil(e, pf);
    for (uint32_t i = 0; i < f->body->n_args; i++) {
      args[i] = lm_eval_tensor(eval, f->body->args[i]->type);
      random_fill(&args[i], &state);
      for (int64_t j = 0; j < args[i].n; j++)
        element_store(lm_exec_port(e, &pf->in[i]), args[i].type.dtype,
                      memory_offset(step, args[i].type, o->extents, j), args[i].v[j]);
    }
    CHECK_OK(lm_eval_call(eval, f, args, want));
    for (uint32_t i = 0; i < f->n_out; i++)
      sums[i] = sum_errors(eval, f, args, want, i, o->extents);
    run_times(o, e, pf);
    compare_results(o, text, kernel, plan, e, f, want, sums);
    for (uint32_t i = 0; i < f->body->n_args; i++)
      lm_tensor_free(&args[i]);
    for (uint32_t i = 0; i < f->n_out; i++)
      lm_tensor_free(&want[i]);
    for (uint32_t i = 0; i < f->n_out; i++)
      lm_free(sums[i]);
  }
  int n = plan->n_kernels;
  lm_eval_destroy(eval);
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx[0]);
  lm_ctx_destroy(ctx[1]);
  return n;
}
#endif
