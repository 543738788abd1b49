// gemm_case.h - GEMMs whose results a kernel reads, as modules built from text, for tests that run
// or compile the kernels that pass gemm_kernels makes of both.
#ifndef LM_TESTS_CUDA_GEMM_CASE_H
#define LM_TESTS_CUDA_GEMM_CASE_H
#include "codegen/cuda/cuda.h"
#include "compiler/ir/dot.h"
#include "tests/codegen/run.h"
#include "tests/cuda/passes.h"

// x [b, t, d] times w: d rows of n columns, or (`by_k`) n rows of d. `rest` computes the results
// from %p [b, t, n]; `in` are its further parameters.
typedef struct gemm_case {
  const char *name, *axes;
  bool by_k;
  const char *in, *results, *rest;
  const char *columns; // the column axes of w and %p if they are not the one axis n; NULL: n
} gemm_case;

// Gate and up beside each other in n, each f wide; %p is a result, too, for the backward pass.
#define SWIGLU_RESULTS "h: bf16[b, t, f], p: bf16[b, t, n]"
#define SWIGLU(f)                                                                                  \
  "  %g = slice %p (n) -> (f) [0, 1]\n  %u = slice %p (n) -> (f) [" #f ", 1]\n"                    \
  "  %s = logistic %g\n  %a = mul %g, %s\n  %h = mul %a, %u\n  return %h, %p\n"
// Its derivative: %p is the cotangent of h, %q holds gate and up.
#define SWIGLU_VJP_IN ", %q: bf16[b, t, m]"
#define SWIGLU_VJP_RESULTS "q: bf16[b, t, m]"
#define SWIGLU_VJP(n)                                                                              \
  "  %g = slice %q (m) -> (n) [0, 1]\n  %u = slice %q (m) -> (n) [" #n ", 1]\n"                    \
  "  %s = logistic %g\n  %a = mul %g, %s\n  %du = mul %p, %a\n  %c = mul %p, %u\n"                 \
  "  %one = const 1 : bf16\n  %r = sub %one, %s\n  %k = mul %g, %r\n  %l = add %one, %k\n"         \
  "  %o = mul %s, %l\n  %dg = mul %c, %o\n  %z = concat %dg, %du (n, n) -> (m)\n  return %z\n"
// A bias, gelu, the factor of a row and a residual; f32 sums that are stored.
#define GELU_IN ", %bias: f32[n], %row: f32[b, t], %x0: bf16[b, t, n]"
#define GELU_RESULTS "y: bf16[b, t, n], v: f32[b, t, n]"
#define GELU                                                                                       \
  "  %v = add %p, %bias\n  %v2 = mul %v, %v\n  %v3 = mul %v2, %v\n  %c = const 0.044715 : f32\n"   \
  "  %w3 = mul %v3, %c\n  %z = add %v, %w3\n  %k = const 0.7978845608 : f32\n  %zk = mul %z, %k\n" \
  "  %t = tanh %zk\n  %one = const 1 : f32\n  %t1 = add %t, %one\n  %h = const 0.5 : f32\n"        \
  "  %vh = mul %v, %h\n  %g = mul %vh, %t1\n  %gr = mul %g, %row\n  %gb = cast %gr : bf16[b, t, "  \
  "n]\n  %y = add %gb, %x0\n  return %y, %v\n"

// delta of attention's backward pass: a sum for each head, of the dot times an operand.
#define DELTA_IN ", %o: bf16[b, t, g, h, e]"
#define DELTA_RESULTS "m: f32[b, t, g, h], p: bf16[b, t, g, h, e]"
#define DELTA                                                                                      \
  "  %q = cast %p : f32[b, t, g, h, e]\n  %r = cast %o : f32[b, t, g, h, e]\n"                     \
  "  %s = mul %q, %r\n  %m = sum %s over(e)\n  return %m, %p\n"
// The norm of each head, and rotary embedding of its halves.
#define HEADS_IN ", %w1: bf16[e], %co: f32[b, t, c], %si: f32[b, t, c]"
#define HEADS_RESULTS "y: bf16[b, t, g, h, e], v: f32[b, t, g, h], p: bf16[b, t, n]"
#define HEADS                                                                                      \
  "  %q = view %p (n) -> (g, h, e)\n  %x1 = cast %q : f32[b, t, g, h, e]\n"                        \
  "  %x2 = mul %x1, %x1\n  %v = sum %x2 over(e)\n  %k = const 0.015625 : f32\n"                    \
  "  %m = mul %v, %k\n  %r = rsqrt %m\n  %y1 = mul %x1, %r\n"                                      \
  "  %y2 = cast %y1 : bf16[b, t, g, h, e]\n  %y3 = mul %y2, %w1\n"                                 \
  "  %y4 = cast %y3 : f32[b, t, g, h, e]\n  %z = view %y4 (e) -> (two, c)\n"                       \
  "  %z0 = slice %z (two) -> () [0, 1]\n  %z1 = slice %z (two) -> () [1, 1]\n"                     \
  "  %a = mul %z0, %co\n  %a1 = mul %z1, %si\n  %a2 = sub %a, %a1\n"                               \
  "  %d1 = mul %z1, %co\n  %d2 = mul %z0, %si\n  %d3 = add %d1, %d2\n"                             \
  "  %e0 = expand %a2 : f32[b, t, g, h, one, c]\n  %e1 = expand %d3 : f32[b, t, g, h, one, c]\n"   \
  "  %f = concat %e0, %e1 (one, one) -> (two)\n  %f1 = view %f (two, c) -> (e)\n"                  \
  "  %y = cast %f1 : bf16[b, t, g, h, e]\n  return %y, %v, %p\n"
// Queries, keys and values beside each other: the norm of each head of queries and of keys, and
// rotary embedding; without norms, rotary embedding alone. `q`, `k`: the first columns of each.
#define QKV_IN ", %wq: bf16[e], %wk: bf16[e], %co: f32[b, t, c], %si: f32[b, t, c]"
#define QKV_ROTATED(P, X, AXES, E)                                                                 \
  "  %" P "r = cast %" X " : f32[" AXES ", " E "]\n  %" P "z = view %" P "r (" E ") -> (two, c)\n" \
  "  %" P "0 = slice %" P "z (two) -> () [0, 1]\n  %" P "1 = slice %" P "z (two) -> () [1, 1]\n"   \
  "  %" P "a = mul %" P "0, %co\n  %" P "b = mul %" P "1, %si\n  %" P "c = sub %" P "a, %" P       \
  "b\n  %" P "d = mul %" P "1, %co\n  %" P "e = mul %" P "0, %si\n  %" P "f = add %" P "d, %" P    \
  "e\n  %" P "g = expand %" P "c : f32[" AXES ", one, c]\n  %" P "h = expand %" P "f : f32[" AXES  \
  ", one, c]\n  %" P "i = concat %" P "g, %" P "h (one, one) -> (two)\n  %" P "j = view %" P       \
  "i (two, c) -> (" E ")\n  %" P "y = cast %" P "j : bf16[" AXES ", " E "]\n"
#define QKV_NORMED(P, X, AXES)                                                                     \
  "  %" P "x1 = cast %" X " : f32[" AXES ", e]\n  %" P "x2 = mul %" P "x1, %" P "x1\n"             \
  "  %" P "v = sum %" P "x2 over(e)\n  %" P "k = const 0.015625 : f32\n"                           \
  "  %" P "m = mul %" P "v, %" P "k\n  %" P "s = rsqrt %" P "m\n"                                  \
  "  %" P "x3 = mul %" P "x1, %" P "s\n  %" P "x4 = cast %" P "x3 : bf16[" AXES ", e]\n"           \
  "  %" P "x5 = mul %" P "x4, %w" P "\n" QKV_ROTATED(P, P "x5", AXES, "e")
#define QKV_VIEWS(q, k)                                                                            \
  "  %q9 = slice %p (n) -> (nq) [" #q ", 1]\n  %q8 = view %q9 (nq) -> (g, h, e)\n"                 \
  "  %k9 = slice %p (n) -> (nk) [" #k ", 1]\n  %k8 = view %k9 (nk) -> (g, e)\n"
#define QKV_RESULTS                                                                                \
  "qy: bf16[b, t, g, h, e], qv: f32[b, t, g, h], ky: bf16[b, t, g, e], kv: f32[b, t, g], "         \
  "p: bf16[b, t, n]"
#define QKV(q, k)                                                                                  \
  QKV_VIEWS(q, k)                                                                                  \
  QKV_NORMED("q", "q8", "b, t, g, h")                                                              \
  QKV_NORMED("k", "k8", "b, t, g") "  return %qy, %qv, %ky, %kv, %p\n"
#define ROTATED_RESULTS "qy: bf16[b, t, g, h, e], ky: bf16[b, t, g, e], p: bf16[b, t, n]"
#define ROTATED(q, k)                                                                              \
  QKV_VIEWS(q, k)                                                                                  \
  QKV_ROTATED("q", "q8", "b, t, g, h", "e")                                                        \
  QKV_ROTATED("k", "k8", "b, t, g", "e") "  return %qy, %ky, %p\n"
// Queries alone, behind columns that only the dot's reader has.
#define QUERIES_RESULTS "qy: bf16[b, t, g, h, e], qv: f32[b, t, g, h], p: bf16[b, t, n]"
#define QUERIES(q)                                                                                 \
  "  %q9 = slice %p (n) -> (nq) [" #q ", 1]\n  %q8 = view %q9 (nq) -> (g, h, e)\n" QKV_NORMED(     \
      "q", "q8", "b, t, g, h") "  return %qy, %qv, %p\n"

// Rotary embedding of the first channels of each head; `all` are the heads of queries, keys and
// values.
#define QKV_PARTLY(P, AXES)                                                                        \
  "  %" P "7 = slice %" P "8 (e) -> (first) [0, 1]\n" QKV_ROTATED(                                 \
      P, P "7", AXES, "first") "  %" P "6 = slice %" P "8 (e) -> (rest) [16, 1]\n  %" P            \
                               "p = concat %" P "y, %" P "6 (first, rest) -> (e)\n"
#define PARTLY_RESULTS "qp: bf16[b, t, g, h, e], kp: bf16[b, t, g, e], p: bf16[b, t, all, e]"
#define PARTLY(k)                                                                                  \
  "  %q9 = slice %p (all) -> (nq) [0, 1]\n  %q8 = view %q9 (nq) -> (g, h)\n"                       \
  "  %m9 = slice %p (all) -> (m) [" #k ", 1]\n  %m8 = view %m9 (m) -> (two, g)\n"                  \
  "  %k8 = slice %m8 (two) -> () [0, 1]\n" QKV_PARTLY("q", "b, t, g, h")                           \
      QKV_PARTLY("k", "b, t, g") "  return %qp, %kp, %p\n"

// Squares of columns with two axes.
#define SQUARES_RESULTS "y: bf16[b, t, g, e]"
#define SQUARES "  %y = mul %p, %p\n  return %y\n"

static inline void gemm_text(const gemm_case *c, lm_buf *b) {
  bool f32 = strstr(c->results, "f32[b, t, n]") != NULL;
  const char *n = c->columns ? c->columns : "n";
  lm_buf_printf(b, "stage step\naxis %s\nfunc @f(%%x: bf16[b, t, d], ", c->axes);
  lm_buf_printf(b, c->by_k ? "%%w: bf16[%s, d]" : "%%w: bf16[d, %s]", n);
  lm_buf_printf(b, "%s) -> (%s) {\n  %%p = dot %%x, %%w over(d) : %s[b, t, %s]\n%s}\n", c->in,
                c->results, f32 ? "f32" : "bf16", n, c->rest);
}

static inline void gemm_kernels_make(const lm_module *m) {
  cuda_pass_run(m, "gemm_kernels", "sm_90a", 0);
}

// The plan's kernel that begins with a GEMM; -1: there is none.
static inline int gemm_kernel_of(const lm_plan *plan) {
  for (int i = 0; i < plan->n_kernels; i++)
    if (plan->kernels[i].name[0] == 'g')
      return i;
  return -1;
}

// The plan of a case, which has such a kernel; in the arena of its module, which `ctx` owns.
static inline lm_plan *gemm_plan(lm_ctx *ctx, const gemm_case *c, const lm_plan_options *target) {
  lm_buf text = {0};
  gemm_text(c, &text);
  lm_module *m = parse_and_run(ctx, text.p, "fuse");
  lm_buf_free(&text);
  gemm_kernels_make(m);
  lm_plan *plan = lm_plan_build(m, target);
  CHECK(plan && gemm_kernel_of(plan) >= 0);
  return plan;
}
#endif
