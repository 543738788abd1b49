// chunk_test.c - the projection to the vocabulary and its loss, some rows at a time: the same numbers as the whole at once,
// forward and backward in one loop, and the logits nowhere whole.
#include "tests/numeric/grad_check.h"

// 1024 rows of 4104 logits: two turns of 512. TIED and a bias of the logits, a soft cap, smoothing and a z-loss.
static const char head[] =
  "stage graph\naxis b = 4, t = 256, d = 2, v = 4104\n"
  "param @embed : f32[v, d]\nparam @head : f32[v, d]\nparam @bias : f32[v]\nparam @scale : f32[d]\n"
  "func @loss(%tok: int[b, t], %next: int[b, t], %w: f32[b, t]) -> (sum: f32, weight: f32) {\n"
  "  %e = param @embed : f32[v, d]\n  %s = param @scale : f32[d]\n"
  "  %x0 = gather %e, %tok over(v)\n  %x1 = mul %x0, %s\n  %x = tanh %x1\n";
static const char tied[] = "  %z = dot %x, %e over(d)\n";
static const char untied[] = "  %h = param @head : f32[v, d]\n  %bias = param @bias : f32[v]\n  %z0 = dot %x, %h over(d)\n  %z = add %z0, %bias\n";
static const char plain[] = "  %c = mul %z, %z\n  %zero = const 0.125 : f32\n";
static const char capped[] = "  %cap = const 3 : f32\n  %z1 = div %z, %cap\n  %z2 = tanh %z1\n  %c = mul %z2, %cap\n  %zero = const 0.1 : f32\n";
static const char tail[] =
  "  %m0 = max %c over(v)\n  %m = stop_grad %m0\n  %y = sub %c, %m\n  %x2 = exp %y\n  %n = sum %x2 over(v)\n  %l = log %n\n"
  "  %g = gather %y, %next over(v)\n  %nll = sub %l, %g\n  %all = sum %y over(v)\n  %eps = const 0.001 : f32\n"
  "  %smooth = mul %all, %eps\n  %a = sub %nll, %smooth\n  %lse = add %l, %m\n  %sq = mul %lse, %lse\n  %zl = mul %sq, %zero\n"
  "  %rows = add %a, %zl\n  %r = mul %rows, %w\n  %total = sum %r over(b, t)\n  %weight = sum %w over(b, t)\n"
  "  return %total, %weight\n}\n";

typedef struct run { lm_ctx *c; lm_module *m; lm_eval *e; double loss; int loops; int64_t largest; } run;

static void look(lm_op *op, void *user) {
  run *r = user;
  r->loops += op->code == LM_OP_LOOP;
  for (uint32_t i = 0; op->code == LM_OP_DOT && i < op->n_out; i++)
    if (lm_type_elements(r->m, op->out[i]->type) > r->largest) r->largest = lm_type_elements(r->m, op->out[i]->type);
}

static run run_make(const char *projection, const char *logits, const char *passes) {
  lm_buf text = {0};
  const char *parts[] = {head, projection, logits, tail};
  for (size_t i = 0; i < LM_COUNT(parts); i++) lm_buf_puts(&text, parts[i]);
  run r = {.c = lm_ctx_create()};
  r.m = must_parse(r.c, "chunk", text.p, text.n);
  lm_buf_free(&text);
  must_run(r.m, passes);
  lm_region_walk(lm_func_find(r.m, "micro")->body, look, &r);
  r.e = lm_eval_create(r.m);
  uint64_t state = 7;
  for (uint32_t k = 0; k < r.m->n_globals; k++) fill_real(lm_eval_global(r.e, r.m->globals[k].name), -1, 1, &state);
  const lm_func *micro = lm_func_find(r.m, "micro");
  lm_tensor args[3];
  for (int i = 0; i < 3; i++) args[i] = lm_eval_tensor(r.e, micro->body->args[i]->type);
  fill_int(&args[0], 4104, &state);
  fill_int(&args[1], 4104, &state);
  fill_real(&args[2], 0, 1, &state);
  r.loss = first_result(r.e, micro, args);
  for (int i = 0; i < 3; i++) lm_tensor_free(&args[i]);
  return r;
}

static void run_free(run *r) {
  lm_eval_destroy(r->e);
  lm_ctx_destroy(r->c);
}

static void compare(const char *projection, const char *logits) {
  run whole = run_make(projection, logits, "grad,simplify,cse,dce"),
      parts = run_make(projection, logits, "simplify,cse,dce,chunk,dce,grad,simplify,cse,dce,jam,cse,dce");
  CHECK(whole.loops == 0 && whole.largest == 1024 * 4104);
  CHECK(parts.loops == 1 && parts.largest == 512 * 4104);
  CHECK(fabs(whole.loss - parts.loss) <= 1e-12 * fabs(whole.loss));
  int seen = 0;
  for (uint32_t k = 0; k < whole.m->n_globals; k++) {
    lm_tensor *a = lm_eval_gradient(whole.e, whole.m->globals[k].name), *b = lm_eval_gradient(parts.e, whole.m->globals[k].name);
    double norm = 0, error = 0;
    for (int64_t i = 0; i < a->n; i++) {
      norm += a->v[i] * a->v[i];
      error += (a->v[i] - b->v[i]) * (a->v[i] - b->v[i]);
    }
    CHECK(error <= 1e-24 * norm);
    seen += norm > 0;
  }
  CHECK(seen >= 2);
  run_free(&whole);
  run_free(&parts);
}

int main(void) {
  compare(tied, plain);
  compare(untied, capped);
  return 0;
}
