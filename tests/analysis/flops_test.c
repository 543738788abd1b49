// flops_test.c - FLOPs counted from shapes: a dot, attention with and without a causal mask, its
// derivative.
#include "compiler/analysis/flops.h"
#include "tests/attend/cases.h"
#include "tests/numeric/grad_check.h"

typedef struct sums {
  const lm_module *m;
  double dot, attend, vjp;
} sums;

static void add(lm_op *op, void *user) {
  sums *s = user;
  const lm_op *owner = op->parent->owner;
  if (owner)
    return;
  double n = lm_flops_of(s->m, op);
  if (op->code == LM_OP_DOT)
    s->dot += n;
  if (op->code == LM_OP_ATTEND)
    s->attend += n;
  if (op->code == LM_OP_ATTEND_VJP)
    s->vjp += n;
}

static sums count(const char *text, const char *passes, const char *func) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = must_parse(c, "flops.lmir", text, strlen(text));
  if (passes)
    must_run(m, passes);
  sums s = {.m = m};
  lm_region_walk(lm_func_find(m, func)->body, add, &s);
  lm_ctx_destroy(c);
  return s;
}

// b t s g h e f of the case; pairs are b t s g h.
static const int size[8] = {2, 16, 16, 2, 3, 4, 8, 2};
enum {
  PAIRS = 2 * 16 * 16 * 2 * 3,
  E = 4,
  F = 8
};

int main(void) {
  CHECK(count("stage graph\naxis m = 2, k = 3, n = 5\nfunc @f(%x: f32[m, k], %y: f32[k, n]) -> (z: "
              "f32[m, n]) {\n"
              "%z = dot %x, %y over(k)\nreturn %z\n}\n",
              NULL, "f")
            .dot == 2 * 2 * 3 * 5);
  lm_arena *a = lm_arena_create();
  // 0: causal, with a scale; 1: no mask
  sums causal = count(attend_text(a, &attend_cases[0], size), "attend,grad,dce", "micro");
  sums all = count(attend_text(a, &attend_cases[1], size), "attend,grad,dce", "micro");
  double dots = 2.0 * PAIRS * (E + F);
  double backward = 2.0 * PAIRS * (3 * E + 2 * F); // backward: scores again, dq, dk; dp, dv
  CHECK(causal.dot == 0 && all.dot == 0);
  CHECK(all.attend >= dots && all.attend < dots + 8.0 * PAIRS);
  CHECK(causal.attend >= dots / 2 && causal.attend < dots / 2 + 8.0 * PAIRS);
  CHECK(all.vjp >= backward && all.vjp < backward + 16.0 * PAIRS);
  CHECK(causal.vjp >= backward / 2 && causal.vjp < backward / 2 + 16.0 * PAIRS);
  lm_arena_destroy(a);
}
