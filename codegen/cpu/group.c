// group.c - the kernels that sort rows by group: a call of the prelude's group.h by one thread,
// since the time of all rows is that of a few rows of the GEMMs that follow.
#include "codegen/cpu/cpu.h"

bool lm_cpu_group_emit(const lm_op *op, lm_arena *arena, lm_kernel_code *out) {
  const lm_module *m = lm_op_module(op);
  lm_type id = op->in[0]->type;
  lm_buf text = {0};
  const lm_value *by_group = op->code == LM_OP_GROUP_COUNTS ? op->out[0] : op->in[1];
  int64_t groups = lm_axis_size(m, by_group->type.axis[0]);
  lm_buf_puts(&text, "(char *const *buf, const int64_t *var, int64_t lo, int64_t hi) {\n"
                     "  const int64_t rows = 1");
  for (int i = 0; i < id.rank; i++) {
    const lm_axis_info *a = &m->axes[id.axis[i]];
    if (a->dyn)
      lm_buf_printf(&text, " * var[%d]", a->dyn - 1);
    else
      lm_buf_printf(&text, " * %lld", (long long)a->size);
  }
  bool counts = op->code == LM_OP_GROUP_COUNTS;
  bool order = op->code == LM_OP_GROUP_ORDER;
  lm_buf_puts(&text, ";\n  const int32_t *id = (const int32_t *)buf[0];\n  if (lo < hi)\n");
  if (counts)
    lm_buf_printf(&text, "    lm_group_counts(id, rows, %lld, (int32_t *)buf[1]);\n}\n",
                  (long long)groups);
  else
    lm_buf_printf(&text,
                  "    lm_group_%s(id, (const int32_t *)buf[1], rows, %lld, (int64_t *)buf[3], "
                  "(int32_t *)buf[2]);\n}\n",
                  order ? "order" : "inverse", (long long)groups);
  *out = (lm_kernel_code){.space = {.fixed = 1},
                          .n_workspaces = !counts,
                          .workspace = {groups * (int64_t)sizeof(int64_t)}};
  out->name = lm_arena_printf(arena, "k%016llx", (unsigned long long)lm_hash(text.p, text.n, 0));
  out->source = lm_arena_printf(arena, "void %s%s", out->name, text.p);
  lm_buf_free(&text);
  return true;
}
