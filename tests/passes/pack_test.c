// pack_test.c - products of one input side by side: the same loss and gradients as apart, in fewer products.
#include "tests/numeric/grad_check.h"

// Two layers of grouped queries, keys with a bias and values behind a norm, dropout on what comes out. @wk of the first layer
// is read once more from outside (tied), @wf is stopped and stays apart, @wt lies the other way round, as @wu does.
static const char text[] =
  "stage graph\naxis b = 2, t = 3, d = 4, g = 2, h = 3, e = 5, f = 6, layers = 2\n"
  "param @wq : f32[layers, d, g, h, e] stacked 1\nparam @wk : f32[layers, d, g, e] stacked 1\nparam @wv : f32[layers, d, g, e] stacked 1\n"
  "param @bk : f32[layers, e] stacked 1\nparam @wo : f32[layers, g, h, e, d] stacked 1\n"
  "param @wt : f32[f, d]\nparam @wu : f32[f, d]\nparam @wf : f32[d, f]\nparam @wl : f32[d, f]\n"
  "func @loss(%x: f32[b, t, d], %step: int, %row: int) -> (sum: f32, weight: f32) {\n"
  "  %y = loop 2 over(layers) %i carry(%c = %x) {\n"
  "    %wq = param @wq[%i * 1 + 0] : f32[d, g, h, e]\n    %q = dot %c, %wq over(d)\n"
  "    %wk = param @wk[%i * 1 + 0] : f32[d, g, e]\n    %k0 = dot %c, %wk over(d)\n    %bk = param @bk[%i * 1 + 0] : f32[e]\n    %k = add %k0, %bk\n"
  "    %wv = param @wv[%i * 1 + 0] : f32[d, g, e]\n    %v = dot %c, %wv over(d)\n"
  "    %k2 = mul %k, %k\n    %n = sum %k2 over(e)\n    %r = rsqrt %n\n    %kn = mul %k, %r\n    %s = mul %q, %kn\n    %a = sum %s over(e)\n    %o = mul %q, %v\n"
  "    %o2 = mul %o, %a\n    %u = rng %step, %row, %i [7, 3] : f32[b, t, g, h, e]\n    %p = const 0.25 : f32\n    %keep = ge %u, %p\n"
  "    %zero = const 0 : f32\n    %od = select %keep, %o2, %zero : f32[b, t, g, h, e]\n"
  "    %wo = param @wo[%i * 1 + 0] : f32[g, h, e, d]\n    %z = dot %od, %wo over(g, h, e)\n    %z1 = tanh %z\n    yield %z1\n"
  "  } : f32[b, t, d]\n"
  "  %wt = param @wt : f32[f, d]\n  %wu = param @wu : f32[f, d]\n  %wf0 = param @wf : f32[d, f]\n  %wl = param @wl : f32[d, f]\n"
  "  %i0 = const 0 : int\n  %w1 = param @wk[%i0 * 1 + 0] : f32[d, g, e]\n  %tied = dot %y, %w1 over(d)\n  %tk = sum %tied over(g, e)\n"
  "  %g1 = dot %y, %wt over(d)\n  %g2 = dot %y, %wu over(d)\n  %gl = dot %y, %wl over(d)\n  %wf = stop_grad %wf0\n  %g3 = dot %y, %wf over(d)\n"
  "  %m1 = mul %g1, %g2\n  %m2 = mul %m1, %g3\n  %m = add %m2, %gl\n  %m3 = mul %m, %tk\n"
  "  %sum = sum %m3 over(b, t, f)\n  %weight = const 1 : f32\n  return %sum, %weight\n}\n";

typedef struct run { lm_ctx *c; lm_module *m; lm_eval *e; double loss; int products; } run;

static void count(lm_op *op, void *user) { ((run *)user)->products += op->code == LM_OP_DOT; }

static run run_make(const char *passes) {
  run r = {.c = lm_ctx_create()};
  r.m = must_parse(r.c, "pack", text, strlen(text));
  must_run(r.m, passes);
  const lm_func *micro = lm_func_find(r.m, "micro");
  lm_region_walk(micro->body, count, &r);
  r.e = lm_eval_create(r.m);
  uint64_t state = 7;
  for (uint32_t k = 0; k < r.m->n_globals && r.m->globals[k].kind == LM_GLOBAL_PARAM; k++) fill_real(lm_eval_global(r.e, r.m->globals[k].name), -1, 1, &state);
  lm_tensor args[3];
  for (int i = 0; i < 3; i++) args[i] = lm_eval_tensor(r.e, micro->body->args[i]->type);
  fill_real(&args[0], -1, 1, &state);
  args[1].v[0] = 5;
  args[2].v[0] = 0;
  r.loss = first_result(r.e, micro, args);
  for (int i = 0; i < 3; i++) lm_tensor_free(&args[i]);
  return r;
}

static void run_free(run *r) {
  lm_eval_destroy(r->e);
  lm_ctx_destroy(r->c);
}

// Squared distance over squared norm.
static double distance(const lm_tensor *a, const lm_tensor *b) {
  double norm = 0, error = 0;
  for (int64_t i = 0; i < a->n; i++) {
    norm += a->v[i] * a->v[i];
    error += (a->v[i] - b->v[i]) * (a->v[i] - b->v[i]);
  }
  return norm > 0 ? error / norm : error;
}

static void compare(const run *apart, const run *side) {
  int with = 0;
  CHECK(fabs(apart->loss - side->loss) <= 1e-12 * fabs(apart->loss) && apart->loss != 0);
  for (uint32_t k = 0; k < apart->m->n_globals; k++) {
    const lm_tensor *a = lm_eval_gradient(apart->e, apart->m->globals[k].name), *b = lm_eval_gradient(side->e, apart->m->globals[k].name);
    CHECK(distance(a, b) <= 1e-24);
    double most = 0;
    for (int64_t i = 0; i < a->n; i++) most = fmax(most, fabs(a->v[i]));
    with += most > 0;
  }
  CHECK(with == (int)apart->m->n_globals - 1);                 // all but the stopped one
}

// What @copies makes prints and parses back.
static void reread(lm_module *m) {
  lm_buf text = {0}, again = {0};
  lm_module_print(m, &text);
  lm_ctx *c = lm_ctx_create();
  lm_module_print(must_parse(c, "made", text.p, text.n), &again);
  CHECK(!strcmp(text.p, again.p) && strstr(text.p, "\nmade @made.0 : f32[layers, d, pack] stacked 1\n"));
  lm_buf_free(&text);
  lm_buf_free(&again);
  lm_ctx_destroy(c);
}

int main(void) {
  run apart = run_make("grad,simplify,cse,dce"), side = run_make("pack,dce,grad,simplify,cse,dce"),
      made = run_make("pack,dce,grad,simplify,cse,dce,widen,copies,dce");
  // Forward and of the inputs' cotangents: of three products in the loop one is left, behind it one of wk and wl, one of wt and wu.
  CHECK(side.products == apart.products - 2 * (2 + 1 + 1));
  compare(&apart, &side);
  compare(&apart, &made);
  reread(made.m);
  run_free(&apart);
  run_free(&side);
  run_free(&made);
  return 0;
}
