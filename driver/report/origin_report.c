// origin_report.c - the output of lmc explain for a key of the recipe, and for the changes in a
// run.
#include "driver/fingerprint.h"
#include "driver/report/report.h"

static void origin_print(const lm_ctx *c, const lm_recipe_origin *o, lm_buf *out) {
  lm_buf_printf(out, "  %-23s  %s", o->text, o->who);
  if (o->loc.file && o->loc.line)
    lm_buf_printf(out, ", %s:%u:%u", c->sources[o->loc.file].path, o->loc.line, o->loc.col);
  lm_buf_printf(out, "\n");
}

void lm_report_origins_json(const lm_ctx *c, const char *key, const lm_recipe_origin *o,
                            lm_buf *out) {
  lm_buf_puts(out, "{\"key\": ");
  lm_buf_json(out, key);
  lm_buf_puts(out, ", \"values\": [");
  for (const lm_recipe_origin *first = o; o; o = o->before) {
    lm_buf_puts(out, o == first ? "{\"value\": " : ", {\"value\": ");
    lm_buf_json(out, o->text);
    lm_buf_puts(out, ", \"from\": ");
    lm_buf_json(out, o->who);
    if (o->loc.file && o->loc.line) {
      lm_buf_puts(out, ", \"file\": ");
      lm_buf_json(out, c->sources[o->loc.file].path);
      lm_buf_printf(out, ", \"line\": %u, \"column\": %u", o->loc.line, o->loc.col);
    }
    lm_buf_puts(out, "}");
  }
  lm_buf_puts(out, "]}\n");
}

void lm_report_origins(const lm_ctx *c, const char *key, const lm_recipe_origin *o, lm_buf *out) {
  lm_buf_printf(out, "%s\n", key);
  for (; o; o = o->before)
    origin_print(c, o, out);
}

// ---- changes in a run

static void change_print(const lm_history_entry *e, lm_buf *out) {
  const lm_fingerprint_change c = {e->key, e->was, e->is};
  lm_buf_printf(out, "from step %lld on:", (long long)e->step + 1);
  lm_fingerprint_change_print(&c, out);
  lm_buf_puts(out, e->lines ? e->lines : "");
  if (e->program)
    lm_buf_printf(out, "\n  (the program until then: %s)", e->program);
  lm_buf_puts(out, "\n");
}

void lm_report_changes(const lm_history *h, lm_buf *out) {
  if (!h->n)
    lm_buf_puts(out, "nothing was changed in the middle of this run\n");
  for (uint32_t i = 0; i < h->n; i++)
    change_print(&h->v[i], out);
}
