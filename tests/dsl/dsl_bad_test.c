// dsl_bad_test.c - exact messages. Each *.lm of bad/ (form, recipes) and bad-semantic/ (meaning)
// begins with what must be said about it, one line of output a comment:
//   #! 7:14: error[E010]: found '}', expected an expression
//   #!   = help: …
// (places in other files keep their path; excerpts of the source are left out), and may say how it
// is read:
//   #? recipe NAME        #? set KEY = VALUE
//   #? probe     as a check that looks for places that see later ones        #? decode     as for
//   generation
// With -r the expectations are rewritten from what is said now.
#include "compiler/passes/pass.h"
#include "dsl/lower/lower.h"
#include "tests/runtime/check.h"
#include <glob.h>

enum {
  MAX_SETS = 8,
  MAX_BYTES = 1 << 20
};

typedef struct directives {
  const char *recipe, *sets[MAX_SETS];
  int n_sets;
  bool probes, decodes;
} directives;

static bool starts(const char *line, const char *prefix) {
  return !strncmp(line, prefix, strlen(prefix));
}

static directives read_directives(lm_ctx *c, const char *text) {
  directives d = {0};
  for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
    const char *end = p + strcspn(p, "\n");
    if (starts(p, "#? recipe "))
      d.recipe = lm_arena_strndup(c->arena, p + 10, (size_t)(end - p - 10));
    if (starts(p, "#? set ") && d.n_sets < MAX_SETS)
      d.sets[d.n_sets++] = lm_arena_strndup(c->arena, p + 7, (size_t)(end - p - 7));
    if (starts(p, "#? probe"))
      d.probes = true;
    if (starts(p, "#? decode"))
      d.decodes = true;
  }
  return d;
}

static bool has_recipe(const lm_program *p) {
  for (uint32_t i = 0; i < p->files[0]->tree->n; i++)
    if (p->files[0]->tree->v[i]->kind == DC_RECIPE)
      return true;
  return false;
}

static void lower(lm_ctx *c, lm_program *p, lm_recipe *r, bool decodes) {
  lm_lower_options o = {.what = LM_LOWER_PROBE | (decodes ? LM_LOWER_DECODE : 0),
                        .rows = 2,
                        .seq = 16,
                        .capacity = 64,
                        .chunk = 8};
  lm_lowered *l = lm_lower(c, p, r, &o);
  if (l)
    lm_pipeline_run(l->m, LM_STAGE_GRAPH, &(lm_pass_env){0});
}

static void read_program(lm_ctx *c, const lm_program *library, const char *path, const char *text) {
  directives d = read_directives(c, text);
  lm_program *p = lm_program_load_with(c, path, library);
  if (!p)
    return;
  if (c->n_errors) { // what can still be said is, as `lmc check` does, and nothing twice
    lm_check(c, p, NULL);
    return;
  }
  lm_recipe *r =
      has_recipe(p) || d.recipe ? lm_recipe_resolve(c, p, d.recipe, d.sets, d.n_sets) : NULL;
  if (r)
    lm_recipe_report_unsupported(r);
  if (!c->n_errors || strstr(path, "/bad-semantic/"))
    lm_check(c, p, r); // models of bad/ mean nothing
  if (r && !c->n_errors && (d.probes || d.decodes))
    lower(c, p, r, d.decodes);
}

static bool is_excerpt(const char *line) { // "10 | let x" or "   |    ^"
  const char *p = line + strspn(line, " 0123456789");
  return starts(p, "| ") || starts(p, "|\n");
}

// What is said about the file as comment lines, without excerpts and without the file's own path.
static void said_about(const lm_program *library, const char *path, const char *text, lm_buf *out) {
  lm_ctx *c = lm_ctx_create_on(library->c);
  lm_buf all = {0};
  read_program(c, library, path, text);
  lm_diag_render(c, &all, false);
  for (const char *p = all.p ? all.p : ""; *p;) {
    size_t n = strcspn(p, "\n") + 1;
    size_t skip = starts(p, path) ? strlen(path) + 1 : 0;
    if (!is_excerpt(p))
      lm_buf_printf(out, "#! %.*s", (int)(n - skip), p + skip);
    p += n;
  }
  lm_buf_free(&all);
  lm_ctx_destroy(c);
}

static size_t header_length(const char *text) {
  const char *p = text;
  while (starts(p, "#! "))
    p += strcspn(p, "\n") + 1;
  return (size_t)(p - text);
}

static void read_text(const char *path, lm_buf *out) {
  CHECK_OK(lm_file_read(path, MAX_BYTES, out));
  if (!out->p)
    lm_buf_puts(out, "");
}

// Twice: the first time the header may change its number of lines, and with it every place.
static void rewrite(const lm_program *library, const char *path) {
  for (int i = 0; i < 2; i++) {
    lm_buf text = {0}, said = {0};
    read_text(path, &text);
    said_about(library, path, text.p, &said);
    lm_buf_puts(&said, text.p + header_length(text.p));
    CHECK_OK(lm_file_write_atomic(path, said.p, said.n));
    lm_buf_free(&text);
    lm_buf_free(&said);
  }
}

static bool is_as_expected(const lm_program *library, const char *path) {
  lm_buf text = {0}, said = {0};
  read_text(path, &text);
  said_about(library, path, text.p, &said);
  size_t n = header_length(text.p);
  bool same = n && said.n == n && !memcmp(said.p, text.p, n);
  if (!same)
    fprintf(stderr, "%s: said\n%sexpected\n%.*s", path, said.p ? said.p : "(nothing)\n", (int)n,
            text.p);
  lm_buf_free(&text);
  lm_buf_free(&said);
  return same;
}

int main(int argc, char **argv) {
  bool rewrites = argc > 1 && !strcmp(argv[1], "-r");
  glob_t found;
  CHECK(!glob("tests/dsl/bad/*.lm", 0, NULL, &found) &&
        !glob("tests/dsl/bad-semantic/*.lm", GLOB_APPEND, NULL, &found));
  int n_wrong = 0;
  lm_ctx *c = lm_ctx_create();
  const lm_program *library =
      lm_library_load(c); // for all of them: no file may leave a trace in it
  for (size_t i = 0; i < found.gl_pathc; i++) {
    if (rewrites)
      rewrite(library, found.gl_pathv[i]);
    else
      n_wrong += !is_as_expected(library, found.gl_pathv[i]);
  }
  printf("%zu files, %d not as expected\n", found.gl_pathc, n_wrong);
  globfree(&found);
  lm_ctx_destroy(c);
  return n_wrong > 0;
}
