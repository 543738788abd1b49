// print_test.c - printing and parsing: the text of a module parses to a module with the same text.
// For the .lmir files that are given, or for all in tests/.
#include <dirent.h>
#include "compiler/ir/ir.h"
#include "tests/runtime/check.h"

static lm_module *parse(lm_ctx *c, const char *path, const char *text, size_t n) {
  lm_module *m = lm_module_parse(c, lm_source_add(c, path, text, n));
  if (m)
    return m;
  lm_buf b = {0};
  lm_diag_render(c, &b, 0);
  fprintf(stderr, "%s", b.p);
  exit(1);
}

static void round_trip(const char *path) {
  lm_buf text = {0}, once = {0}, twice = {0};
  CHECK_OK(lm_file_read(path, 1 << 24, &text));
  lm_ctx *a = lm_ctx_create();
  lm_ctx *b = lm_ctx_create();
  lm_module_print(parse(a, path, text.p, text.n), &once);
  lm_module_print(parse(b, path, once.p, once.n), &twice);
  if (getenv("SHOW"))
    puts(once.p);
  CHECK(!strcmp(once.p, twice.p));
  lm_ctx_destroy(a);
  lm_ctx_destroy(b);
  lm_buf_free(&text);
  lm_buf_free(&once);
  lm_buf_free(&twice);
}

static void folder(const char *path) {
  DIR *d = opendir(path);
  CHECK(d);
  for (struct dirent *e; (e = readdir(d));) {
    size_t n = strlen(e->d_name);
    char file[512];
    snprintf(file, sizeof file, "%s/%s", path, e->d_name);
    if (n > 5 && !strcmp(e->d_name + n - 5, ".lmir") && strncmp(e->d_name, "bad-", 4))
      round_trip(file);
  }
  closedir(d);
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    round_trip(argv[i]);
  if (argc == 1)
    folder("tests/ir");
}
