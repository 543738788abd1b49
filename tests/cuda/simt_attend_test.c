// simt_attend_test.c - attention and its derivative as CUDA kernels under the shim, against the
// interpreter: f32 and bf16, grouped queries, widths and lengths that are not multiples of tiles,
// scores with biases and caps, masks with empty and full tiles.
// Build: plain
#include "tests/codegen/cache.h" // defines _GNU_SOURCE, so it comes first
#include "tests/cuda/simt_run.h"
#include "runtime/hal/tensor.h"
#include "tests/cuda/attend_case.h"
#include "tests/runtime/arena.h"

enum {
  UNITS = 2
};

static const attend_case cases[] = {
    {"f32, causal, grouped", "f32", "b = 2, t = 70, s = 70, g = 2, h = 3, e = 24", "", PLAIN,
     CAUSAL},
    {"bf16, causal, grouped", "bf16", "b = 2, t = 70, s = 70, g = 2, h = 3, e = 64", "", PLAIN,
     CAUSAL},
    {"bf16, documents, narrow heads", "bf16", "b = 2, t = 45, s = 45, g = 1, h = 2, e = 24", "",
     PLAIN, DOCUMENTS},
    {"bf16, wide heads", "bf16", "b = 1, t = 97, s = 97, g = 1, h = 2, e = 128", "", PLAIN, CAUSAL},
    {"bf16, wider heads", "bf16", "b = 1, t = 24, s = 24, g = 1, h = 1, e = 256", "", PLAIN,
     CAUSAL},
    {"f32, wide heads", "f32", "b = 1, t = 33, s = 33, g = 1, h = 1, e = 128", "", PLAIN, CAUSAL},
    {"f32, capped", "f32", "b = 1, t = 40, s = 40, g = 2, h = 2, e = 8", "", CAPPED, CAUSAL},
    {"bf16, window", "bf16", "b = 1, t = 130, s = 130, g = 1, h = 1, e = 32", "", CAPPED, WINDOW},
    {"f32, biased", "f32", "b = 2, t = 21, s = 21, g = 2, h = 2, e = 16",
     "param @bias : f32[g, h, s] = zeros\n", BIASED, CAUSAL},
    {"f32, factor", "f32", "b = 1, t = 40, s = 40, g = 1, h = 2, e = 16", "", PLAIN, CAUSAL,
     FACTOR},
    {"f32, sink", "f32", "b = 1, t = 40, s = 40, g = 2, h = 2, e = 16", SINK, PLAIN, CAUSAL, SUNK},
    {"bf16, biased", "bf16", "b = 2, t = 50, s = 50, g = 2, h = 1, e = 40",
     "param @bias : f32[g, h, s] = zeros\n", BIASED, DOCUMENTS},
    {"f32, shared by groups", "f32", "b = 2, t = 40, s = 40, g = 3, h = 2, e = 16", SHARED,
     SHARED_ALONE("f32"), CAUSAL},
    {"f16, causal, grouped", "f16", "b = 1, t = 70, s = 70, g = 2, h = 3, e = 64", "", PLAIN,
     CAUSAL},
    {"f16, capped, documents", "f16", "b = 1, t = 45, s = 45, g = 1, h = 2, e = 24", "", CAPPED,
     DOCUMENTS},
    {"bf16, shared by groups", "bf16", "b = 1, t = 70, s = 70, g = 2, h = 2, e = 24", SHARED,
     SHARED_ALONE("bf16"), CAUSAL},
    {"f32, two dots, one shared", "f32", "b = 1, t = 40, s = 40, g = 2, h = 2, e = 8", SHARED,
     SHARED_TOO("f32"), DOCUMENTS},
};

// Kernels with warpgroups, on sm_90a.
static const attend_case grouped[] = {
    {"groups, causal", "bf16", "b = 1, t = 150, s = 150, g = 2, h = 2, e = 64", "", PLAIN, CAUSAL},
    {"groups, filled, documents", "bf16", "b = 2, t = 128, s = 128, g = 1, h = 2, e = 64",
     "param @bias : f32[g, h, s] = zeros\n", BIASED, DOCUMENTS},
    {"groups, factor", "bf16", "b = 1, t = 80, s = 80, g = 1, h = 1, e = 64", "", CAPPED, DOCUMENTS,
     FACTOR},
    {"groups, sink", "bf16", "b = 1, t = 150, s = 150, g = 2, h = 1, e = 64", SINK, PLAIN, CAUSAL,
     SUNK},
    {"groups, wide, window", "bf16", "b = 1, t = 260, s = 260, g = 1, h = 1, e = 128", "", CAPPED,
     WINDOW},
    {"groups, documents, biased", "bf16", "b = 2, t = 67, s = 67, g = 1, h = 2, e = 64",
     "param @bias : f32[g, h, s] = zeros\n", BIASED, DOCUMENTS},
};

// The same with the derivatives of norm and rotary embedding in the epilogue.
static const attend_case epilogues[] = {
    {"epilogue, filled", "bf16", "b = 2, t = 128, s = 128, g = 2, h = 2, e = 64" HALVES(32), NORMS,
     PLAIN, CAUSAL, .rotated = true},
    {"epilogue, wide, rows end", "bf16", "b = 2, t = 70, s = 70, g = 2, h = 2, e = 128" HALVES(64),
     NORMS, PLAIN, DOCUMENTS, .rotated = true},
};

// f32 in TF32 on tensor cores.
static const attend_case rounded[] = {
    {"tf32, causal, grouped", "f32", "b = 1, t = 70, s = 70, g = 2, h = 2, e = 40", "", PLAIN,
     CAUSAL},
    {"tf32, capped, window", "f32", "b = 1, t = 50, s = 50, g = 1, h = 1, e = 16", "", CAPPED,
     WINDOW},
};

static double gradient_error(const lm_plan *plan, const lm_plan_param *p, lm_exec *e,
                             lm_eval *eval) {
  float *got = lm_alloc((size_t)p->elements * sizeof *got);
  CHECK_OK(lm_tensor_get(e, plan, (lm_plan_tensor){p, LM_ROLE_GRAD}, 0, p->elements, got));
  const lm_tensor *want = lm_eval_gradient(eval, p->path);
  double off = 0, norm = 0;
  for (int64_t i = 0; i < p->elements; i++) {
    off += pow(got[i] - want->v[i], 2);
    norm += pow(want->v[i], 2);
  }
  lm_free(got);
  return sqrt(off / (norm + 1e-30));
}

static void fill(lm_plan *plan, lm_exec *e, lm_eval *eval, uint64_t *state) {
  for (int i = 0; i < plan->n_params; i++) {
    lm_tensor *t = lm_eval_global(eval, plan->params[i].path);
    float *to = lm_alloc((size_t)t->n * sizeof *to);
    for (int64_t k = 0; k < t->n; k++)
      t->v[k] = to[k] = bf16_value((float)(1.5 * draw(state)));
    CHECK_OK(
        lm_tensor_set(e, plan, (lm_plan_tensor){&plan->params[i], LM_ROLE_PARAM}, 0, t->n, to));
    lm_free(to);
  }
}

// The number of kernels that use warpgroups.
static int with_groups(const lm_plan *plan) {
  int n = 0;
  for (int i = 0; i < plan->n_kernels; i++)
    n += plan->kernels[i].name[0] == 'a' && plan->kernels[i].launch.threads == 384;
  return n;
}

// True if two kernels are in the region of the derivative.
static bool has_epilogues(const lm_module *m) {
  for (lm_op *op = lm_func_find(m, "micro")->body->first; op; op = op->next)
    if (op->code == LM_OP_ATTEND_VJP)
      return count(op->body, LM_OP_KERNEL) == 2;
  return false;
}

static void run_case(const attend_case *c, const char *passes, const char *arch, bool tf32) {
  lm_buf text = {0};
  text_make(c, &text);
  lm_ctx *ctx[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_module *step = module_make(ctx[0], text.p, NULL);
  lm_module *kernel = module_make(ctx[1], text.p, passes);
  lm_plan_options target = simt_options_of(arch, tf32);
  target.target.units = UNITS; // of kernels with warpgroups: blocks, which take several items each
  lm_plan *plan = lm_plan_build(kernel, &target);
  CHECK(plan && with_groups(plan) == (arch ? 2 : 0));
  CHECK(!c->rotated || has_epilogues(kernel));
  RUN_PREPARE(plan, kernel->arena);
  lm_exec *e;
  CHECK_OK(RUN_CREATE(plan, &(lm_exec_options){.threads = 1}, &e));
  lm_eval *eval = lm_eval_create(step);
  const lm_func *f = lm_func_find(step, "micro");
  const lm_plan_func *pf = lm_plan_func_find(plan, "micro");
  uint64_t state = 3;
  fill(plan, e, eval, &state);
  lm_tensor args[2], want[2];
  for (uint32_t i = 0; i < 2; i++) {
    args[i] = lm_eval_tensor(eval, f->body->args[i]->type);
    random_fill(&args[i], &state);
    for (int64_t j = 0; j < args[i].n; j++)
      element_store(lm_exec_port(e, &pf->in[i]), args[i].type.dtype, j, args[i].v[j]);
  }
  CHECK_OK(lm_eval_call(eval, f, args, want));
  bool bf16 = !strcmp(c->type, "bf16"), f16 = !strcmp(c->type, "f16");
  size_t bytes = (size_t)plan->arena_bytes[LM_ARENA_GRAD];
  char *first = lm_alloc(bytes);
  for (int time = 0; time < RUN_TIMES; time++) {
    RUN_BEFORE(time);
    CHECK_OK(lm_exec_run_first(e, pf, NULL));
    CHECK_OK(lm_exec_wait(e));
    RUN_AFTER(c->name);
    void *bits = arena_read(e, plan, LM_ARENA_GRAD);
    if (!time)
      memcpy(first, bits, bytes);
    CHECK(!memcmp(first, bits, bytes));
    lm_free(bits);
  }
  double sum = *(float *)lm_exec_port(e, &pf->out[0]);
  double worst = fabs(sum - want[0].v[0]) / (fabs(want[0].v[0]) + sqrt((double)args[1].n));
  for (int i = 0; i < plan->n_params; i++) {
    double error = gradient_error(plan, &plan->params[i], e, eval);
    if (getenv("SHOW"))
      printf("%s: %s off by %.2g\n", c->name, plan->params[i].path, error);
    if (!(error <= worst))
      worst = error;
  }
  if (!tf32)
    RUN_ERROR(bf16 ? LM_BF16 : f16 ? LM_F16 : LM_F32, worst);
  if (!(worst <= (bf16 ? 2e-2 : f16 ? 3e-3 : tf32 ? 2e-3 : 2e-6)) || (tf32 && worst < 1e-5)) {
    fprintf(stderr, "%s: off by %g (sum %g, not %g)\n", c->name, worst, sum, want[0].v[0]);
    exit(1);
  }
  for (int i = 0; i < 2; i++) {
    lm_tensor_free(&args[i]);
    lm_tensor_free(&want[i]);
  }
  lm_free(first);
  lm_buf_free(&text);
  lm_eval_destroy(eval);
  lm_exec_destroy(e);
  lm_ctx_destroy(ctx[0]);
  lm_ctx_destroy(ctx[1]);
}

// A third of the cases computes delta in attend_vjp, as with --disable-pass attend_delta.
static const char *passes_of(size_t i) {
  return i % 3 == 1 ? WITHOUT_DELTA : WITH_DELTA;
}

// Many more shapes, for both kinds of kernels; takes minutes.
static void sweep(void) {
  static const int lengths[] = {65, 127, 128, 129, 192, 257}, widths[] = {64, 128, 72};
  static const char *const masks[] = {CAUSAL, DOCUMENTS, WINDOW}, *const scores[] = {PLAIN, CAPPED},
                           *const types[] = {"bf16", "f32"};
  for (int i = 0; i < 36; i++) {
    char axes[100], name[200];
    int n = lengths[i % 6];
    int e = widths[i / 3 % 3];
    int g = 1 + i % 2;
    int h = 1 + i / 2 % 3;
    const char *type = types[i % 5 == 4];
    const char *arch = !strcmp(type, "bf16") && e != 72 ? "sm_90a" : NULL;
    snprintf(axes, sizeof axes, "b = %d, t = %d, s = %d, g = %d, h = %d, e = %d", 1 + i / 4 % 2, n,
             n, g, h, e);
    snprintf(name, sizeof name, "%s %s, mask %d, score %d%s", type, axes, i / 2 % 3, i / 3 % 2,
             arch ? ", groups" : "");
    run_case(&(attend_case){name, type, axes, "", scores[i / 3 % 2], masks[i / 2 % 3]},
             passes_of((size_t)i), arch, false);
    printf("ok %s\n", name);
    fflush(stdout);
  }
}

// Kernels with warpgroups first, which are the most likely to fail on a new device.
static void list(void) {
  for (size_t i = 0; i < LM_COUNT(grouped) && RUN_HAS("sm_90a"); i++)
    printf("%s\n", grouped[i].name);
  for (size_t i = 0; i < LM_COUNT(epilogues) && RUN_HAS("sm_90a"); i++)
    printf("%s\n", epilogues[i].name);
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    printf("%s\n", cases[i].name);
  for (size_t i = 0; i < LM_COUNT(rounded); i++)
    printf("%s\n", rounded[i].name);
}

int main(int argc, char **argv) {
  cache_begin();
  if (argc > 1 && !strcmp(argv[1], "--list")) {
    list();
    return 0;
  }
  if (argc > 1 && !strcmp(argv[1], "--sweep")) {
    sweep();
    return 0;
  }
  for (size_t i = 0; i < LM_COUNT(cases); i++)
    if (argc < 2 || strstr(cases[i].name, argv[1]))
      run_case(&cases[i], passes_of(i), NULL, false);
  for (size_t i = 0; i < LM_COUNT(grouped); i++)
    if ((argc < 2 || strstr(grouped[i].name, argv[1])) && RUN_HAS("sm_90a"))
      run_case(&grouped[i], passes_of(i), "sm_90a", false);
  for (size_t i = 0; i < LM_COUNT(epilogues); i++)
    if ((argc < 2 || strstr(epilogues[i].name, argv[1])) && RUN_HAS("sm_90a"))
      run_case(&epilogues[i], WITH_EPILOGUE, "sm_90a", false);
  for (size_t i = 0; i < LM_COUNT(rounded); i++)
    if (argc < 2 || strstr(rounded[i].name, argv[1]))
      run_case(&rounded[i], passes_of(i), NULL, true);
}
