// attend_tile.c - the elements of an attend's region as C: each operation is written at the level
// of the axes that it depends on.
#include "codegen/cpu/attend.h"
#include <string.h>

void cpu_attend_offset(cpu_attend *e, lm_buf *b, lm_type t, const char *at_t, const char *at_s) {
  int64_t stride = lm_type_elements(e->f.m, t);
  lm_buf_puts(b, "0");
  for (int i = 0; i < t.rank; i++) {
    lm_axis a = t.axis[i];
    stride /= lm_axis_size(e->f.m, a);
    if (lm_type_find(e->f.space, a) < 0)
      continue;
    const char *at = a == e->f.t ? at_t : a == e->f.s ? at_s : lm_attend_coordinate(&e->values, a);
    lm_buf_printf(b, " + (%s) * %lld", at, (long long)stride);
  }
}

// ---- statements

static const char *statement(void *user, lm_attend_level at, lm_dtype t, const char *text) {
  cpu_attend *e = user;
  const char *type = lm_gen_register_type(t);
  const char *name = lm_arena_printf(e->g.arena, "%c%d", "uhke"[at], e -> values.n_names++);
  if (at == LM_ATTEND_ROW) {
    lm_buf_printf(&e->buffers, "%s %s[%lld] __attribute__((aligned(64))) = {0};\n", type, name,
                  (long long)e->rows);
    lm_buf_printf(&e->row, "%s[m] = %s;\n", name, text);
    return lm_arena_printf(e->g.arena, "%s[m]", name);
  }
  lm_buf_printf(at == LM_ATTEND_ONCE  ? &e->point
                : at == LM_ATTEND_COL ? &e->col
                                      : &e->tile,
                "const %s %s = %s;\n", type, name, text);
  return name;
}

void cpu_attend_loops_end(cpu_attend *e) {
  lm_attend_values_end(&e->values);
  e->col.n = e->tile.n = 0;
}

// ---- values

static const char *operand_load(void *user, const lm_value *arg, lm_attend_level at) {
  cpu_attend *e = user;
  lm_buf b = {0};
  lm_buf_printf(&b, "a%d[", lm_attend_operand(&e->f, arg));
  cpu_attend_offset(e, &b, arg->type, "t0 + m", "s0 + n");
  lm_buf_puts(&b, "]");
  const char *text = lm_gen_load_text(e->g.arena, (lm_dtype)arg->type.dtype,
                                      lm_arena_strndup(e->g.arena, b.p, b.n));
  lm_buf_free(&b);
  return statement(e, at, (lm_dtype)arg->type.dtype, text);
}

static const char *dot_element(void *user, int k) {
  const cpu_attend *e = user;
  return lm_arena_printf(e->g.arena, "p%d[n * %lld + m]", k, (long long)e->rows);
}

void cpu_attend_values(cpu_attend *e) {
  e->values = (lm_attend_values){
      .g = &e->g,
      .f = &e->f,
      .row = e->f.t,
      .col = e->f.s,
      .at_row = "t0 + m",
      .at_col = "s0 + n",
      .text = LM_NEW_N(e->g.arena, const char *, e->g.m->n_values + 1),
      .user = e,
      .statement = statement,
      .dot = dot_element,
      .operand = operand_load,
  };
}
