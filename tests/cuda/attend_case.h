// attend_case.h - attention and its derivative as a module, built from text, for tests that run or
// compile its kernels. Queries, keys and values are parameters, so that their gradients are
// results.
#ifndef LM_TESTS_CUDA_ATTEND_CASE_H
#define LM_TESTS_CUDA_ATTEND_CASE_H
#include "codegen/cuda/cuda.h"
#include "tests/codegen/run.h"

// `factor` computes the weights %pf from %ex, %l and %p; NULL: the weights are %p. rotated: queries
// and keys have an RMS norm with a weight and rotary embedding.
typedef struct attend_case {
  const char *name, *type, *axes, *bias, *score, *mask, *factor;
  bool rotated;
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

// %$ has the axes #, e; %$r is its RMS norm, times the weight @$n, with the halves of heads rotated
// by the document.
#define ROTATED_NORM                                                                               \
  "  %$_0 = cast %$ : f32[#, e]\n  %$_1 = mul %$_0, %$_0\n  %$_2 = sum %$_1 over(e)\n"             \
  "  %$_3 = const 0.02 : f32\n  %$_4 = mul %$_2, %$_3\n  %$_5 = const 1e-6 : f32\n"                \
  "  %$_6 = add %$_4, %$_5\n  %$_7 = rsqrt %$_6\n  %$_8 = expand %$_7 : f32[#, e]\n"               \
  "  %$_9 = mul %$_0, %$_8\n  %$_a = cast %$_9 : bf16[#, e]\n  %$_b = param @$n : f32[e]\n"        \
  "  %$_c = cast %$_b : bf16[e]\n  %$_d = expand %$_c : bf16[#, e]\n"                              \
  "  %$_e = mul %$_a, %$_d\n  %$_f = cast %$_e : f32[#, e]\n"                                      \
  "  %$_g = view %$_f (e) -> (two, c)\n  %$_h = slice %$_g (two) -> () [0, 1]\n"                   \
  "  %$_i = slice %$_g (two) -> () [1, 1]\n  %$_j = expand %cos : f32[#, c]\n"                     \
  "  %$_k = expand %sin : f32[#, c]\n  %$_l = mul %$_h, %$_j\n  %$_m = mul %$_i, %$_k\n"           \
  "  %$_n = sub %$_l, %$_m\n  %$_o = mul %$_i, %$_j\n  %$_p = mul %$_h, %$_k\n"                    \
  "  %$_q = add %$_o, %$_p\n  %$_s = expand %$_n : f32[#, one, c]\n"                               \
  "  %$_t = expand %$_q : f32[#, one, c]\n  %$_u = concat %$_s, %$_t (one, one) -> (two)\n"        \
  "  %$_v = view %$_u (two, c) -> (e)\n  %$r = cast %$_v : bf16[#, e]\n"
#define ANGLES                                                                                     \
  "  %ci = iota : int[c]\n  %cf = cast %ci : f32[c]\n  %pf0 = cast %seg : f32[b, t]\n"             \
  "  %pe = expand %pf0 : f32[b, t, c]\n  %ce = expand %cf : f32[b, t, c]\n"                        \
  "  %step = const 0.07 : f32\n  %an = mul %pe, %ce\n  %ang = mul %an, %step\n"                    \
  "  %cos = cos %ang\n  %sin = sin %ang\n"

static inline void rotated_put(lm_buf *b, char letter, const char *axes) {
  for (const char *p = ROTATED_NORM; *p; p++)
    if (*p == '$')
      lm_buf_printf(b, "%c", letter);
    else if (*p == '#')
      lm_buf_puts(b, axes);
    else
      lm_buf_add(b, p, 1);
}

// Axes that split a head of 2 n elements into two halves, as rotary embedding does, and the weights
// of the norms of queries and keys.
#define HALVES(n) ", two = 2, one = 1, c = " #n
#define NORMS "param @qn : f32[e] = ones\nparam @jn : f32[e] = ones\n"

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
                "%%v1 = cast %%v0 : %s[b, t, g, e]\n  %%j = cast %%k0 : %s[b, t, g, e]\n",
                c->type, c->type, c->type, c->type);
  if (c->rotated) {
    lm_buf_puts(b, ANGLES);
    rotated_put(b, 'q', "b, t, g, h");
    rotated_put(b, 'j', "b, t, g");
  }
  lm_buf_printf(b, "  %%k = rename %%%s (t) -> (s)\n  %%v = rename %%v1 (t) -> (s)\n",
                c->rotated ? "jr" : "k1");
  lm_buf_printf(b, "  %%a = dot %%%s, %%k over(e)\n", c->rotated ? "qr" : "q");
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

// Passes to stage kernel: kernels of attend_vjp read delta, or compute it; and have an epilogue.
#define WITH_DELTA "attend_delta,decompose,cse,dce,fuse"
#define WITHOUT_DELTA "decompose,cse,dce,fuse"
#define WITH_EPILOGUE WITH_DELTA ",attend_epilogue,dce"

// passes: NULL for a module at stage step.
static inline lm_module *module_make(lm_ctx *ctx, const char *text, const char *passes) {
  lm_module *m = parse_and_run(ctx, text, "simplify,cse,dce,attend,grad,simplify,cse,licm,dce");
  lm_func *micro = lm_func_find(m, "micro");
  CHECK(micro && count(micro->body, LM_OP_ATTEND) == 1 &&
        count(micro->body, LM_OP_ATTEND_VJP) == 1);
  bool ok = true;
  static const char *const forced[] = {"attend_epilogue"};
  const lm_plan_options o = lm_cuda_options("sm_90a", false);
  lm_pass_env env = {.codegen = &lm_cuda_codegen};
  if (passes && strstr(passes, "attend_epilogue")) {
    env.target = &o.target;
    env.forced = forced;
    env.n_forced = 1;
  }
  if (passes)
    CHECK_OK(lm_pass_run_list(m, passes, &env, &ok));
  return m;
}
#endif
