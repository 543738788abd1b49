// dsl_parse_test.c - the trees of small texts, the layout rules, and invalid input.
#include "tests/dsl/dsl_test.h"
#include <math.h>

static void check_tree(const char *text, const char *expected) {
  parsed p = parse(text);
  lm_buf messages = {0};
  lm_diag_render(p.c, &messages, 0);
  if (p.c->n_errors)
    fprintf(stderr, "%s", messages.p);
  CHECK(!p.c->n_errors);
  char *tree = tree_of(&p);
  CHECK_TEXT(tree, expected);
  lm_free(tree);
  lm_buf_free(&messages);
  lm_ctx_destroy(p.c);
}

static void test_trees(void) {
  check_tree("let x = -a ^ -b * c + d mod 2", "(let x (+ (* (neg (^ a (neg b))) c) (mod d 2)))\n");
  check_tree("let x = a ^ b ^ c - d - e", "(let x (- (- (^ a (^ b c)) d) e))\n");
  check_tree("let x = a | b & c == d + 1", "(let x (| a (& b (== c (+ d 1)))))\n");
  check_tree("let x = if a then b else c + 1", "(let x (if a b (+ c 1)))\n");
  check_tree("let x = f(a, b = 1, c -> (d, e), ..r)[0].y",
             "(let x (. (index (call f a (= b 1) (-> c (tuple d e)) ..r) 0) y))\n");
  check_tree("let x = (a)", "(let x a)\n");
  check_tree("let x = (a,)", "(let x (tuple1 a))\n");
  check_tree("let (x, y) = ()", "(let (x y) (tuple))\n");
  check_tree("let x = 20 tokens * params", "(let x (* (tokens 20) params))\n");
  check_tree("import a.b: c, d", "(import a.b (c d))\n");
  check_tree("import \"x y.lm\"", "(import \"x y.lm\" ())\n");
  check_tree(
      "fn f(x: real[..r, 2 * d], y = 1,) -> (f32, int[]) where d in r, 2 divides d { return x }",
      "(fn f (params (x (real ..r (* 2 d))) (y = 1)) -> (tuple f32 (int)) where (in d r) (divides "
      "2 d)\n  "
      "(return x))\n");
  check_tree("block B(d) {\n  dim a = 1, b = d\n  param w, v: real[d] = ones\n  sub l[i < 3] = "
             "C(i)\n  state m: f32 = 0\n  "
             "map hf { @l.#.w = (\"x\", [d]) }\n}",
             "(block B (params (d))\n  (dim (a 1) (b d))\n  (param (w v) (real d) ones)\n  (sub "
             "(l) [i < 3] (call C i))\n"
             "  (state (m) f32 0)\n  (map (hf)\n    (map  @l.#.w (tuple \"x\" (list d)))))\n");
  check_tree("model A = B() from \"hf:x\" with { freeze @**; store @a.{b, c} = nf4(block = 64) }",
             "(instance A (call B) from \"hf:x\"\n  (do freeze @**)\n  (set-sel store @a.{b,c} "
             "(call nf4 (= block 64))))\n");
  check_tree("recipe R extends Q { model = A(); a.b.c = 1; eval dev { every = 1k steps }; pack f(x "
             "= 1); stage 80% { } }",
             "(recipe R extends Q\n  (set model (call A))\n  (set a.b.c 1)\n  (section-sel eval "
             "dev\n    (set every (steps "
             "1000)))\n"
             "  (call pack f (args (= x 1)))\n  (section-sel stage (% 80)))\n");
  check_tree("fn f(x) { for l in xs carry x, y { x = l(x) }; emit n = x; return x }",
             "(fn f (params (x))\n  (for l xs carry (x y)\n    (set x (call l x)))\n  (emit n x)\n "
             " (return x))\n");
}

static void test_layout(void) {
  check_tree("let a = f(1,\n  2)\nlet b = 2 +\n 3\n\n", "(let a (call f 1 2))\n(let b (+ 2 3))\n");
  check_tree("model A = B()\n# a comment\n\n  from \"x\"\n  with { }",
             "(instance A (call B) from \"x\")\n");
  check_tree("fn f(x)\n  where 2 divides x { return if x\n then 1\n else 2 }",
             "(fn f (params (x)) where (divides 2 x)\n  (return (if x 1 2)))\n");
}

// The keywords of declarations are names inside braces and parentheses.
static void test_words(void) {
  check_tree(
      "recipe R { model = 1; data = D; block = 2; optimizer.lr = 3 }",
      "(recipe R\n  (set model 1)\n  (set data D)\n  (set block 2)\n  (set optimizer.lr 3))\n");
  check_tree("model M(data = 1, block = 2) { }", "(model M (params (data = 1) (block = 2)))\n");
}

static void check_number(const char *text, double num, bool is_int, const char *unit) {
  lm_ctx *c = lm_ctx_create();
  ast_item *it = lm_parse_set(c, lm_arena_printf(c->arena, "x = %s", text));
  CHECK(!c->n_errors && it->kind == IT_SET);
  const ast_expr *e = it->expr;
  CHECK(fabs(e->num - num) <= 1e-15 * fabs(num) && e->is_int == is_int &&
        (!is_int || (double)e->inum == num));
  CHECK(unit ? e->kind == EX_QUANTITY && !strcmp(e->unit, unit) : e->kind == EX_NUMBER);
  lm_ctx_destroy(c);
}

static void test_numbers(void) {
  check_number("32_000", 32000, true, NULL);
  check_number("2Ki", 2048, true, NULL);
  check_number("10k", 1e4, true, NULL);
  check_number("1.5k", 1500, true, NULL);
  check_number("3e-4", 3e-4, false, NULL);
  check_number("1e3", 1000, false, NULL);
  check_number("9223372036854775807", 9223372036854775807.0, true, NULL);
  check_number("9223372036854775808", 9223372036854775808.0, false, NULL);
  check_number("300B tokens", 3e11, true, "tokens");
  check_number("512Ki  tokens", 524288, true, "tokens");
  check_number("1 step", 1, true, "steps");
  check_number("72GB", 72e9, true, "bytes");
  check_number("72 GiB", 72.0 * 1073741824, true, "bytes");
  check_number("100 ms", 0.1, false, "s");
  check_number("10 min", 600, true, "s");
  check_number("2 hours", 7200, true, "s");
  check_number("0.5%", 0.5, false, "%");
}

static void test_strings(void) {
  lm_ctx *c = lm_ctx_create();
  ast_item *it = lm_parse_set(c, "x = \"a\\n\\t\\\"\\\\\\u{e9}\\u{1F600}é\"");
  CHECK(!c->n_errors);
  CHECK_TEXT(it->expr->text, "a\n\t\"\\é\xf0\x9f\x98\x80é");
  lm_ctx_destroy(c);
}

static void test_docs(void) {
  parsed p = parse("# not this\n\n# one\n#two\nfn f() { return 1 }\nfn g() { return 1 } # no\nfn "
                   "h() { return 1 }\n");
  CHECK(p.f->n == 3 && !p.c->n_errors);
  CHECK_TEXT(p.f->v[0]->doc, "one\ntwo");
  CHECK(!p.f->v[1]->doc && !p.f->v[2]->doc);
  lm_ctx_destroy(p.c);
}

static void test_set(void) {
  lm_ctx *c = lm_ctx_create();
  CHECK(lm_parse_set(c, "optimizer.lr=3e-4")->path.n == 2);
  CHECK(lm_parse_set(c, "precision { compute = bf16 }")->kind == IT_SECTION);
  CHECK(lm_parse_set(c, "data=Mix")->kind == IT_SET);
  CHECK(!c->n_errors);
  CHECK(lm_parse_set(c, "")->kind == IT_ERROR && c->n_errors == 1);
  CHECK(lm_parse_set(c, "a = 1\nb = 2")->kind == IT_ERROR || c->n_errors == 2);
  lm_ctx_destroy(c);
}

// Each mistake is reported once, and the text after it is parsed.
static void test_recovery(void) {
  parsed p = parse("fn f(x {\n let a = 1 +\n}\nfn g() {\n  let a = (1\n  let b = 2\n  return b "
                   "}\nrecipe R {\n  a = = "
                   "1\n  b = 2\n}\n");
  CHECK(p.c->n_errors == 3 && p.f->n == 3);
  CHECK(p.f->v[0]->kind == DC_ERROR && p.f->v[1]->kind == DC_FN && p.f->v[2]->kind == DC_RECIPE);
  CHECK(p.f->v[1]->body.n == 3 && p.f->v[1]->body.v[0]->kind == ST_ERROR &&
        p.f->v[2]->items.n == 2);
  lm_ctx_destroy(p.c);
}

// ---- input of any bytes

static void check_refused(const char *unit, size_t times, const char *before, const char *part) {
  lm_buf text = {0}, messages = {0};
  lm_buf_puts(&text, before);
  for (size_t i = 0; i < times; i++)
    lm_buf_puts(&text, unit);
  parsed p = parse_n(text.p, text.n);
  lm_diag_render(p.c, &messages, 0);
  CHECK(p.c->n_errors);
  if (!strstr(messages.p, part))
    fprintf(stderr, "%s%s...: no \"%s\" in\n%.300s", before, unit, part, messages.p);
  CHECK(strstr(messages.p, part));
  lm_buf_free(&text);
  lm_buf_free(&messages);
  lm_ctx_destroy(p.c);
}

static void test_hostile(void) {
  check_refused("(", 1000000, "let x = ", "more than 200 nested");
  check_refused("-", 1000000, "let x = ", "nested too deeply");
  check_refused("a ^ ", 100000, "let x = ", "nested too deeply");
  check_refused("a + ", 100000, "let x = ", "more than 1000 levels");
  check_refused("()", 100000, "let x = f", "more than 1000 levels");
  check_refused("if a then ", 100000, "let x = ", "nested too deeply");
  check_refused("a {", 100000, "recipe R {", "more than 200 nested");
  check_refused("{", 100000, "recipe R ", "expected");
  check_refused("}", 100000, "", "'}' without a '{'");
  check_refused("@{a", 100000, "let x = ", "invalid pattern");
  check_refused(" ", 5000000, "", "the maximum is 4194304");
  check_refused("\xff", 3, "# ", "not UTF-8");
  check_refused("\"", 99999, "", "string");
  parsed nul = parse_n("let a = 1\0", 10);
  CHECK(nul.c->n_errors == 1);
  lm_ctx_destroy(nul.c);
}

int main(void) {
  test_trees();
  test_layout();
  test_words();
  test_numbers();
  test_strings();
  test_docs();
  test_set();
  test_recovery();
  test_hostile();
}
