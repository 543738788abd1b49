// lm_fuzz.c - the language: parser, formatter, tree printer, program loader, recipes. A text that parses must keep its tree
// through the formatter, and be left alone by it the second time.
#include "dsl/recipe.h"
#include "tests/fuzz/fuzz.h"

static void print(const ast_file *f, lm_buf *out) {
  lm_ast_print(f, out);
  if (!out->p) lm_buf_puts(out, "");
}

static void check_formatted(lm_ctx *c, const ast_file *f) {
  lm_buf once = {0}, twice = {0}, tree = {0}, again = {0};
  lm_fmt(c, f->source, &once);
  uint16_t source = lm_source_add(c, "formatted", once.p ? once.p : "", once.n);
  const ast_file *g = lm_parse_file(c, source);
  lm_fmt(c, source, &twice);
  print(f, &tree);
  print(g, &again);
  if (c->n_errors || strcmp(tree.p, again.p) || once.n != twice.n ||
      memcmp(once.p ? once.p : "", twice.p ? twice.p : "", once.n))
    abort();
  lm_buf_free(&once);
  lm_buf_free(&twice);
  lm_buf_free(&tree);
  lm_buf_free(&again);
}

static void render(lm_ctx *c) {
  lm_buf out = {0};
  lm_diag_render(c, &out, true);
  lm_diag_render_json(c, &out);
  lm_buf_free(&out);
}

static void parse_text(const uint8_t *data, size_t n) {
  lm_ctx *c = lm_ctx_create();
  const ast_file *f = lm_parse_file(c, lm_source_add(c, "t.lm", (const char *)data, n));
  if (!c->n_errors) check_formatted(c, f);
  render(c);
  lm_ctx_destroy(c);
}

// As a file of its own, so that imports and every recipe of it are read too.
static void resolve_recipes(const char *path) {
  lm_ctx *c = lm_ctx_create();
  lm_program *p = lm_program_load(c, path);
  for (uint32_t i = 0; p && i < p->files[0]->tree->n; i++) {
    const ast_decl *d = p->files[0]->tree->v[i];
    static const char *const sets[] = {"optimizer.lr = 1e-3", "precision.compute = f32"};
    lm_recipe *r = d->kind == DC_RECIPE ? lm_recipe_resolve(c, p, d->name.text, sets, 2) : NULL;
    lm_buf out = {0};
    if (r) lm_recipe_print(r, true, &out);
    lm_buf_free(&out);
  }
  render(c);
  lm_ctx_destroy(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  parse_text(data, n);
  resolve_recipes(fuzz_file("lm", data, n));
  return 0;
}
