// dsl_catalogue_test.c - the catalogue of diagnostics (runtime/base/diag.def): the form of its
// entries, and that each example causes the diagnostic that it is an example of, and its corrected
// form none.
#include "runtime/base/diag_code.h"
#include "tests/dsl/read_program.h"
#include "tests/runtime/check.h"
#include <ctype.h>
#include <unistd.h>

// Declarations that examples assume. An example with a model, a data section, or a recipe that
// extends Base is completed by the missing ones of the three. The model calls `fn mix`, or has a
// part `block Part`, if the example declares it.
static const char model_begin[] = "import std.nn: xent\n"
                                  "model M(d = 8, vocab = 256) {\n"
                                  "  param embed: real[vocab, d] = normal(0.02)\n";
static const char model_part[] = "  sub part = Part(d)\n";
static const char model_map[] = "  map hf { @embed = (\"embed\", [vocab, d]) }\n";
static const char model_apply[] =
    "  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {\n"
    "    let x = gather(embed, tok, vocab)\n";
static const char model_end[] =
    "  }\n"
    "  loss(bt: Batch[b, t]) -> (f32, f32) {\n"
    "    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))\n"
    "  }\n"
    "}\n";
static const char data[] = "data D { source s = text(\"s.txt\"); holdout dev = tail(1%); pack "
                           "best_fit(seq = 64 tokens) }\n";
static const char base[] =
    "recipe Base {\n"
    "  model = M(); data = D; run = 100 steps; batch = 128 tokens; micro = 64 tokens\n"
    "  optimizer = adamw(lr = 1e-3)\n"
    "}\n";

static int n_failed;

static void fail(const lm_diag_info *d, const char *what, const char *found) {
  fprintf(stderr, "%s: %s%s%s\n", d->code, what, found ? "; found:\n" : "", found ? found : "");
  n_failed++;
}

// ---- the form of an entry

static bool is_code(const char *s) {
  return (s[0] == 'E' || s[0] == 'W') && strspn(s + 1, "0123456789ABCDEF") == 3 && !s[4];
}

static bool is_sentence(const char *s) {
  size_t n = strlen(s);
  return n > 40 && strchr(s, ' ') && s[n - 1] == '.' && !islower((unsigned char)s[0]);
}

static void test_form(void) {
  for (int i = 0; i < LM_DIAGS; i++) {
    const lm_diag_info *d = &lm_diag_table[i];
    if (!is_code(d->code) || (d->code[0] == 'E') != (d->severity == LM_SEV_ERROR))
      fail(d, "the code does not fit the severity", NULL);
    if (i && strcmp(lm_diag_table[i - 1].code, d->code) >= 0)
      fail(d, "the codes are not unique and in ascending order", NULL);
    for (int k = 0; k < i; k++)
      if (!strcmp(lm_diag_table[k].text, d->text))
        fail(d, "its text is the text of another code", lm_diag_table[k].code);
    if (!is_sentence(d->explanation))
      fail(d, "the explanation is no sentence", d->explanation);
    if (*d->corrected && !*d->example)
      fail(d, "there is a corrected example without a wrong one", NULL);
  }
}

// ---- the examples

static bool needs_recipe(const char *example) {
  static const char *const signs[] = {"Base", "= M()",    "data D {",    "data = D",
                                      "Bass", "model M(", "block Part(", "fn mix("};
  for (size_t i = 0; i < LM_COUNT(signs); i++)
    if (strstr(example, signs[i]))
      return true;
  return false;
}

static void add_model(lm_buf *out, const char *example) {
  bool part = strstr(example, "block Part(");
  bool mix = strstr(example, "fn mix(");
  lm_buf_puts(out, model_begin);
  if (part)
    lm_buf_puts(out, model_part);
  if (strstr(example, "map hf"))
    lm_buf_puts(out, model_map);
  lm_buf_puts(out, model_apply);
  lm_buf_printf(out, "    return dot(%s, embed, d)\n",
                part  ? "part(x)"
                : mix ? "mix(x, pos, seg)"
                      : "x");
  lm_buf_puts(out, model_end);
}

// The example as a whole program, and the recipe to read; NULL if there is one or none.
static const char *complete(lm_ctx *c, lm_buf *out, const char *example) {
  lm_buf_puts(out, example);
  if (!needs_recipe(example))
    return NULL;
  const char *own = strstr(example, "recipe ");
  if (!own || strstr(own, " extends "))
    lm_buf_puts(out, base);
  if (!strstr(example, "data D {"))
    lm_buf_puts(out, data);
  if (!strstr(example, "model M("))
    add_model(out, example);
  if (!own)
    return "Base";
  const char *name = own + strlen("recipe ");
  return lm_arena_strndup(c->arena, name, strcspn(name, " "));
}

// Reads a program in a new context, which the caller destroys.
static lm_ctx *read_text(const lm_program *library, const char *path, const char *example) {
  lm_buf text = {0};
  lm_ctx *c = lm_ctx_create_on(library->c);
  read_options o = {.probes = true, .decodes = true};
  o.recipe = complete(c, &text, example);
  CHECK_OK(lm_file_write_atomic(path, text.p, text.n));
  read_program(c, library, path, &o);
  lm_buf_free(&text);
  return c;
}

static bool has_code(const lm_ctx *c, const char *code) {
  for (const lm_diag *d = c->diags; d; d = d->next)
    if (d->code && !strcmp(d->code, code))
      return true;
  return false;
}

static void check_example(const lm_program *library, const char *path, const lm_diag_info *d) {
  lm_buf found = {0};
  lm_ctx *c = read_text(library, path, d->example);
  lm_diag_render(c, &found, 0);
  uint32_t expected = d->severity == LM_SEV_ERROR;
  if (!has_code(c, d->code) || c->n_errors != expected)
    fail(d, "the example does not cause it alone", found.p ? found.p : "(nothing)");
  lm_buf_free(&found);
  lm_ctx_destroy(c);
}

static void check_corrected(const lm_program *library, const char *path, const lm_diag_info *d) {
  lm_buf found = {0};
  lm_ctx *c = read_text(library, path, d->corrected);
  lm_diag_render(c, &found, 0);
  if (c->n_errors || has_code(c, d->code))
    fail(d, "the corrected example has mistakes", found.p);
  lm_buf_free(&found);
  lm_ctx_destroy(c);
}

static void test_examples(void) {
  char path[] = "/tmp/lm-example-XXXXXX.lm";
  int fd = mkstemps(path, 3);
  CHECK(fd >= 0);
  close(fd);
  lm_ctx *c = lm_ctx_create();
  const lm_program *library = lm_library_load(c);
  int n_examples = 0;
  for (int i = 0; i < LM_DIAGS; i++) {
    const lm_diag_info *d = &lm_diag_table[i];
    if (*d->example)
      check_example(library, path, d);
    if (*d->corrected)
      check_corrected(library, path, d);
    n_examples += *d->example != 0;
  }
  printf("%d diagnostics, %d with an example\n", LM_DIAGS, n_examples);
  unlink(path);
  lm_ctx_destroy(c);
}

// ---- printed entries

static void test_title(void) {
  const lm_diag_info d = {.text = "%s of %.*s: %lld, 2%% and 0x%02x"};
  lm_buf out = {0};
  lm_diag_title(&out, &d);
  CHECK(!strcmp(out.p, "… of …: …, 2% and 0x…"));
  lm_buf_free(&out);
}

static void test_hint(void) {
  lm_ctx *c = lm_ctx_create();
  uint16_t file = lm_source_add(c, "a.lm", "x\ny\nz\n", 6);
  lm_buf none = {0}, one = {0}, two = {0};
  LM_REPORT(c, ((lm_loc){file, 1, 1, 1}), W001, "x");
  lm_diag_hint(c, &none);
  CHECK(!none.n);
  LM_REPORT(c, ((lm_loc){file, 1, 3, 1}), E020, "z");
  LM_REPORT(c, ((lm_loc){file, 1, 2, 1}), E020, "y");
  lm_diag_hint(c, &one);
  CHECK(!strcmp(one.p, "`lmc explain E020` tells more about this error\n"));
  LM_REPORT(c, ((lm_loc){file, 1, 1, 1}), E031, "dot");
  lm_diag_hint(c, &two);
  CHECK(!strcmp(two.p, "`lmc explain CODE` tells more about an error, such as E031, E020\n"));
  lm_buf_free(&one);
  lm_buf_free(&two);
  lm_ctx_destroy(c);
}

int main(void) {
  test_title();
  test_hint();
  test_form();
  test_examples();
  return n_failed > 0;
}
