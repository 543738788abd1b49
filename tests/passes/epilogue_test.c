// epilogue_test.c - pass epilogue keeps the meaning of a model with biases, gelu and residuals:
// values, gradients against finite differences, and its plan for a GPU on shadow memory.
// Build: plain
#include "codegen/cuda/cuda.h"
#include "tests/numeric/grad_check.h"

// Blocks of two GEMMs with a bias each and gelu between them, on a residual stream; a projection
// whose bias has two axes.
static const char text[] =
    "stage graph\naxis b = 3, t = 5, d = 16, ff = 24, n = 3, g = 2, e = 8\n"
    "param @wu : f32[n, d, ff] stacked 1 as @wu.# = ones  param @bu : f32[n, ff] stacked 1 as "
    "@bu.# = ones\n"
    "param @wd : f32[n, ff, d] stacked 1 as @wd.# = ones  param @bd : f32[n, d] stacked 1 as @bd.# "
    "= ones\n"
    "param @wo : f32[d, g, e] = ones  param @bo : f32[g, e] = ones\n"
    "func @loss(%x: T[b, t, d], %w: T[b, t]) -> (sum: f32, weight: f32) {\n"
    "  %h = loop 3 %i carry(%c = %x) {\n"
    "    %n0 = mul %c, %c  %n1 = sum %n0 over(d)  %one = const 1 : T  %n2 = add %n1, %one  %n3 = "
    "rsqrt %n2  %n = mul %c, %n3\n"
    "    %wum = param @wu[%i]  %wu = cast %wum : T[d, ff]  %bum = param @bu[%i]  %bu = cast %bum : "
    "T[ff]  %p = dot %n, %wu over(d)  %v = add %p, %bu\n"
    "    %k0 = const 0.044715 : T  %k1 = const 0.7978845608028654 : T  %k2 = const 0.5 : T\n"
    "    %q1 = mul %v, %k0  %q2 = mul %q1, %v  %q3 = mul %q2, %v  %q4 = add %v, %q3  %q5 = mul "
    "%q4, %k1  %q6 = tanh %q5\n"
    "    %q7 = mul %v, %k2  %q8 = add %q6, %one  %y = mul %q7, %q8\n"
    "    %wdm = param @wd[%i]  %wd = cast %wdm : T[ff, d]  %bdm = param @bd[%i]  %bd = cast %bdm : "
    "T[d]  %m = dot %y, %wd over(ff)  %mb = add %m, %bd  %u = add %c, %mb\n"
    "    yield %u\n  }\n"
    "  %wom = param @wo  %wo = cast %wom : T[d, g, e]  %bom = param @bo  %bo = cast %bom : T[g, e] "
    " %o = dot %h, %wo over(d)  %ob = add %o, %bo\n"
    "  %l = sin %ob  %ls = sum %l over(g, e)  %lw = mul %ls, %w  %s1 = sum %lw over(b, t)  %wt1 = "
    "sum %w over(b, t)\n"
    "  %s = cast %s1 : f32  %wt = cast %wt1 : f32  return %s, %wt\n}\n";

static const char passes[] = "grad,simplify,cse,licm,dce,epilogue,dce";

static lm_module *model(lm_ctx *c, const char *type) {
  lm_buf b = {0};
  for (const char *s = text; *s; s++)
    if (*s == 'T' && (s[1] == '[' || s[1] == '\n' || s[1] == ' '))
      lm_buf_puts(&b, type);
    else
      lm_buf_add(&b, s, 1);
  lm_module *m = must_parse(c, "epilogue.lmir", b.p, b.n);
  lm_buf_free(&b);
  return m;
}

static bool any(const lm_plan_gemm *g) {
  return true;
}

typedef struct counts {
  int add, gelu, stacked;
} counts;

static void count(lm_op *op, void *user) {
  counts *n = user;
  n->add += op->code == LM_OP_DOT_ADD;
  n->gelu += op->code == LM_OP_DOT_GELU;
  if (op->code == LM_OP_LOOP)
    n->stacked += (int)(op->n_out - op->n_in);
}

static counts counts_of(lm_module *m, const char *name) {
  counts n = {0};
  lm_region_walk(lm_func_find(m, name)->body, count, &n);
  return n;
}

static double value(lm_module *m, double *out_norm) {
  uint64_t rng = 5;
  lm_eval *e = lm_eval_create(m);
  for (uint32_t i = 0; i < m->n_globals; i++)
    fill_real(lm_eval_global(e, m->globals[i].name), -0.7, 0.9, &rng);
  const lm_func *loss = lm_func_find(m, "loss");
  lm_tensor args[2];
  for (int i = 0; i < 2; i++) {
    args[i] = lm_eval_tensor(e, loss->body->args[i]->type);
    fill_real(&args[i], -1, 1, &rng);
  }
  CHECK(grad_check(m, e, args, 2, 1e-8) > 500);
  double v = first_result(e, lm_func_find(m, "micro"), args);
  *out_norm = 0;
  for (uint32_t i = 0; i < m->n_globals; i++)
    *out_norm += square_norm(lm_eval_gradient(e, m->globals[i].name));
  for (int i = 0; i < 2; i++)
    lm_tensor_free(&args[i]);
  lm_eval_destroy(e);
  return v;
}

static void check_values(void) {
  const lm_codegen codegen = {.epilogue = any};
  lm_ctx *c[2] = {lm_ctx_create(), lm_ctx_create()};
  lm_module *plain = model(c[0], "f32");
  lm_module *taken = model(c[1], "f32");
  must_run(plain, passes);
  must_run_for(taken, passes, &(lm_pass_env){.codegen = &codegen});
  counts before = counts_of(plain, "micro");
  counts after = counts_of(taken, "micro");
  CHECK(before.add + before.gelu == 0 && after.add == 2 && after.gelu == 1 &&
        after.stacked == before.stacked);
  double g[2], v[2] = {value(plain, &g[0]), value(taken, &g[1])};
  CHECK(fabs(v[0] - v[1]) < 1e-12 * fabs(v[0]) && fabs(g[0] - g[1]) < 1e-12 * g[0]);
  lm_ctx_destroy(c[0]);
  lm_ctx_destroy(c[1]);
}

static const lm_plan_step *step_find(const lm_plan *p, const char *func, bool residual, bool gelu) {
  const lm_plan_func *f = lm_plan_func_find(p, func);
  for (int i = 0; i < f->n_steps; i++)
    if (f->steps[i].kind == LM_STEP_GEMM && f->steps[i].gemm->residual == residual &&
        f->steps[i].gemm->gelu == gelu && f->steps[i].gemm->bias)
      return &f->steps[i];
  return NULL;
}

// A residual stream that no backward pass reads has one buffer, to which the last GEMM of each
// block adds.
static void check_plan(void) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = model(c, "bf16");
  lm_plan_options target = lm_cuda_options("sm_90a", false);
  CHECK(lm_pipeline_run(m, LM_STAGE_KERNEL,
                        &(lm_pass_env){.target = &target.target, .codegen = target.codegen}));
  lm_plan *p = lm_plan_build(m, &target), *again = NULL;
  lm_buf why = {0}, once = {0}, twice = {0};
  for (int i = 0; p && i < p->n_funcs; i++)
    CHECK(lm_plan_check(p, &p->funcs[i], &why));
  const lm_plan_step *add = step_find(p, "loss", true, false);
  const lm_plan_step *gelu = step_find(p, "loss", false, true);
  const lm_plan_step *kept = step_find(p, "micro", false, true);
  CHECK(add && add->n_read == 4 && add->n_write == 1 &&
        add->bufs[2].offset == add->bufs[4].offset && add->bufs[2].live == add->bufs[4].live);
  CHECK(gelu && gelu->n_read == 3 && gelu->n_write == 1 && kept && kept->n_read == 3 &&
        kept->n_write == 2);
  lm_plan_print(p, &once);
  CHECK_OK(lm_plan_parse(c->arena, once.p, once.n, &again));
  lm_plan_print(again, &twice);
  CHECK(!strcmp(once.p, twice.p));
  lm_buf_free(&why);
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_ctx_destroy(c);
}

// dot_add and dot_gelu print and parse; malformed ones are rejected with a message.
static void check_text(void) {
  static const char head[] =
      "stage kernel\naxis a = 3, c = 5, f = 8\nfunc @f(%x: f32[a, c], %w: f32[c, f], %r: f32[a, "
      "f], %b: f32[f], %l: f32[a]) -> (y: f32[a, f]) {\n";
  static const struct {
    const char *body, *error;
  } cases[] = {
      {"%y = dot_add %x, %w, %r, %b over(c) return %y }", NULL},
      {"%y, %u = dot_gelu %x, %w over(c) return %y }", NULL},
      {"%y = dot_add %x, %w over(c) return %y }", "has neither residual nor bias"},
      {"%y = dot_add %x, %w, %b, %r over(c) return %y }",
       "is neither residual nor bias of f32[a, f]"},
      {"%y = dot_add %x, %w, %l over(c) return %y }", "f32[a] is neither residual nor bias"},
      {"%y = dot_gelu %x, %w over(c) return %y }", "gives 2 results, not 1"},
  };
  for (size_t i = 0; i < LM_COUNT(cases); i++) {
    lm_ctx *c = lm_ctx_create();
    lm_buf b = {0}, reported = {0};
    lm_buf_printf(&b, "%s%s", head, cases[i].body);
    lm_module *m = lm_module_parse(c, lm_source_add(c, "t.lmir", b.p, b.n));
    lm_diag_render(c, &reported, 0);
    CHECK(!m == (cases[i].error != NULL) &&
          (!cases[i].error || strstr(reported.p, cases[i].error)));
    lm_buf_free(&b);
    lm_buf_free(&reported);
    lm_ctx_destroy(c);
  }
}

int main(void) {
  check_values();
  check_plan();
  check_text();
}
