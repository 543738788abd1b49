// cases.h - attention in IR, for tests of the pass, its derivative and the kernels.
//
// A case declares its parameters, and computes %z (scores with s), %m (mask, optional) and the sum
// of weighted values.
#ifndef LM_TESTS_ATTEND_CASES_H
#define LM_TESTS_ATTEND_CASES_H
#include "compiler/ir/attend.h"
#include "compiler/passes/pass.h"
#include "tests/runtime/check.h"

typedef struct attend_case {
  const char *name;
  const char *params;   // further parameters, in addition to q, k, v
  const char *score;    // %z : f32[b, t, g, h, s]
  const char *mask;     // %y from %z
  const char *weighted; // %o : f32[b, t, g, h, f] from %p; NULL: dot %p, %v over(s)
  bool declines;
} attend_case;

#define QK "%a = dot %q, %k over(e)\n"
#define SCALE "%c = const 0.5 : f32\n"
#define MASKED "%n = const -1e30 : f32\n%y = select %m, %z, %n\n"
#define POSITIONS "%pt = expand %pos : int[b, t, s]\n%st = expand %seg : int[b, t, s]\n"
#define CAUSAL POSITIONS "%m1 = ge %pt, %ps\n%m2 = eq %st, %ss\n%m = and %m1, %m2\n" MASKED

static const attend_case attend_cases[] = {
    {"causal in documents", "", QK SCALE "%z = mul %a, %c\n", CAUSAL, NULL, false},
    {"no mask", "", QK SCALE "%z = mul %a, %c\n", "%y = mul %z, %c\n", NULL, false},
    {"soft cap", "",
     QK SCALE "%u = mul %a, %c\n%h1 = tanh %u\n%five = const 5 : f32\n%z = mul %h1, %five\n",
     CAUSAL, NULL, false},
    {"learned slopes", "param @slope : f32[g, h] = ones\n",
     QK POSITIONS
     "%d = sub %pt, %ps\n%df = cast %d : f32[b, t, s]\n%dw = expand %df : f32[b, t, g, h, s]\n"
     "%sl = param @slope : f32[g, h]\n%bi = mul %dw, %sl\n%z = sub %a, %bi\n",
     "%m = ge %pt, %ps\n" MASKED, NULL, false},
    {"biases of keys, temperatures of queries",
     "param @kb : f32[b, s] = ones\nparam @qt : f32[b, t, g, h] = ones\n",
     QK "%kb = param @kb : f32[b, s]\n%qt = param @qt : f32[b, t, g, h]\n%qe = exp %qt\n%u = mul "
        "%a, %qe\n%z = add %u, %kb\n",
     CAUSAL, NULL, false},
    {"one temperature", "", QK "%tm = max %ps over(b, s)\n%tp = cast %tm : f32\n%z = mul %tp, %a\n",
     CAUSAL, NULL, false},
    {"two dots, one key for all heads",
     "param @qr : f32[b, t, g, h, r] = ones\nparam @kr : f32[b, s, r] = ones\n",
     QK "%qr = param @qr : f32[b, t, g, h, r]\n%kr = param @kr : f32[b, s, r]\n%a2 = dot %qr, %kr "
        "over(r)\n%z0 = add %a, %a2\n" SCALE "%z = mul %z0, %c\n",
     CAUSAL, NULL, false},
    {"the same keys twice", "",
     QK "%a2 = tanh %a\n%q2 = mul %q, %q\n%a3 = dot %q2, %k over(e)\n%z = add %a2, %a3\n", CAUSAL,
     NULL, false},
    {"strictly causal: no query attends to itself", "", QK SCALE "%z = mul %a, %c\n",
     POSITIONS "%m = gt %pt, %ps\n" MASKED, NULL, false},
    {"window and prefix", "", QK SCALE "%z = mul %a, %c\n",
     POSITIONS "%two = const 2 : int\n%d = sub %pt, %ps\n%near = le %d, %two\n%back = ge %pt, "
               "%ps\n%in = and %near, %back\n%pre = lt %ps, %two\n"
               "%prew = expand %pre : bool[b, t, s]\n%m = or %in, %prew\n" MASKED,
     NULL, false},
    {"padding", "", QK SCALE "%z = mul %a, %c\n",
     "%zero = const 0 : int\n%m = ge %ss, %zero\n" MASKED, NULL, false},
    {"values first", "", QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%o1 = dot %v, %p over(s)\n%o = permute %o1 : f32[b, t, g, h, f]\n", false},
    {"dropout", "", QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%n0 = const 0 : int\n%n1 = const 1000 : int\n%rb = iota : int[b]\n%rb1 = mul %rb, %n1\n"
     "%rb2 = expand %rb1 : int[b, t]\n%rt = iota : int[t]\n%rbt = add %rb2, %rt\n"
     "%rbt1 = mul %rbt, %n1\n%rbt2 = expand %rbt1 : int[b, t, g]\n%rg = iota : int[g]\n"
     "%rbtg = add %rbt2, %rg\n%rbtg1 = mul %rbtg, %n1\n"
     "%rbtg2 = expand %rbtg1 : int[b, t, g, h]\n%rh = iota : int[h]\n%rows = add %rbtg2, %rh\n"
     "%r = rng %n0, %rows, %n1, %n0 [7, 9, 4000] : f32[b, t, g, h, s]\n"
     "%rate = const 0.25 : f32\n%keep = ge %r, %rate\n"
     "%gain = const 1.3333334 : f32\n%pg = mul %p, %gain\n%zf = const 0 : f32\n%pd = select %keep, "
     "%pg, %zf\n%o = dot %pd, %v over(s)\n",
     false},
    {"rows of two axes, in another order in keys",
     "param @q2 : f32[b, t, g, h, e, r] = ones\nparam @k2 : f32[b, s, r, g, e] = ones\n",
     QK "%q2 = param @q2 : f32[b, t, g, h, e, r]\n%k2 = param @k2 : f32[b, s, r, g, e]\n%a2 = dot "
        "%q2, %k2 over(e, r)\n%z = add %a, %a2\n",
     CAUSAL, NULL, false},
    {"an attention sink", "param @sink : f32[g, h] = ones\n", QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%sk = param @sink : f32[g, h]\n%tw = expand %sk : f32[b, t, g, h]\n%gr = ge %x0, %tw\n%c0 = "
     "select %gr, %x0, %tw\n%c1 = stop_grad %c0\n%y1 = sub %y, %c1\n"
     "%e1 = exp %y1\n%l1 = sum %e1 over(s)\n%r0 = sub %sk, %c1\n%r1 = exp %r0\n%d1 = add %l1, "
     "%r1\n%p1 = div %e1, %d1\n%o = dot %p1, %v over(s)\n",
     false},
    {"a sink of each query, no maximum subtracted, in a window",
     "param @sink : f32[b, t, h] = ones\n", QK SCALE "%z = mul %a, %c\n",
     POSITIONS "%one = const 1 : int\n%d = sub %pt, %ps\n%m = le %d, %one\n" MASKED,
     "%sk = param @sink : f32[b, t, h]\n%r1 = exp %sk\n%e1 = exp %y\n%l1 = sum %e1 over(s)\n%rw = "
     "expand %r1 : f32[b, t, g, h]\n%d1 = add %rw, %l1\n"
     "%p1 = div %e1, %d1\n%o = dot %p1, %v over(s)\n",
     false},
    {"a sink from which another value is subtracted", "param @sink : f32[g, h] = ones\n",
     QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%sk = param @sink : f32[g, h]\n%y1 = sub %y, %x0\n%e1 = exp %y1\n%l1 = sum %e1 over(s)\n%r1 "
     "= exp %sk\n%d1 = add %l1, %r1\n"
     "%p1 = div %e1, %d1\n%o = dot %p1, %v over(s)\n",
     true},
    {"masks added to the score, after a bias of keys: all attend to the first position",
     "param @kb : f32[b, s] = ones\n", QK "%kb = param @kb : f32[b, s]\n%z = add %a, %kb\n",
     POSITIONS
     "%no = const 0 : int\n%z1 = const 0 : f32\n%n = const -1e30 : f32\n%is = iota : "
     "int[s]\n%first = eq %is, %no\n%fw = expand %first : bool[b, t, s]\n"
     "%m0 = ge %pt, %ps\n%m1 = or %m0, %fw\n%s1 = select %m1, %z1, %n\n%w1 = expand %s1 : "
     "f32[b, t, g, h, s]\n%m2 = ne %st, %ss\n%rest = not %fw\n%m3 = and %m2, %rest\n"
     "%s2 = select %m3, %n, %z1\n%w2 = expand %s2 : f32[b, t, g, h, s]\n%y0 = add %w1, "
     "%z\n%y = add %y0, %w2\n",
     NULL, false},
    {"nested masks, with the hidden value first", "", QK SCALE "%z = mul %a, %c\n",
     POSITIONS
     "%n = const -1e30 : f32\n%m1 = ge %pt, %ps\n%m2 = ne %st, %ss\n%y0 = select %m1, %z, "
     "%n\n%y = select %m2, %n, %y0\n",
     NULL, false},
    {"the log of the sum used before and after the dot", "", QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%lg = log %l\n%ls = add %lg, %x1\n%two = const 0.1 : f32\n%l2 = mul %ls, %two\n%gate = tanh "
     "%l2\n%o1 = dot %p, %v over(s)\n%o2 = mul %o1, %gate\n"
     "%l3 = add %x1, %lg\n%l4 = tanh %l3\n%o = add %o2, %l4\n",
     false},
    {"weights used twice", "", QK SCALE "%z = mul %a, %c\n", CAUSAL,
     "%p2 = mul %p, %p\n%o2 = dot %p2, %v over(s)\n%o3 = dot %p, %v over(s)\n%o = add %o2, %o3\n",
     true},
    {"a bias in memory", "param @ts : f32[t, s] = ones\n",
     QK "%ts = param @ts : f32[t, s]\n%z = add %a, %ts\n", CAUSAL, NULL, true},
};

// Stage graph; loss = sum of o * w.
static inline char *attend_text(lm_arena *a, const attend_case *c, const int *size) {
  static const char softmax[] = "%x0 = max %y over(s)\n%x1 = stop_grad %x0\n%x2 = sub %y, %x1\n%x "
                                "= exp %x2\n%l = sum %x over(s)\n%p = div %x, %l\n";
  return lm_arena_printf(
      a,
      "stage graph\naxis b = %d, t = %d, s = %d, g = %d, h = %d, e = %d, f = %d, r = %d\n"
      "param @q : f32[b, t, g, h, e] = ones\nparam @k : f32[b, s, g, e] = ones\nparam @v : f32[b, "
      "s, g, f] = ones\n%s"
      "func @loss(%%pos: int[b, t], %%seg: int[b, t], %%ps: int[b, s], %%ss: int[b, s], %%w: "
      "f32[b, t, g, h, f]) -> (sum: f32, weight: f32) {\n"
      "%%q = param @q\n%%k = param @k\n%%v = param @v\n%s%s%s%s"
      "%%ow = mul %%o, %%w\n%%sum = sum %%ow over(b, t, g, h, f)\nreturn %%sum, %%sum\n}\n",
      size[0], size[1], size[2], size[3], size[4], size[5], size[6], size[7], c->params, c->score,
      c->mask, softmax, c->weighted ? c->weighted : "%o = dot %p, %v over(s)\n");
}

static void count_attend(lm_op *op, void *user) {
  *(int *)user += op->code == LM_OP_ATTEND;
}

// Rounds the weights of each attend to e4m3.
static inline void attend_round(lm_op *op, void *user) {
  (void)user;
  if (op->code == LM_OP_ATTEND)
    lm_attend_round(op);
}

static inline void attends_round(lm_module *m) {
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, attend_round, NULL);
}

static inline int attends_in(lm_module *m) {
  int n = 0;
  for (lm_func *f = m->funcs; f; f = f->next)
    lm_region_walk(f->body, count_attend, &n);
  return n;
}
#endif
