// op_grad_test.c - the derivative of every operation against central differences of the
// interpreter.
//
// A case is a few lines that define %z from parameters; the loss is sum(z sin z). Most
// axes differ in size, so that an exchange of axes is found. An operation of ops.def that has a
// derivative and no case fails the test.
#include "compiler/ops/interface.h"
#include "tests/numeric/grad_check.h"

static const char head[] =
    "stage graph\n"
    "axis a = 3, c = 5, e = 2, f = 7, ten = 10, four = 4, six = 6, eight = 8, k = 3, l = 4, one = "
    "1, c2 = 5, "
    "h = 2, e2 = 2, n = 15, grp = 3\n"
    "param @x : f32[a, c] = ones  param @y : f32[c, a] = ones  param @u : f32[c] = ones  param @n "
    ": f32 = ones\n"
    "param @m : f32[a, c, e] = ones  param @w : f32[c, f] = ones  param @q : f32[e, c, f] = ones\n"
    "param @p4 : f32[a, four] = ones  param @p6 : f32[six, a] = ones  param @p8 : f32[eight, a] = "
    "ones\n"
    "param @s : f32[l, a, c] stacked 1 as @s.# = ones  param @bias : f32[l, c] stacked 1 as "
    "@bias.# = ones\n"
    "param @rows : f32[n, e] = ones  param @gw : f32[grp, e, f] = ones  param @gt : f32[e, f, grp] "
    "= ones\n"
    "param @t2 : f32[l, h, c] stacked 2 as @t.#.# = ones\n"
    "func @loss(%i: int[c], %j: int[a], %g: int[a, c], %t: bool[a, c], %tc: bool[c], %z3: int) -> "
    "(sum: f32, weight: f32) {\n"
    "%x = param @x  %y = param @y  %u = param @u  %n = param @n  %m = param @m  %w = param @w  %q "
    "= param @q\n"
    "%p4 = param @p4  %p6 = param @p6  %p8 = param @p8\n";

// Axes of z; NULL for a scalar.
// The points (a, c) by their group in %g, whose ids beyond the last group belong to it.
#define GROUPED                                                                                    \
  "%k1 = group_counts %g (a, c) -> (grp)  %o1 = group_order %g, %k1 (a, c) -> (n)  %l1 = "         \
  "group_inverse %g, %k1 over(a, c)  "

typedef struct test {
  const char *op, *axes, *body;
} test;
static const test tests[] = {
    {"neg", "a, c", "%z = neg %x"},
    {"exp", "a, c", "%z = exp %x"},
    {"log", "a, c", "%z = log %x"},
    {"log1p", "a, c", "%z = log1p %x"},
    {"sqrt", "a, c", "%z = sqrt %x"},
    {"rsqrt", "a, c", "%z = rsqrt %x"},
    {"sin", "a, c", "%z = sin %x"},
    {"cos", "a, c", "%z = cos %x"},
    {"tanh", "a, c", "%z = tanh %x"},
    {"logistic", "a, c", "%z = logistic %x"},
    {"erf", "a, c", "%z = erf %x"},
    {"floor", "a, c", "%v = floor %x  %z = add %v, %x"},
    {"round", "a, c", "%v = round %x  %z = add %v, %x"},
    {"binade", "a, c", "%v = binade %x  %z = add %v, %x"},
    {"reduce_precision", "a, c", "%v = mul %x, %x  %z = reduce_precision %v"},
    {"unrounded", "a, c", "%v = mul %x, %x  %z = unrounded %v"},
    {"edited", "a, c", "%v = mul %x, %x  %z = edited %v, %x"},
    {"straight", "a, c", "%v = mul %x, %x  %v2 = stop_grad %v  %z = straight %v2, %v"},
    {"mod", "a, c", "%z = mod %x, %u"},
    {"mod", "a, c", "%z = mod %n, %x"},
    {"cast", "a, c", "%v = cast %x : f64[a, c]  %v2 = mul %v, %v  %z = cast %v2 : f32[a, c]"},
    {"add", "a, c", "%z = add %x, %u"},
    {"add", "c, a", "%z = add %y, %x"},
    {"add", "a, c", "%z = add %n, %x"},
    {"sub", "a, c", "%z = sub %u, %x"},
    {"sub", "a, c", "%z = sub %x, %n"},
    {"mul", "a, c, e", "%z = mul %u, %m"},
    {"mul", "a, c", "%z = mul %x, %x"},
    {"mul", "c, a", "%z = mul %y, %x"},
    {"div", "a, c", "%z = div %x, %u"},
    {"div", "a, c", "%z = div %n, %x"},
    {"pow", "a, c", "%z = pow %x, %u"},
    {"pow", "a, c", "%b = const 3 : f32  %d = const -0.8 : f32  %v = add %x, %d  %z = pow %v, %b"},
    {"pow", "a, c", "%b = const 2 : f32  %d = const -0.8 : f32  %v = add %x, %d  %z = pow %v, %b"},
    {"pow", "a, c", "%b = const 0.5 : f32  %z = pow %x, %b"},
    {"pow", "a, c", "%b = const 1 : f32  %z = pow %x, %b"},
    {"pow", "a, c", "%b = const 0 : f32  %v = pow %x, %b  %z = mul %v, %x"},
    {"select", "a, c", "%z = select %t, %x, %u"},
    {"select", "a, c", "%z = select %tc, %n, %x"},
    {"select", "c, a", "%z = select %t, %y, %x"},
    {"expand", "e, c, a", "%z = expand %y : f32[e, c, a]"},
    {"expand", "c, e, a, h", "%z = expand %y : f32[c, e, a, h]"},
    {"view", "eight, a",
     "%v = view %p8 (eight) -> (four, e)  %v2 = mul %v, %v  %z = view %v2 (four, e) -> (eight)"},
    {"view", "a", "%v = slice %x (c) -> (one) [2, 1]  %z = view %v (one) -> ()"},
    {"permute", "e, a, c", "%z = permute %m : f32[e, a, c]"},
    {"rename", "a, c2, e", "%z = rename %m (c) -> (c2)"},
    {"rename", "a, c2, h", "%z = rename %m (c, e) -> (c2, h)"},
    {"history", "a, c, c2, e",
     "%v = history %m (c) -> (c2)  %v2 = sum %v over(e)  %v3 = expand %v2 : f32[a, c, c2]"
     "  %v4 = mul %v3, %x  %v5 = expand %v4 : f32[a, c, c2, e]  %z = mul %v5, %m"},
    {"slice", "a, k", "%z = slice %x (c) -> (k) [0, 2]"},
    {"slice", "a, k", "%z = slice %x (c) -> (k) [4, -1]"},
    {"slice", "a, e", "%z = slice %m (c) -> () [3, 1]"},
    {"slice", "a, e",
     "%v = slice %p6 (six) -> (e) [0, 1]  %v2 = slice %p6 (six) -> (four) [2, 1]  %v3 = sum %v2 "
     "over(four)"
     "  %v4 = mul %v, %v3  %z = permute %v4 : f32[a, e]"},
    {"slice", "a, c",
     "%v = slice %m (e) -> () [0, 1]  %v2 = slice %m (e) -> () [1, 1]  %v3 = mul %v, %v2  %z = sub "
     "%v3, %v"},
    {"pad", "a, eight", "%z = pad %x (c) -> (eight) [2, 1]"},
    {"pad", "a, eight", "%z = pad %p4 (four) -> (eight) [1, 2]"},
    {"pad", "a, c, four", "%z = pad %x () -> (four) [2, 1]"},
    {"concat", "a, eight", "%v = slice %x (c) -> (k) [1, 1]  %z = concat %v, %x (k, c) -> (eight)"},
    {"concat", "eight, a",
     "%v = rename %p4 (four) -> (l)  %v2 = permute %v : f32[l, a]  %v3 = permute %p4 : f32[four, a]"
     "  %z = concat %v2, %v3 (l, four) -> (eight)"},
    {"window", "a, c, k", "%z = window %x (c) -> (c, k) [2, 1, 1]"},
    {"window", "a, four, e2, e", "%z = window %m (c) -> (four, e2) [1, 2, 3]"},
    {"window", "six, e2, a",
     "%v = window %p6 (six) -> (six, k) [1, 1, 2]  %v2 = window %v (k) -> (e2, l) [3, 2, 1]  %z = "
     "sum %v2 over(l)"},
    {"sum", "c", "%z = sum %m over(a, e)"},
    {"sum", NULL, "%z = sum %x over(c, a)"},
    {"max", "a", "%z = max %x over(c)"},
    {"max", "c", "%z = max %m over(e, a)"},
    {"dot", "a, f", "%z = dot %x, %w over(c)"},
    {"dot", "a, c, f", "%z = dot %m, %q over(e)"},
    {"dot", "a, f", "%z = dot %m, %q over(e, c)"},
    {"dot", "e, f, a", "%z = dot %q, %x over(c)"},
    {"dot", "a", "%z = dot %x, %u over(c)"},
    {"dot", "a", "%z = dot %u, %x over(c)"},
    {"dot", "c, a", "%v = sum %m over(a)  %z = dot %m, %v over(e)  %v9 = neg %n"},
    {"dot", NULL, "%z = dot %x, %y over(a, c)"},
    {"gather", "c, a", "%z = gather %p6, %i over(six)"},
    {"gather", "a", "%z = gather %x, %j over(c)"},
    {"gather", "a, c", "%z = gather %p6, %g over(six)"},
    {"scatter_add", "six, a", "%z = scatter_add %y, %i over(six) : f32[six, a]"},
    // indices outside of the table on both sides, of rows and of elements
    {"gather", "c, a",
     "%v = const 3 : int  %v2 = mul %i, %v  %v3 = sub %v2, %v  %z = gather %p6, %v3 over(six)"},
    {"gather", "a",
     "%v = const 3 : int  %v2 = mul %j, %v  %v3 = sub %v2, %v  %z = gather %x, %v3 over(c)"},
    {"scatter_add", "six, a",
     "%v = const 3 : int  %v2 = mul %i, %v  %v3 = sub %v2, %v  %z = scatter_add %y, %v3 over(six) "
     ": f32[six, a]"},
    {"group_rows", "n, e", GROUPED "%z = group_rows %m, %o1, %l1 (a, c) -> (n)"},
    {"group_rows", "n, four", GROUPED "%z = group_rows %p4, %o1, %l1 (a, c) -> (n)"},
    {"group_rows", "n, f", GROUPED "%z = group_rows %w, %o1, %l1 (a, c) -> (n)"},
    {"ungroup_rows", "a, c, e",
     GROUPED "%v = param @rows  %z = ungroup_rows %v, %l1, %o1 (n) -> (a, c)"},
    {"grouped_dot", "n, f",
     GROUPED "%v = param @rows  %v2 = param @gw  %z = grouped_dot %v, %v2, %k1 over(e)"},
    {"grouped_dot", "n, e",
     GROUPED "%v = group_rows %w, %o1, %l1 (a, c) -> (n)  %v2 = param @gt"
             "  %z = grouped_dot %v, %v2, %k1 over(f)"},
    {"grouped_dot", "n",
     GROUPED "%v = param @rows  %v2 = param @gw  %v3 = sum %v2 over(f)"
             "  %z = grouped_dot %v, %v3, %k1 over(e)"},
    {"param", "a, c", "%v = param @s[%z3 * -1 + 3]  %v2 = param @s[%z3 * 2 + 0]  %z = mul %v, %v2"},
    {"at", "c", "%z = at %x, %z3 [2, -1]"},
    {"at", "c, e", "%z = at %m, %z3 [0, 2]"},
    // carried, captured (%x, %u, the scalar %n), stacked parameters forwards and backwards, the
    // index as a value
    {"loop", "a, c",
     "%z = loop 4 %i1 carry(%b = %x) {\n"
     "  %s1 = param @s[%i1]  %b1 = param @bias[%i1 * -1 + 3]  %fi = cast %i1 : f32  %v1 = mul %b, "
     "%s1  %v2 = add %v1, %b1\n"
     "  %v3 = mul %v2, %n  %v4 = tanh %v3  %v5 = add %v4, %fi  %v6 = mul %v5, %u  %v7 = sum %v6 "
     "over(c)  %v8 = mul %v6, %v7\n"
     "  %small = const 0.03 : f32  %v10 = mul %v8, %small  %v9 = sin %v10  yield %v9\n}"},
    // two carries that are exchanged, one of which starts without a derivative; stacked results
    {"loop", "l, a, c",
     "%zero = const 0 : f32[a, c]  %b9, %d9, %z = loop 4 over(l) %i1 carry(%b = %x, %d = %zero) {\n"
     "  %s1 = param @s[%i1]  %v1 = mul %b, %s1  %v2 = sin %v1  %v3 = add %v2, %d  yield %d, %v2, "
     "%v3\n}"},
    // nested loops: stashes of stashes; a dot inside; results stacked twice
    {"loop", "c",
     "%z = loop 4 %i1 carry(%b = %u) {\n"
     "  %b8 = loop 2 %i2 carry(%d = %b) {\n"
     "    %t1 = param @t2[%i1, %i2]  %v1 = mul %d, %t1  %v2 = dot %v1, %x over(c)  %v3 = dot %v2, "
     "%x over(a)  %v4 = tanh %v3\n"
     "    %v5 = mul %v4, %b  yield %v5\n  }\n"
     "  %v6 = mul %b8, %b  %s1 = param @bias[%i1]  %v7 = add %v6, %s1  %v8 = tanh %v7  yield "
     "%v8\n}"},
    // a value that is the same at each position, and a slice, lack axes of the carry
    {"scan", "a, c, e",
     "%h0 = sum %m over(a)\n"
     "%h9, %z = scan over(a) [1, 2, 0] (%h = %h0, %x1 = %x, %m1 = %m, %u1 = %u) {\n"
     "  %v1 = mul %h, %u1  %v2 = mul %m1, %x1  %v3 = add %v1, %v2  %v4 = tanh %v3  %v5 = mul %v4, "
     "%x1\n"
     "  yield %v4, %v5\n}\n"},
    // the operands are expanded along six and along blocks of eight
    {"scan", "a, six, eight",
     "%a6 = permute %p6 : f32[a, six]  %a8 = permute %p8 : f32[a, eight]  %ae = sum %m over(c)\n"
     "%h0 = const 0 : f32[six, eight, e]\n"
     "%h9, %z = scan over(a) [1, 3, 0] (%h = %h0, %x1 = %a6, %x2 = %a8, %x3 = %ae) {\n"
     "  %v1 = mul %h, %x1  %v2 = sin %v1  %v3 = mul %v2, %x3  %v4 = add %v3, %x2\n"
     "  %v5 = dot %v4, %x3 over(e)  %k1 = const 0.1 : f32  %v6 = mul %v5, %k1\n"
     "  yield %v4, %v6\n}\n"},
    // from the last position to the first; a dot in the region; the final carry
    {"scan", "c",
     "%wr = rename %w (c) -> (c2)  %ww = dot %w, %wr over(f)\n"
     "%z, %s9 = scan over(a) [1, 1, 1] (%h = %u, %x1 = %x, %w1 = %ww) {\n"
     "  %v1 = dot %h, %w1 over(c)  %v2 = rename %v1 (c2) -> (c)  %v3 = mul %v2, %x1  %k1 = const "
     "0.05 : f32  %v5 = mul %v3, %k1  %v4 = sin %v5\n"
     "  yield %v4, %v1\n}\n"},
    // two carries, of which one is an int; reductions; operations that cannot take more axes
    {"scan", "a, c",
     "%k0 = const 0 : int\n"
     "%h9, %k9, %z = scan over(a) [2, 1, 0] (%h = %u, %k = %k0, %x1 = %x, %u1 = %u) {\n"
     "  %one1 = const 1 : int  %k1 = add %k, %one1  %f1 = cast %k1 : f32\n"
     "  %v1 = concat %h, %x1 (c, c) -> (ten)  %v2 = slice %v1 (ten) -> (c) [1, 2]  %v3 = max %v1 "
     "over(ten)\n"
     "  %v4 = mul %v2, %u1  %v5 = div %v4, %v3  %v6 = mul %v5, %f1\n"
     "  yield %v5, %k1, %v6\n}\n"},
    // an axis of the scan in a loop, whose iterations read their own elements
    {"scan", "l, a, c",
     "%e1 = expand %x : f32[l, a, c]  %s = sin %e1\n"
     "%b9, %z = loop 4 over(l) %i1 carry(%b = %u) {\n"
     "  %s1 = at %s, %i1 [0, 1]\n"
     "  %h9, %y1 = scan over(a) [1, 1, 0] (%h = %b, %x1 = %s1) {\n"
     "    %v1 = mul %h, %x1  %v2 = tanh %v1  yield %v2, %v1\n  }\n"
     "  yield %h9, %y1\n}\n"},
    // the carry has the axis of the loop
    {"loop", "l, a",
     "%v = param @s[%z3]  %v1 = rename %p4 (four) -> (l)  %v2 = permute %v1 : f32[l, a]\n"
     "%z, %zs = loop 4 over(l) %i1 carry(%b = %v2) {\n"
     "  %v3 = mul %b, %b  %v4 = sum %v3 over(l)  %v5 = mul %b, %v4  %o2 = const 0.2 : f32  %v7 = "
     "mul %v5, %o2  %v6 = sin %v7  yield %v6, %v4\n}"},
    // a later loop reads a stacked result; the carry is not returned
    {"loop", "a, c",
     "%b9, %st = loop 4 over(l) %i1 carry(%b = %x) {\n  %s1 = param @s[%i1]  %v1 = mul %b, %s1  "
     "%v2 = tanh %v1  yield %v2, %v1\n}\n"
     "%z = loop 4 %i2 carry(%d = %x) {\n  %v3 = at %st, %i2 [3, -1]  %v4 = mul %v3, %d  %v5 = add "
     "%v4, %u  yield %v5\n}"},
};

static lm_module *build(lm_ctx *c, const test *t, const char *passes) {
  lm_buf b = {0};
  lm_buf_printf(&b, "%s%s\n%%sz = sin %%z  %%ez = mul %%sz, %%z\n", head, t->body);
  if (t->axes)
    lm_buf_printf(&b, "%%sum = sum %%ez over(%s)\nreturn %%sum, %%n\n}\n", t->axes);
  else
    lm_buf_puts(&b, "return %ez, %n\n}\n");
  lm_module *m = must_parse(c, t->op, b.p, b.n);
  lm_buf_free(&b);
  must_run(m, passes);
  return m;
}

static void arguments(lm_eval *e, const lm_func *f, lm_tensor *args, uint64_t *rng) {
  for (uint32_t i = 0; i < f->body->n_args; i++)
    args[i] = lm_eval_tensor(e, f->body->args[i]->type);
  fill_int(&args[0], 6, rng);
  fill_int(&args[1], 5, rng);
  fill_int(&args[2], 6, rng);
  fill_int(&args[3], 2, rng);
  fill_int(&args[4], 2, rng);
  args[5].v[0] = 1;
}

static void check(const test *t, const char *passes, uint64_t seed) {
  lm_ctx *c = lm_ctx_create();
  lm_module *m = build(c, t, passes);
  lm_eval *e = lm_eval_create(m);
  lm_tensor args[6];
  for (uint32_t i = 0; i < m->n_globals; i++)
    fill_real(lm_eval_global(e, m->globals[i].name), 0.2, 1.5, &seed);
  arguments(e, lm_func_find(m, "loss"), args, &seed);
  int seen = grad_check(m, e, args, 1, 1e-8);
  if (seen <= 0)
    fprintf(stderr, "%s after %s: %s\n", seen ? "wrong" : "no parameter matters", passes, t->body);
  CHECK(seen > 0);
  for (int i = 0; i < 6; i++)
    lm_tensor_free(&args[i]);
  lm_eval_destroy(e);
  lm_ctx_destroy(c);
}

// The first of equal maxima gets the whole cotangent; sqrt has derivative 0 at 0.
static void check_corners(void) {
  static const test corners[] = {{"max", "a", "%z = max %x over(c)"},
                                 {"sqrt", "a, c", "%z = sqrt %x"}};
  for (int k = 0; k < 2; k++) {
    lm_ctx *c = lm_ctx_create();
    lm_module *m = build(c, &corners[k], "grad");
    lm_eval *e = lm_eval_create(m);
    lm_tensor args[6];
    lm_tensor *x = lm_eval_global(e, "x");
    lm_tensor *g = lm_eval_gradient(e, "x");
    uint64_t rng = 3;
    arguments(e, lm_func_find(m, "loss"), args, &rng);
    for (int64_t i = 0; i < x->n; i++)
      x->v[i] = k ? 0 : i % 5 >= 2;
    first_result(e, lm_func_find(m, "micro"), args);
    for (int64_t i = 0; i < x->n; i++)
      CHECK((g->v[i] != 0) == (!k && i % 5 == 2));
    for (int i = 0; i < 6; i++)
      lm_tensor_free(&args[i]);
    lm_eval_destroy(e);
    lm_ctx_destroy(c);
  }
}

int main(void) {
  for (size_t i = 0; i < LM_COUNT(tests); i++) {
    check(&tests[i], "grad", 11 + i);
    check(&tests[i], "simplify,cse,licm,dce,grad,simplify,cse,licm,dce", 99 + i);
  }
  check_corners();
  for (int code = 0; code < LM_OPS; code++) {
    bool found =
        lm_op_derivative(code) != LM_DERIVATIVE_RULE || code == LM_OP_ATTEND; // tests/attend
    found |= (lm_op_table[code].attrs & LM_A_MESH) != 0; // tests/passes/shard_test.c
    found |= code == LM_OP_ROUND_COTANGENT || code == LM_OP_OBSERVE_COTANGENT; // e2e/test_fp8.py
    for (size_t i = 0; i < LM_COUNT(tests); i++)
      found |= !strcmp(tests[i].op, lm_op_table[code].name);
    if (!found)
      fprintf(stderr, "expected a case for the derivative of %s\n", lm_op_table[code].name);
    CHECK(found);
  }
}
