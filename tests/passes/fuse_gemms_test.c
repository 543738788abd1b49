// fuse_gemms_test.c - GEMMs that share an input become one: the loss and the gradients equal
// separate GEMMs, and there are fewer GEMMs.
#include "tests/numeric/grad_check.h"

// Two layers of grouped queries, keys with a bias, and values after a norm, with dropout on the
// result. @wk of the first layer is also read outside of the loop (tied); @wf is behind a stop_grad
// and is not fused; @wt and @wu are stored transposed.
static const char text[] =
    "stage graph\naxis b = 2, t = 3, d = 4, g = 2, h = 3, e = 5, f = 6, layers = 2\n"
    "param @wq : f32[layers, d, g, h, e] stacked 1\nparam @wk : f32[layers, d, g, e] stacked "
    "1\nparam @wv : f32[layers, d, g, e] stacked 1\n"
    "param @bk : f32[layers, e] stacked 1\nparam @wo : f32[layers, g, h, e, d] stacked 1\n"
    "param @wt : f32[f, d]\nparam @wu : f32[f, d]\nparam @wf : f32[d, f]\nparam @wl : f32[d, f]\n"
    "func @loss(%x: f32[b, t, d], %step: int, %row: int) -> (sum: f32, weight: f32) {\n"
    "  %y = loop 2 over(layers) %i carry(%c = %x) {\n"
    "    %wq = param @wq[%i * 1 + 0] : f32[d, g, h, e]\n    %q = dot %c, %wq over(d)\n"
    "    %wk = param @wk[%i * 1 + 0] : f32[d, g, e]\n    %k0 = dot %c, %wk over(d)\n    %bk = "
    "param @bk[%i * 1 + 0] : f32[e]\n    %k = add %k0, %bk\n"
    "    %wv = param @wv[%i * 1 + 0] : f32[d, g, e]\n    %v = dot %c, %wv over(d)\n"
    "    %k2 = mul %k, %k\n    %n = sum %k2 over(e)\n    %r = rsqrt %n\n    %kn = mul %k, %r\n    "
    "%s = mul %q, %kn\n    %a = sum %s over(e)\n    %o = mul %q, %v\n"
    "    %o2 = mul %o, %a\n    %ib = iota : int[b]\n    %u = rng %step, %ib, %row, %i [7, 3, 9] : "
    "f32[b, t, g, h, e]\n    %p = "
    "const 0.25 : f32\n    %keep = ge %u, %p\n"
    "    %zero = const 0 : f32\n    %od = select %keep, %o2, %zero : f32[b, t, g, h, e]\n"
    "    %wo = param @wo[%i * 1 + 0] : f32[g, h, e, d]\n    %z = dot %od, %wo over(g, h, e)\n    "
    "%z1 = tanh %z\n    yield %z1\n"
    "  } : f32[b, t, d]\n"
    "  %wt = param @wt : f32[f, d]\n  %wu = param @wu : f32[f, d]\n  %wf0 = param @wf : f32[d, "
    "f]\n  %wl = param @wl : f32[d, f]\n"
    "  %i0 = const 0 : int\n  %w1 = param @wk[%i0 * 1 + 0] : f32[d, g, e]\n  %tied = dot %y, %w1 "
    "over(d)\n  %tk = sum %tied over(g, e)\n"
    "  %g1 = dot %y, %wt over(d)\n  %g2 = dot %y, %wu over(d)\n  %gl = dot %y, %wl over(d)\n  %wf "
    "= stop_grad %wf0\n  %g3 = dot %y, %wf over(d)\n"
    "  %m1 = mul %g1, %g2\n  %m2 = mul %m1, %g3\n  %m = add %m2, %gl\n  %m3 = mul %m, %tk\n"
    "  %sum = sum %m3 over(b, t, f)\n  %weight = const 1 : f32\n  return %sum, %weight\n}\n";

static void count(lm_op *op, void *user) {
  *(int *)user += op->code == LM_OP_DOT;
}

static int dots(const micro_run *r) {
  int n = 0;
  lm_region_walk(lm_func_find(r->m, "micro")->body, count, &n);
  return n;
}

static void fill(lm_tensor *args, uint64_t *state) {
  fill_real(&args[0], -1, 1, state);
  args[1].v[0] = 5;
  args[2].v[0] = 0;
}

static micro_run run(const char *passes) {
  return micro_run_make("fuse_gemms", text, passes, fill);
}

static void compare(const micro_run *apart, const micro_run *side) {
  CHECK(apart->loss != 0);
  CHECK(micro_runs_agree(apart, side) ==
        (int)apart->m->n_globals - 1); // all but @wf, which is behind a stop_grad
}

// The globals that @copies fills print and parse.
static void reread(lm_module *m) {
  lm_buf text = {0}, again = {0};
  lm_module_print(m, &text);
  lm_ctx *c = lm_ctx_create();
  lm_module_print(must_parse(c, "derived", text.p, text.n), &again);
  CHECK(!strcmp(text.p, again.p) &&
        strstr(text.p, "\nderived @derived.0 : f32[layers, d, pack] stacked 1\n"));
  lm_buf_free(&text);
  lm_buf_free(&again);
  lm_ctx_destroy(c);
}

int main(void) {
  micro_run apart = run("grad,simplify,cse,dce");
  micro_run side = run("fuse_gemms,dce,grad,simplify,cse,dce");
  micro_run made = run("fuse_gemms,dce,grad,simplify,cse,dce,accum_f32,hoist_params,dce");
  // Forward, and cotangents of the inputs: one GEMM is left of three in the loop; after it, one of
  // wk and wl, and one of wt and wu.
  CHECK(dots(&side) == dots(&apart) - 2 * (2 + 1 + 1));
  compare(&apart, &side);
  compare(&apart, &made);
  reread(made.m);
  micro_run_free(&apart);
  micro_run_free(&side);
  micro_run_free(&made);
  return 0;
}
