// ir_dump.c - prints the IR while passes run.
#include "driver/inspect/ir_dump.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/passes/pass.h"
#include "runtime/base/file.h"

lm_status lm_dump_stage(const char *dir, const lm_module *m) {
  lm_arena *a = lm_arena_create();
  lm_buf text = {0};
  lm_module_print(m, &text);
  char *path = lm_path_join(a, dir, lm_arena_printf(a, "%s.lmir", lm_stage_names[m->stage]));
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
  LM_TRY(lm_annotate(lm_pass_named(pass, strlen(pass), &found), "--print-after"));
  d->after = found->name;
  return NULL;
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
}

void lm_dump_stage_end(lm_dump *d, const lm_module *m) {
  if (d->dir && !d->failed)
    d->failed = lm_dump_stage(d->dir, m);
}

lm_status lm_module_read(lm_ctx *ctx, const char *path, lm_module **out) {
  enum {
    MOST_BYTES = 256 << 20
  };
  lm_buf text = {0};
  lm_buf why = {0};
  lm_status s = lm_file_read(path, MOST_BYTES, &text);
  if (s) {
    lm_buf_free(&text);
    return s;
  }
  *out = lm_module_parse(ctx, lm_source_add(ctx, path, text.p ? text.p : "", text.n));
  lm_buf_free(&text);
  if (ctx->n_errors)
    return lm_fail(LM_USER, "%s", "");
  if (!lm_module_verify(*out, &why))
    s = lm_fail(LM_USER, "%s: %s", path, why.p);
  lm_buf_free(&why);
  return s;
}

const char *lm_module_dump(const lm_module *m) {
  static char path[4096];
  if (!m)
    return NULL;
  snprintf(path, sizeof path, "%s/lmc-bug-XXXXXX.lmir", lm_temp_parent());
  int fd = mkstemps(path, (int)strlen(".lmir"));
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  if (!f)
    return NULL;
  lm_buf text = {0};
  lm_module_print(m, &text);
  fputs(text.p, f);
  fclose(f);
  return path;
}
