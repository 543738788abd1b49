// label.c - readable names of operations for plans, profiles and drawings.
#include <string.h>

#include "compiler/plan/planner.h"

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

typedef struct lines {
  uint16_t file;
  uint32_t line[8];
  int n;
} lines;

static void lines_add(lines *l, lm_loc loc) {
  if (!loc.file || (l->n && loc.file != l->file))
    return;
  l->file = loc.file;
  int at = 0;
  while (at < l->n && l->line[at] < loc.line)
    at++;
  if ((at < l->n && l->line[at] == loc.line) || l->n == (int)LM_COUNT(l->line))
    return;
  memmove(&l->line[at + 1], &l->line[at], (size_t)(l->n++ - at) * sizeof *l->line);
  l->line[at] = loc.line;
}

const char *lm_plan_origin(lm_arena *a, const lm_module *m, const lm_op *op) {
  lines l = {0};
  lines_add(&l, op->loc);
  if (op->code == LM_OP_KERNEL || op->code == LM_OP_SCAN)
    for (const lm_op *o = op->body->first; o; o = o->next)
      lines_add(&l, o->loc);
  if (!l.n || l.file >= m->ctx->n_sources)
    return "";
  lm_buf text = {0};
  lm_buf_puts(&text, base_name(m->ctx->sources[l.file].path));
  for (int i = 0; i < l.n; i++)
    lm_buf_printf(&text, "%c%u", i ? ',' : ':', l.line[i]);
  const char *out = lm_arena_strndup(a, text.p, text.n);
  lm_buf_free(&text);
  return out;
}

// The most expensive operations of a kernel, without duplicates.
static void kernel_summary(const lm_op *op, lm_buf *out) {
  bool seen[LM_OPS] = {0};
  int n = 0;
  for (const lm_op *o = op->body->first; o && n < 4; o = o->next) {
    const lm_op_info *info = lm_op_info_of(o);
    if (seen[o->code] ||
        (!(info->traits & LM_T_REDUCE) && info->flops < 2 && o->code != LM_OP_GATHER))
      continue;
    seen[o->code] = true;
    lm_buf_printf(out, "%s%s", n++ ? "+" : " ", info->name);
  }
}

const char *lm_plan_label(lm_arena *a, const lm_module *m, const lm_op *op) {
  lm_buf text = {0};
  lm_buf_puts(&text, lm_op_info_of(op)->name);
  if (op->code == LM_OP_KERNEL || op->code == LM_OP_SCAN)
    kernel_summary(op, &text);
  if (op->attr.mesh)
    lm_buf_printf(&text, " over %s", m->mesh.axis[op->attr.mesh - 1].name);
  const char *origin = lm_plan_origin(a, m, op);
  if (*origin)
    lm_buf_printf(&text, " %s", origin);
  const char *out = lm_arena_strndup(a, text.p, text.n);
  lm_buf_free(&text);
  return out;
}
