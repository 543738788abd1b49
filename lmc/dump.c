// dump.c - IR as text while passes run.
#include "lmc/dump.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/passes/pass.h"

static const char *const STAGES[LM_STAGES] = {"graph", "step", "kernel"};

lm_status lm_dump_stage(const char *dir, const lm_module *m) {
  lm_arena *a = lm_arena_create();
  lm_buf text = {0};
  lm_module_print(m, &text);
  char *path = lm_path_join(a, dir, lm_arena_printf(a, "%s.lmir", STAGES[m->stage]));
  lm_status s = lm_file_write_atomic(path, text.p, text.n);
  lm_buf_free(&text);
  lm_arena_destroy(a);
  return s;
}

lm_status lm_dump_after(lm_dump *d, const char *pass) {
  const lm_pass *found;
  d->after = pass;
  if (!pass || !strcmp(pass, "all"))
    return NULL;
  return lm_annotate(lm_pass_named(pass, strlen(pass), &found), "--print-after");
}

static void print_after(const lm_dump *d, const char *pass, const lm_module *m) {
  lm_buf text = {0};
  lm_module_print(m, &text);
  fprintf(d->to, "# ---- %d: after %s\n%s\n", d->n_passes, pass, text.p);
  lm_buf_free(&text);
}

void lm_dump_pass(lm_dump *d, const char *pass, const lm_module *m) {
  d->n_passes++;
  if (d->after && (!strcmp(d->after, "all") || !strcmp(d->after, pass)))
    print_after(d, pass, m);
  if (d->dir && !d->failed)
    d->failed = lm_dump_stage(d->dir, m);
}

void lm_dump_bug(void *user) {
  const lm_module *m = *(lm_module *const *)user;
  if (!m)
    return;
  const char *dir = getenv("TMPDIR");
  char path[4096];
  snprintf(path, sizeof path, "%s/lmc-bug-XXXXXX.lmir", dir && *dir ? dir : "/tmp");
  int fd = mkstemps(path, (int)strlen(".lmir"));
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (!f)
    return;
  lm_buf text = {0};
  lm_module_print(m, &text);
  fputs(text.p, f);
  fclose(f);
  fprintf(stderr, "lmc: this is a bug in lmc; the IR at that point is in %s\n", path);
}
