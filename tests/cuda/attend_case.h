// attend_case.h - attention and its derivative as a module, built from text, for tests that run or
// compile its kernels. Queries, keys and values are parameters, so that their gradients are
// results.
#ifndef LM_TESTS_CUDA_ATTEND_CASE_H
#define LM_TESTS_CUDA_ATTEND_CASE_H
#include "codegen/cuda/cuda.h"
#include "tests/codegen/run.h"

// `factor` computes the weights %pf from %ex, %l and %p; NULL: the weights are %p.
typedef struct attend_case {
  const char *name, *type, *axes, *bias, *score, *mask, *factor;
} attend_case;

#define CAUSAL                                                                                     \
  "  %it = iota : int[t]\n  %is = iota : int[s]\n  %ie = expand %it : int[t, s]\n  %mask = ge "    \
  "%ie, %is\n"
#define DOCUMENTS                                                                                  \
  "  %ss = rename %seg (t) -> (s)\n  %se = expand %seg : int[b, t, s]\n  %mask = eq %se, %ss\n"
#define WINDOW                                                                                     \
  CAUSAL "  %near = const 20 : int\n  %back = sub %ie, %is\n  %n2 = lt %back, %near\n  %both = "   \
         "and %mask, %n2\n"
#define FACTOR "  %sf = cast %seg : f32[b, t]\n  %pf = mul %p, %sf\n"
#define SINK "param @sink : f32[g, h] = zeros\n"
#define SUNK                                                                                       \
  "  %sk = param @sink : f32[g, h]\n  %r0 = sub %sk, %n\n  %r1 = exp %r0\n  %all = add %l, %r1\n " \
  " %pf = div %ex, %all\n"
#define PLAIN "  %y = mul %x, %c\n"
#define CAPPED "  %x0 = mul %x, %c\n  %x1 = tanh %x0\n  %y = mul %x1, %three\n"
#define BIASED "  %x0 = mul %x, %c\n  %bias = param @bias : f32[g, h, s]\n  %y = add %x0, %bias\n"
// Queries and keys that lack the group axis of the values, as in multi-query attention: their
// gradients are sums over g.
#define SHARED "param @q1 : f32[b, t, h, e] = zeros\nparam @k1 : f32[b, t, e] = zeros\n"
#define SHARED_DOT(type)                                                                           \
  "  %q2 = param @q1 : f32[b, t, h, e]\n  %k2 = param @k1 : f32[b, t, e]\n"                        \
  "  %q3 = cast %q2 : " type "[b, t, h, e]\n  %k3 = cast %k2 : " type "[b, t, e]\n"                \
  "  %k4 = rename %k3 (t) -> (s)\n  %a1 = dot %q3, %k4 over(e)\n"                                  \
  "  %x1 = cast %a1 : f32[b, t, h, s]\n  %x2 = mul %x1, %c\n"                                      \
  "  %x3 = expand %x2 : f32[b, t, g, h, s]\n"
#define SHARED_ALONE(type) SHARED_DOT(type) "  %y = mul %x3, %three\n"
#define SHARED_TOO(type) SHARED_DOT(type) "  %x0 = mul %x, %c\n  %y = add %x0, %x3\n"

static inline void text_make(const attend_case *c, lm_buf *b) {
  lm_buf_printf(b,
                "stage graph\naxis %s\nparam @q : f32[b, t, g, h, e] = zeros\nparam @k : f32[b, t, "
                "g, e] = zeros\nparam @v : f32[b, t, g, e] = zeros\n%s",
                c->axes, c->bias);
  lm_buf_puts(b,
              "func @loss(%seg: int[b, t], %w: f32[b, t, g, h, e]) -> (sum: f32, weight: f32) {\n");
  lm_buf_puts(b, "  %q0 = param @q : f32[b, t, g, h, e]\n  %k0 = param @k : f32[b, t, g, e]\n  %v0 "
                 "= param @v : f32[b, t, g, e]\n");
  lm_buf_printf(b,
                "  %%q = cast %%q0 : %s[b, t, g, h, e]\n  %%k1 = cast %%k0 : %s[b, t, g, e]\n  "
                "%%v1 = cast %%v0 : %s[b, t, g, e]\n",
                c->type, c->type, c->type);
  lm_buf_puts(
      b, "  %k = rename %k1 (t) -> (s)\n  %v = rename %v1 (t) -> (s)\n  %a = dot %q, %k over(e)\n");
  lm_buf_puts(
      b, "  %x = cast %a : f32[b, t, g, h, s]\n  %c = const 0.4 : f32\n  %three = const 3 : f32\n");
  lm_buf_printf(b, "%s%s", c->score, c->mask);
  lm_buf_printf(b,
                "  %%low = const -1e30 : f32\n  %%z = select %%%s, %%y, %%low\n  %%m = max %%z "
                "over(s)\n  %%n = stop_grad %%m\n  %%u = sub %%z, %%n\n",
                strstr(c->mask, "%both") ? "both" : "mask");
  lm_buf_printf(b,
                "  %%ex = exp %%u\n  %%l = sum %%ex over(s)\n  %%p = div %%ex, %%l\n%s  %%pc = "
                "cast %%%s : %s[b, t, g, h, s]\n",
                c->factor ? c->factor : "", c->factor ? "pf" : "p", c->type);
  lm_buf_puts(
      b, "  %o = dot %pc, %v over(s)\n  %of = cast %o : f32[b, t, g, h, e]\n  %ow = mul %of, %w\n  "
         "%sum = sum %ow over(b, t, g, h, e)\n  %one = const 1 : f32\n  return %sum, %one\n}\n");
}

static inline int count(lm_region *r, lm_opcode code) {
  int n = 0;
  for (lm_op *op = r->first; op; op = op->next)
    n += op->code == code;
  return n;
}

// Passes to stage kernel: kernels of attend_vjp read delta, or compute it.
#define WITH_DELTA "attend_delta,decompose,cse,dce,fuse"
#define WITHOUT_DELTA "decompose,cse,dce,fuse"

// passes: NULL for a module at stage step.
static inline lm_module *module_make(lm_ctx *ctx, const char *text, const char *passes) {
  lm_module *m = parse_and_run(ctx, text, "simplify,cse,dce,attend,grad,simplify,cse,licm,dce");
  lm_func *micro = lm_func_find(m, "micro");
  CHECK(micro && count(micro->body, LM_OP_ATTEND) == 1 &&
        count(micro->body, LM_OP_ATTEND_VJP) == 1);
  bool ok = true;
  if (passes)
    CHECK_OK(lm_pass_run_list(m, passes, &(lm_pass_env){.codegen = &lm_cuda_codegen}, &ok));
  return m;
}
#endif
