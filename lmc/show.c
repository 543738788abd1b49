// show.c - output that all commands share: results, diagnostics, and the events of the driver.
#include <stdio.h>

#include "lmc/command.h"
#include "runtime/base/terminal.h"

void lm_cli_diagnostics(const lm_cli *cli) {
  lm_ctx *c = cli->ctx;
  lm_buf b = {0};
  if (!c->diags)
    return;
  if (cli->json)
    lm_diag_render_json(c, &b);
  else
    lm_diag_render(c, &b, lm_terminal_width(stderr));
  fputs(b.p ? b.p : "", stderr);
  lm_buf_free(&b);
  c->diags = NULL;
  c->diags_tail = &c->diags;
}

void lm_cli_print(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_vprint_shown(stdout, fmt, ap);
  va_end(ap);
}

void lm_cli_put(lm_buf *text) {
  lm_puts_shown(stdout, text->p);
  lm_buf_free(text);
}

void lm_cli_write(void *user, const char *p, size_t n) {
  lm_terminal_write(stdout, p, n);
}

void lm_cli_note(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  lm_vprint_wrapped(stderr, 2, fmt, ap);
  va_end(ap);
}

// ---- events of the driver

static void warning_print(void *user, const char *text) {
  lm_cli_note("warning: %s\n", text);
}

static void note_print(void *user, const char *text) {
  lm_cli_note("note: %s\n", text);
}

static void progress_print(void *user, const char *text) {
  fprintf(stderr, "\r%s\033[K", text ? text : "");
}

static void module_take(void *user, lm_module *m) {
  lm_cli *cli = user;
  cli->module = m;
}

void lm_cli_events(lm_cli *cli) {
  cli->events = (lm_events){.warning = warning_print,
                            .note = note_print,
                            .progress = cli->color ? progress_print : NULL,
                            .module = module_take,
                            .user = cli};
}
