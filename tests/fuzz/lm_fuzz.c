// lm_fuzz.c - libFuzzer over the language: parser, formatter, tree printer, program loader, recipes.
//
//   clang -g -O1 -fsanitize=fuzzer,address,undefined -I. -Ibuild/gen tests/fuzz/lm_fuzz.c … -o lm_fuzz
//   ./lm_fuzz -max_len=4096 -dict=tests/fuzz/lm.dict CORPUS tests/dsl/bad
//
// A text that parses must keep its tree through the formatter, and be left alone by it the second time.
#include "dsl/recipe.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
  static char path[64];
  if (!*path) snprintf(path, sizeof path, "/dev/shm/lm_fuzz_%d.lm", (int)getpid());
  parse_text(data, n);
  FILE *f = fopen(path, "wb");
  if (!f) abort();
  fwrite(data, 1, n, f);
  fclose(f);
  resolve_recipes(path);
  return 0;
}
