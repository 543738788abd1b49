// bad_test.c - the location and the message of each error that the parser of .lmir text reports.
#include "compiler/ir/ir.h"
#include "tests/runtime/check.h"

#define HEAD                                                                                       \
  "stage graph\naxis b = 2, t = 3, d = 4, s = 3, big = 1000000, dd = 5 dyn 1\nparam @w : f32[t, "  \
  "d] stacked 1\n"
#define MESH                                                                                       \
  "stage graph\nmesh dp = 2, tp = 2\naxis a = 4, c = 4, a@tp = 2, c@tp = 2 "                       \
  "func @f(%x: f32[a]) -> (y: f32[a]) {\n"
#define FUNC HEAD "func @f(%x: f32[b, t], %i: int[b], %c: bool[b], %k: int) -> (y: f32[b, t]) {\n"

static const struct {
  const char *text, *message;
} tests[] = {
    // text
    {"", "1:1: expected 'stage graph', 'stage step' or 'stage kernel'"},
    {"stage plan", "1:7: expected graph, step or kernel"},
    {"stage graph\nfoo", "2:1: expected file, mesh, axis, param, cache, derived, fixed, "
                         "packed, state or func"},
    // the mesh and its axes
    {"stage graph\naxis a = 2\nmesh tp = 2", "3:6: the mesh is given once, before the axes"},
    {"stage graph\nmesh tp = 2, tp = 2", "2:14: a mesh has at most 6 axes, each once"},
    {"stage graph\nmesh tp = 0", "2:6: a mesh has at most 1048576 ranks"},
    {"stage graph\nmesh dp = 4096, tp = 4096", "2:17: a mesh has at most 1048576 ranks"},
    {"stage graph\nmesh tp = 2 shard()", "2:19: expected an axis"},
    {"stage graph\naxis a = 4, a@tp = 2", "2:13: the mesh has no axis tp"},
    {"stage graph\nmesh tp = 2\naxis a@tp = 2", "3:6: there is no axis a"},
    {"stage graph\nmesh tp = 2\naxis a = 4, a@tp = 4",
     "3:13: 4 is not the size of one of 2 parts of axis a"},
    {"stage graph\nmesh tp = 2\naxis a = 3, a@tp = 1",
     "3:13: 1 is not the size of one of 2 parts of axis a"},
    {"stage graph\nmesh tp = 2\nparam @w : f32 partial(dp)", "3:24: the mesh has no axis dp"},
    {MESH "%y = fan %x\nreturn %x\n}", "5:1: expected over(…)"},
    {MESH "%y = fan %x over(a)\nreturn %x\n}", "4:18: the mesh has no axis a"},
    {MESH "%y = neg %x over(tp)\nreturn %x\n}", "4:13: there is no operation over"},
    {MESH "%y = all_gather %x over(tp) (a) -> (a@tp)\nreturn %x\n}",
     "4:6: all_gather: a is not axis a@tp divided by tp"},
    {MESH "%y = part %x over(tp) (a@tp) -> (a)\nreturn %x\n}",
     "4:6: part: a is not axis a@tp divided by tp"},
    {MESH "%y = part %x over(dp) (a) -> (a@tp)\nreturn %x\n}",
     "4:6: part: a@tp is not axis a divided by dp"},
    {MESH "%y = part %x over(tp) (c) -> (c@tp)\nreturn %x\n}", "4:6: part: f32[a] has no axis c"},
    {MESH "%y = ring_shift %x over(tp)\nreturn %x\n}", "4:6: ring_shift: needs [distance]"},
    {"stage graph $", "1:13: unexpected token"},
    {"stage graph\naxis a = 0", "2:10: the size of an axis is from 1 to 2^47"},
    {"stage graph\naxis a = 1.5", "2:10: expected an integer"},
    {"stage graph\naxis a = 2, a = 3", "2:13: axis a is defined twice"},
    {"stage graph\naxis a = 2 dyn 99", "2:10: the number of a dynamic extent is from 1 to 8"},
    {"stage graph\nparam @w : f33", "2:12: f33 is not a type: expected f32, bf16, f16, f64, int, "
                                    "bool, e4m3, e5m2, e8m0, i8, u8, dyn8, udyn8 or real"},
    {"stage graph\nparam @w : f32[q]", "2:16: there is no axis q"},
    {"stage graph\naxis a = 2\nparam @w : f32[a, a]", "3:12: axis a twice in one tensor"},
    {"stage graph\naxis a = 99999999, b = 99999999\nparam @w : f32[a, b]",
     "3:12: f32[a, b] has more than 2^47 elements"},
    {"stage graph\naxis a = 2\nparam @w : f32[a] stacked 2", "3:7: @w has no 2 axes to stack"},
    {"stage graph\naxis a = 2\nparam @w : f32[a] stacked 1 as @w",
     "3:32: needs a # for each stacked axis"},
    {"stage graph\naxis a = 3\nparam @w : f32[a] stacked 1 = ones, zeros",
     "3:31: @w has 3 elements along its stacked axes"},
    {"stage graph\nparam @w : f32 = gauss(1)",
     "2:18: expected zeros, ones, const, normal or uniform"},
    {"stage graph\nparam @w : f32\nparam @w : f32", "3:7: @w is defined twice"},
    {"stage step\nfunc @f(%x: real) -> (y: real) {\nreturn %x\n}",
     "1:1: @f: a value is of type real after pass precision\n"},
    {FUNC "}", "5:1: expected return before '}'"},
    {FUNC "%y = frobnicate %x\nreturn %x\n}", "5:6: there is no operation frobnicate"},
    {FUNC "return %q\n}", "5:8: %q is not defined"},
    {FUNC "%x = neg %x\nreturn %x\n}", "5:1: %x is defined twice"},
    {FUNC "%y.7 = neg %x\n%z.7 = neg %x\nreturn %x\n}", "6:1: value number 7 is used twice"},
    {FUNC "%y.99999999 = neg %x\nreturn %x\n}", "5:1: unexpected token"},
    {FUNC "return %i\n}", "4:6: result y of @f has another type"},
    {FUNC "return %x, %x\n}", "4:6: @f names 1 results and returns 2"},
    {FUNC "return %x\n%y = neg %x\n}", "6:1: expected '}' after return"},
    {FUNC "%y = neg %x loc(1:1:1)\nreturn %y\n}", "5:13: there is no file 1"},
    {FUNC "%l = loop 3 %j carry() {\n%z = neg %x\nyield\n}\nreturn %z\n}",
     "5:6: loop: gives 0 results, not 1"},
    {FUNC "loop 3 %j carry() {\n%z = neg %x\nyield\n}\nreturn %z\n}",
     "9:8: %z is not visible here"},
    // operations
    {FUNC "%y = neg %x, %x\nreturn %y\n}", "5:6: neg: takes 1 operands, not 2"},
    {FUNC "%y, %z = neg %x\nreturn %y\n}", "5:10: neg: gives 1 results, not 2"},
    {FUNC "%y = neg %x : f32[b]\nreturn %y\n}", "5:6: neg: the result is f32[b, t], not f32[b]"},
    {FUNC "%y = neg %c\nreturn %x\n}", "5:6: neg: the operand is bool"},
    {FUNC "%y = exp %i\nreturn %x\n}", "5:6: exp: the operand is int[b], not floating"},
    {FUNC "%y = not %i\nreturn %x\n}", "5:6: not: the operand is int[b], not bool"},
    {FUNC "%y = cast %x\nreturn %x\n}", "5:6: cast: needs the type of its result"},
    {FUNC "%y = cast %x : int[b]\nreturn %x\n}", "5:6: cast: a cast changes axes of f32[b, t]"},
    {FUNC "%y = add %x, %i\nreturn %x\n}",
     "5:6: add: f32[b, t] with int[b]: types are not promoted"},
    {FUNC "%q = const 1 : f32[d]\n%y = add %x, %q\nreturn %x\n}",
     "6:6: add: f32[d] does not broadcast to f32[b, t]"},
    {FUNC "%y = div %i, %i\nreturn %x\n}", "5:6: div: the operands are int, not floating"},
    {FUNC "%y = idiv %x, %x\nreturn %x\n}", "5:6: idiv: the operands are not int"},
    {FUNC "%y = lt %c, %c\nreturn %x\n}", "5:6: lt: the operands are bool, which has no order"},
    {FUNC "%y = and %i, %i\nreturn %x\n}", "5:6: and: the operands are not bool"},
    {FUNC "%y = select %i, %x, %x\nreturn %x\n}", "5:6: select: the condition is int[b], not bool"},
    {FUNC "%y = const 0.5 : int\nreturn %x\n}", "5:6: const: 0.5 is not an int"},
    {FUNC "%y = const 2 : bool\nreturn %x\n}", "5:6: const: 2 is not a bool"},
    {FUNC "%y = iota : int[b, t]\nreturn %x\n}", "5:6: iota: int[b, t] is not int with one axis"},
    {FUNC "%y = rng %k, %k, %i, %k [1, 2, 3] : f32[b]\nreturn %x\n}",
     "5:6: rng: step, first and layer are scalars of type int, and rows are ints"},
    {FUNC "%y = rng %k, %i, %k, %k [1, 2, 3] : f32[b]\nreturn %x\n}",
     "5:6: rng: rows int[b] have other axes than the result without its last"},
    {FUNC "%y = rng %k, %i, %k, %k [1, 2] : f32[b, t]\nreturn %x\n}",
     "5:6: rng: needs [seed, site, width]"},
    {FUNC "%y = expand %x : f32[t, b, d]\nreturn %x\n}",
     "5:6: expand: f32[t, b, d] does not hold the axes of f32[b, t] in their order"},
    {FUNC "%y = view %x (b, t) -> (d)\nreturn %x\n}", "5:6: view: 6 elements become 4"},
    {FUNC "%y = view %x (t, b) -> (d)\nreturn %x\n}",
     "5:6: view: the axes are not adjacent in this order"},
    {FUNC "%y = permute %x : f32[b, d]\nreturn %x\n}",
     "5:6: permute: f32[b, d] does not have the same axes"},
    {FUNC "%y = rename %x (t) -> (d)\nreturn %x\n}", "5:6: rename: axes t and d differ in size"},
    {FUNC "%q = expand %x : f32[b, t, s]\n%y = rename %q (t) -> (s)\nreturn %x\n}",
     "6:6: rename: the result has axis s twice"},
    {FUNC "%y = slice %x (t) -> () [3, 1]\nreturn %x\n}",
     "5:6: slice: first 3, step 1, count 1 exceed axis t of size 3"},
    {FUNC "%y = slice %x (t) -> (s) [0, 0]\nreturn %x\n}", "5:6: slice: the step is 0"},
    {FUNC "%y = slice %x (t) -> (s)\nreturn %x\n}", "5:6: slice: needs [first, step]"},
    {FUNC "%y = pad %x (t) -> (d) [2, 1]\nreturn %x\n}",
     "5:6: pad: first 2, step 1, count 3 exceed axis d of size 4"},
    {FUNC "%y = concat %x, %x (t, t) -> (d)\nreturn %x\n}",
     "5:6: concat: the parts have 6 elements in total, axis d has 4"},
    {FUNC "%y = sum %x over(d)\nreturn %x\n}", "5:6: sum: f32[b, t] has no axis d"},
    {FUNC "%y = sum %x over(t, t)\nreturn %x\n}", "5:6: sum: axis t twice"},
    {FUNC "%y = sum %x over()\nreturn %x\n}", "5:6: sum: no axis is given"},
    {FUNC "%y = dot %x, %i over(b)\nreturn %x\n}",
     "5:6: dot: f32[b, t] with int[b]: not of one floating type"},
    {FUNC "%y = gather %x, %x over(t)\nreturn %x\n}",
     "5:6: gather: the index is f32[b, t], not int"},
    {FUNC "%y = gather %x, %i over(b)\nreturn %x\n}",
     "5:6: gather: the index has axis b, which it selects from"},
    {FUNC "%y = scatter_add %x, %i over(t) : f32[b, t]\nreturn %x\n}",
     "5:6: scatter_add: the updates are not f32[b]"},
    {FUNC "%y = param @v\nreturn %x\n}", "5:6: param: there is no parameter @v"},
    {FUNC "%y = param @w\nreturn %x\n}", "5:6: param: @w needs 1 indices"},
    {FUNC "%y = param @w[%i]\nreturn %x\n}", "5:6: param: index 0 is not a scalar int"},
    {FUNC "accum @w[%k], %x\nreturn %x\n}", "5:1: accum: the gradient is not f32[d]"},
    {FUNC "%y = at %k, %k [0, 1]\nreturn %x\n}", "5:6: at: the operand is a scalar"},
    {FUNC "%y = loop 0 %j carry(%a = %x) {\nyield %a\n}\nreturn %y\n}",
     "5:6: loop: the trip count is not from 1 to 2^31 - 1"},
    {FUNC "%y = loop 3 %j carry(%a = %x) {\nyield %k\n}\nreturn %y\n}",
     "5:6: loop: the next value of a carry is int, not f32[b, t]"},
    {FUNC "%y, %z = loop 4 reversed over(d) %j carry(%a = %x) {\nyield %a, %a\n} : f32[b, t], "
          "f32[d, b, t] on_host\nreturn %y\n}",
     "5:10: loop: is reversed and has a stack on_host"},
    {FUNC "%y, %z = loop 3 %j carry(%a = %x) {\nyield %a, %a\n}\nreturn %y\n}",
     "5:10: loop: stacked results need an axis"},
    {FUNC "%y, %z = loop 3 over(d) %j carry(%a = %x) {\nyield %a, %a\n}\nreturn %y\n}",
     "5:10: loop: the size of axis d is not the trip count 3"},
    {FUNC "%y, %z = loop 3 over(t) %j carry(%a = %x) {\nyield %a, %a\n}\nreturn %y\n}",
     "5:10: loop: f32[b, t] has the loop's axis already"},
    {FUNC "%y = call @f(%x)\nreturn %x\n}", "5:6: call: needs the types of its results"},
    {FUNC "%y = kernel (b) -> () (%a = %x) {\nyield %a\n}\nreturn %y\n}",
     "5:6: kernel: is not allowed at stage graph"},
};

#define INVALID "invalid IR: " // how every message begins (E710)

static bool says(const char *text, const char *message) {
  lm_ctx *c = lm_ctx_create();
  lm_buf reported = {0};
  CHECK(!lm_module_parse(c, lm_source_add(c, "bad.lmir", text, strlen(text))));
  CHECK(c->diags && c->n_errors == 1);
  const char *error = c->diags->text;
  size_t prefix = strlen(INVALID);
  CHECK(!strncmp(error, INVALID, prefix));
  lm_buf_printf(&reported, "%u:%u: %s", c->diags->loc.line, c->diags->loc.col, error + prefix);
  bool same = !strcmp(reported.p, message);
  if (!same)
    fprintf(stderr, "%s\nexpected: %s\nreported: %s\n", text, message, reported.p);
  lm_buf_free(&reported);
  lm_ctx_destroy(c);
  return same;
}

// The verifier finds what the parser cannot produce: an operand that is defined later.
static void check_order(void) {
  static const char text[] = FUNC "%y = neg %x\n%z = neg %y\nreturn %z\n}";
  lm_ctx *c = lm_ctx_create();
  lm_module *m = lm_module_parse(c, lm_source_add(c, "order.lmir", text, strlen(text)));
  CHECK(m);
  lm_op *first = m->funcs->body->first;
  lm_op_remove(first);
  lm_op_insert_before(m->funcs->body->last, first);
  lm_buf why = {0};
  CHECK(!lm_module_verify(m, &why));
  CHECK(!strcmp(why.p, "@f: %z.5 = neg %y.4 : f32[b, t]: an operand is not defined here\n"));
  lm_buf_free(&why);
  lm_ctx_destroy(c);
}

int main(void) {
  bool ok = true;
  for (size_t i = 0; i < LM_COUNT(tests); i++)
    ok &= says(tests[i].text, tests[i].message);
  check_order();
  CHECK(ok);
}
