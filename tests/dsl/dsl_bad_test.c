// dsl_bad_test.c - exact messages. Each *.lm of bad/ (syntax, recipes) and bad-semantic/ (types,
// axes) begins with the expected diagnostics, one line of output in each comment:
//   #! 7:14: error[E010]: found '}', expected an expression
//   #!   = help: ...
// Locations in other files include their path; excerpts of the source are left out. Directives:
//   #? recipe NAME        selects a recipe
//   #? set KEY = VALUE    as --set
//   #? probe              checks that no position depends on a later one
//   #? decode             also lowers prefill and decode
// With -r the expected diagnostics are replaced by the actual ones.
#include "tests/dsl/read_program.h"
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

static bool is_excerpt(const char *line) { // "10 | let x" or "   |    ^"
  const char *p = line + strspn(line, " 0123456789");
  return starts(p, "| ") || starts(p, "|\n");
}

// The diagnostics of the file as comment lines, without excerpts and without the path of the file.
static void diagnostics_of(const lm_program *library, const char *path, const char *text,
                           lm_buf *out) {
  lm_ctx *c = lm_ctx_create_on(library->c);
  lm_buf all = {0};
  directives d = read_directives(c, text);
  read_options o = {d.recipe, d.sets,   d.n_sets, !strstr(path, "/bad-semantic/"),
                    d.probes, d.decodes};
  read_program(c, library, path, &o);
  lm_diag_render(c, &all, 0);
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

// Twice, because the first time may change the number of lines of the header and so all locations.
static void rewrite(const lm_program *library, const char *path) {
  for (int i = 0; i < 2; i++) {
    lm_buf text = {0}, actual = {0};
    read_text(path, &text);
    diagnostics_of(library, path, text.p, &actual);
    lm_buf_puts(&actual, text.p + header_length(text.p));
    CHECK_OK(lm_file_write_atomic(path, actual.p, actual.n));
    lm_buf_free(&text);
    lm_buf_free(&actual);
  }
}

static bool is_as_expected(const lm_program *library, const char *path) {
  lm_buf text = {0}, actual = {0};
  read_text(path, &text);
  diagnostics_of(library, path, text.p, &actual);
  size_t n = header_length(text.p);
  bool same = n && actual.n == n && !memcmp(actual.p, text.p, n);
  if (!same)
    fprintf(stderr, "%s: found\n%sexpected\n%.*s", path, actual.p ? actual.p : "(nothing)\n",
            (int)n, text.p);
  lm_buf_free(&text);
  lm_buf_free(&actual);
  return same;
}

int main(int argc, char **argv) {
  bool rewrites = argc > 1 && !strcmp(argv[1], "-r");
  glob_t found;
  CHECK(!glob("tests/dsl/bad/*.lm", 0, NULL, &found) &&
        !glob("tests/dsl/bad-semantic/*.lm", GLOB_APPEND, NULL, &found));
  int n_failed = 0;
  lm_ctx *c = lm_ctx_create();
  const lm_program *library = lm_library_load(c); // shared by all files, which must not change it
  for (size_t i = 0; i < found.gl_pathc; i++) {
    if (rewrites)
      rewrite(library, found.gl_pathv[i]);
    else
      n_failed += !is_as_expected(library, found.gl_pathv[i]);
  }
  printf("%zu files, %d not as expected\n", found.gl_pathc, n_failed);
  globfree(&found);
  lm_ctx_destroy(c);
  return n_failed > 0;
}
